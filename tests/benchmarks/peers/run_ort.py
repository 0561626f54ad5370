#!/usr/bin/env python3
"""MLAS, the kernels of ONNX Runtime (PyPI: onnxruntime, onnx)."""
import harness
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WHO = "mlas-" + ort.__version__
TYPES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8,
         np.dtype(np.int32): TensorProto.INT32}


def runner(h, operator, inputs, weights, out, **attributes):
    """One operator with `inputs` (of each call) and `weights` (constants) that writes `out`. Sorted by name, both together are the
    operator's operands."""
    names = sorted([*inputs, *weights])
    domain = "com.microsoft" if operator in ("MatMulNBits", "DynamicQuantizeMatMul") else ""
    node = helper.make_node(operator, [name[1:] for name in names], ["out"], domain=domain, **attributes)
    value = lambda name, x: helper.make_tensor_value_info(name, TYPES[x.dtype], list(x.shape))
    graph = helper.make_graph([node], "g", [value(name[1:], x) for name, x in inputs.items()], [value("out", out)],
                              [numpy_helper.from_array(x, name[1:]) for name, x in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 10
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = h.threads, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, x in inputs.items():
        binding.bind_ortvalue_input(name[1:], ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_ortvalue_output("out", ort.OrtValue.ortvalue_from_numpy(out))
    return lambda: session.run_with_iobinding(binding)


def products(h, shape):
    batch, m, k, n = harness.parse_product(shape)
    lead = () if batch == 1 else (batch,)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((*lead, *size), dtype=np.float32) for size in ((m, k), (k, n)))
    out, sums = np.zeros((*lead, m, n), np.float32), np.zeros((*lead, m, n), np.int32)
    u8, s8 = random.integers(0, 255, x.shape, dtype=np.uint8), random.integers(-127, 128, w.shape, dtype=np.int8)
    # The first letter of a name gives the position of the operator's input.
    for cls, constant in (("product", {}), ("packed", {"bw": w})):
        h.row(cls, shape, "f32", WHO, lambda c=constant: runner(h, "MatMul", {"ax": x} if c else {"ax": x, "bw": w}, c, out))
    for cls, constant in (("product", {}), ("packed", {"bw": s8})):
        h.row(cls, shape, "s8", WHO, lambda c=constant: runner(
            h, "MatMulInteger", {"ax": u8} if c else {"ax": u8, "bw": s8}, c, sums))
    if batch > 1:
        return
    scale = np.full(n, 0.01, np.float32)
    h.row("dynamic", shape, "int8", WHO, lambda: runner(h, "DynamicQuantizeMatMul", {"ax": x}, {"bw": s8, "cs": scale}, out))
    if k % 128 != 0:
        return
    scales = random.random((n, k // 128)).astype(np.float32)

    def blocks(bits, level):
        q = random.integers(0, 256, (n, k // 128, 128 * bits // 8), dtype=np.uint8)
        return runner(h, "MatMulNBits", {"ax": x}, {"bw": q, "cs": scales.ravel() if bits == 8 else scales}, out,
                      K=k, N=n, bits=bits, block_size=128, accuracy_level=level)

    h.row("weights_only", shape, "w4_g128", WHO, lambda: blocks(4, 0))
    h.row("weights_only", shape, "w8", WHO, lambda: blocks(8, 0))
    h.row("dynamic", shape, "int4_g128", WHO, lambda: blocks(4, 4))
    h.row("dynamic", shape, "int8", WHO + "-g128", lambda: blocks(8, 4))


def main():
    h = harness.Harness(__doc__)
    ort.set_default_logger_severity(4)
    for shape in h.shapes("product", "packed", "dynamic", "weights_only"):
        products(h, shape)


if __name__ == "__main__":
    main()
