#!/usr/bin/env python3
"""XNNPACK through LiteRT (TFLite; PyPI: ai-edge-litert, flatbuffers): fully connected layers and convolutions in f32, and with
8 or 4 bits per weight and activations quantized in the call."""
import importlib.metadata

import flatbuffers
import harness
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

WHO = "xnnpack-litert-" + importlib.metadata.version("ai-edge-litert")


def tensor(name, shape, kind, buffer, channels=0):
    t = schema.TensorT()
    t.name, t.shape, t.type, t.buffer = name, np.array(shape, np.int32), kind, buffer
    if channels:
        q = schema.QuantizationParametersT()
        q.scale, q.zeroPoint = np.full(channels, 0.01, np.float32), np.zeros(channels, np.int64)
        q.quantizedDimension = 0
        t.quantization = q
    return t


def model(operator, options, x, weight, out, bits):
    """One operator: x [...], weight [channels, ...] of f32 (32 bits), s8 or s4, a bias of zeros, out [...]."""
    random = np.random.default_rng(0)
    count = int(np.prod(weight))
    data = {32: lambda: random.standard_normal(count, dtype=np.float32),
            8: lambda: random.integers(-127, 128, count, dtype=np.int8),
            4: lambda: random.integers(0, 256, (count + 1) // 2, dtype=np.uint8)}[bits]()
    kind = {32: schema.TensorType.FLOAT32, 8: schema.TensorType.INT8, 4: schema.TensorType.INT4}[bits]
    m = schema.ModelT()
    m.version = 3
    m.buffers = [schema.BufferT() for _ in range(3)]
    m.buffers[1].data = np.frombuffer(data.tobytes(), np.uint8)
    m.buffers[2].data = np.zeros(4 * weight[0], np.uint8)
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, operator)
    code.version = {32: 1, 8: 9 if operator == "FULLY_CONNECTED" else 5, 4: 10}[bits]
    m.operatorCodes = [code]
    g = schema.SubGraphT()
    f32 = schema.TensorType.FLOAT32
    g.tensors = [tensor("x", x, f32, 0), tensor("w", weight, kind, 1, 0 if bits == 32 else weight[0]),
                 tensor("bias", weight[:1], f32, 2), tensor("y", out, f32, 0)]
    g.inputs, g.outputs = np.array([0], np.int32), np.array([3], np.int32)
    op = schema.OperatorT()
    op.opcodeIndex, op.inputs, op.outputs = 0, np.array([0, 1, 2], np.int32), np.array([3], np.int32)
    op.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__[:-1])
    op.builtinOptions = options
    g.operators = [op]
    m.subgraphs = [g]
    builder = flatbuffers.Builder(1024)
    builder.Finish(m.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def runner(h, content, x):
    interpreter = Interpreter(model_content=content, num_threads=h.threads)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    return interpreter.invoke


def connected(h, m, k, n, bits):
    x = np.random.default_rng(1).standard_normal((m, k), dtype=np.float32)
    return runner(h, model("FULLY_CONNECTED", schema.FullyConnectedOptionsT(), x.shape, (n, k), (m, n), bits), x)


def convolution(h, shape, bits):
    batch, height, width, channels, kernel, out = harness.parse_conv(shape)
    x = np.random.default_rng(1).standard_normal((batch, height, width, channels), dtype=np.float32)
    options = schema.Conv2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.SAME, 1, 1
    return runner(h, model("CONV_2D", options, x.shape, (out, kernel, kernel, channels), (batch, height, width, out), bits), x)


def main():
    h = harness.Harness(__doc__)
    for shape in h.shapes("packed", "dynamic"):
        batch, m, k, n = harness.parse_product(shape)
        if batch == 1:
            h.row("packed", shape, "f32", WHO, lambda s=(m, k, n): connected(h, *s, 32))
            h.row("dynamic", shape, "int8", WHO, lambda s=(m, k, n): connected(h, *s, 8))
            h.row("dynamic", shape, "int4", WHO, lambda s=(m, k, n): connected(h, *s, 4))
    for shape in h.shapes("conv"):
        h.row("conv", shape, "f32", WHO, lambda shape=shape: convolution(h, shape, 32))
        h.row("conv", shape, "int8", WHO, lambda shape=shape: convolution(h, shape, 8))


if __name__ == "__main__":
    main()
