#!/usr/bin/env python3
"""PyTorch (PyPI: torch): f32 and bf16 products (MKL, oneDNN), quantized linear layers, weight-only products, convolutions."""
import warnings

import harness
import torch

warnings.filterwarnings("ignore")
VERSION = torch.__version__.split("+")[0]
WHO = f"torch-{VERSION}"
GROUP = 128


def quantized_linear(k, n, x, engine):
    """A dynamically quantized linear layer: u8 activations per tensor, s8 weights per channel."""
    torch.backends.quantized.engine = engine
    linear = torch.nn.Linear(k, n, bias=False)
    linear.qconfig = torch.ao.quantization.per_channel_dynamic_qconfig
    layer = torch.ao.nn.quantized.dynamic.Linear.from_float(linear)
    return lambda: layer(x)


def weight_only_int4(k, n, x):
    q = torch.randint(0, 16, (n, k), dtype=torch.int32)
    packed = torch._convert_weight_to_int4pack_for_cpu(q, 1)
    scales = torch.rand(k // GROUP, n, 2).to(x.dtype)
    return lambda: torch._weight_int4pack_mm_for_cpu(x, packed, GROUP, scales)


def weight_only_int8(k, n, x):
    w, scales = torch.randint(-127, 128, (n, k), dtype=torch.int8), torch.rand(n).to(x.dtype)
    return lambda: torch._weight_int8pack_mm(x, w, scales)


def products(h, shape):
    batch, m, k, n = harness.parse_product(shape)
    lead = () if batch == 1 else (batch,)
    x, w, g = torch.randn(*lead, m, k), torch.randn(*lead, k, n), torch.randn(*lead, m, n)
    h.row("product", shape, "f32", WHO, lambda: lambda: torch.matmul(x, w))
    xb, wb = x.bfloat16(), w.bfloat16()
    h.row("product", shape, "bf16", WHO, lambda: lambda: torch.matmul(xb, wb))

    def gradients():
        torch.matmul(g, w.mT)
        torch.matmul(x.mT, g)

    def step():
        torch.matmul(x, w)
        gradients()

    h.row("step", shape, "f32", WHO, lambda: step)
    h.row("gradients", shape, "f32", WHO, lambda: gradients)
    if batch > 1:
        return
    x8, w8 = ((t * 40).clamp(-127, 127).to(torch.int8) for t in (x, w))
    h.row("product", shape, "s8", WHO, lambda: lambda: torch._int_mm(x8, w8))
    for engine in ("fbgemm", "onednn"):
        h.row("dynamic", shape, "int8", f"{WHO}-{engine}", lambda engine=engine: quantized_linear(k, n, x, engine))
    if k % GROUP != 0:  # a fault, not an exception
        return
    h.row("weights_only", shape, "w8", f"{WHO}-bf16", lambda: weight_only_int8(k, n, xb))
    h.row("weights_only", shape, "w4_g128", f"{WHO}-bf16", lambda: weight_only_int4(k, n, xb))
    h.row("weights_only", shape, "w4_g128", WHO, lambda: weight_only_int4(k, n, x))


def convolutions(h, shape):
    batch, height, width, channels, kernel, out = harness.parse_conv(shape)
    last = torch.channels_last
    x = torch.randn(batch, channels, height, width).to(memory_format=last)
    w = torch.randn(out, channels, kernel, kernel).to(memory_format=last)
    g = torch.randn(batch, out, height, width).to(memory_format=last)
    pad = [kernel // 2] * 2
    h.row("conv", shape, "f32", WHO, lambda: lambda: torch.nn.functional.conv2d(x, w, padding=pad))
    h.row("conv_gradients", shape, "f32", WHO, lambda: lambda: torch.ops.aten.convolution_backward(
        g, x, w, None, [1, 1], pad, [1, 1], False, [0, 0], 1, [True, True, False]))


def main():
    h = harness.Harness(__doc__)
    torch.set_num_threads(h.threads)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    for shape in h.shapes("product", "step", "gradients", "dynamic", "weights_only"):
        products(h, shape)
    for shape in h.shapes("conv", "conv_gradients"):
        convolutions(h, shape)


if __name__ == "__main__":
    main()
