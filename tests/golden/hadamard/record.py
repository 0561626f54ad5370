#!/usr/bin/env python3
"""Records rotated, quantized contractions computed with NumPy: tests/golden/hadamard/README.md."""
import argparse
import json
import platform

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

F32 = np.float32


def hadamard_rows(x, block):
    """The last axis of x, in blocks; what is left over in smaller powers of two. Rounded to the dtype of x once."""
    y = x.astype(F32)
    parts, first, m = [], 0, block
    n = y.shape[-1]
    while first < n:
        while m > n - first:
            m //= 2
        part = y[..., first:first + m].copy()
        h = 1
        while h < m:
            pairs = part.reshape(*part.shape[:-1], m // (2 * h), 2, h)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            part = np.stack([a + b, a - b], axis=-2).reshape(part.shape)
            h *= 2
        parts.append(part * F32(1 / np.sqrt(np.float64(m))))
        first += m
    return np.concatenate(parts, axis=-1).astype(x.dtype)


def matrix(n, block):
    """The same transform as a matrix of f64, by Sylvester's construction."""
    full = np.zeros((n, n))
    first, m = 0, block
    while first < n:
        while m > n - first:
            m //= 2
        h = np.ones((1, 1))
        while h.shape[0] < m:
            h = np.block([[h, h], [h, -h]])
        full[first:first + m, first:first + m] = h / np.sqrt(m)
        first += m
    return full


def quantize(x):
    """s8 with one scale per row (the last axis), in f32."""
    absmax = np.abs(x).max(axis=-1, keepdims=True).astype(F32)
    absmax[absmax == 0] = 1
    scale = absmax / F32(127.5)
    inverse = F32(1) / scale
    q = np.rint(np.clip(x.astype(F32) * inverse, F32(-127), F32(127)))
    return q.astype(np.int32), scale


def product(ql, sl, qr, sr):
    """[m, k] x [n, k] -> [m, n]."""
    return (ql @ qr.T).astype(F32) * sl * sr.T


def case(rng, m, k, n, block):
    lhs = rng.standard_normal((m, k)).astype(F32)
    rhs = rng.standard_normal((k, n)).astype(F32)
    lhs[:, rng.integers(0, k, 2)] *= F32(40)  # two channels with outliers
    g = rng.standard_normal((m, n)).astype(F32)
    rotated = hadamard_rows(lhs, block)
    # NumPy's own product with the matrix: the transform is what it should be, to the rounding of f32.
    exact = lhs.astype(np.float64) @ matrix(k, block)
    assert np.abs(rotated - exact).max() <= 16 * 2.0**-24 * np.abs(lhs).max() * np.sqrt(block)
    ql, sl = quantize(rotated)
    qr, sr = quantize(hadamard_rows(rhs.T, block))
    out = product(ql, sl, qr, sr)
    # dlhs from the forward qvalue: g times the scales of rhs, and the qvalue as numbers, both in s8 again.
    qg, sg = quantize(g * sr.T)
    qy, sy = quantize(qr.T.astype(F32))  # [k, n]
    dlhs = hadamard_rows(product(qg, sg, qy, sy), block)
    # drhs from the forward qvalue of lhs: [n, m] x [k, m], in the layout of rhs.
    qg, sg = quantize((g * sl).T)
    qy, sy = quantize(ql.T.astype(F32))
    drhs = hadamard_rows(product(qg, sg, qy, sy), block).T
    return {"lhs": lhs, "rhs": rhs, "g": g, "rotated": rotated, "qlhs": ql.astype(np.int8), "lhs_scale": sl,
            "out": out, "dlhs": dlhs, "drhs": np.ascontiguousarray(drhs)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    rng = np.random.default_rng(64)
    tensors, cases = {}, []
    for m, k, n, block in ((5, 64, 7, 64), (3, 128, 4, 64), (4, 312, 6, 64), (2, 100, 3, 32), (6, 7, 5, 2), (1, 384, 9, 128),
                           (3, 16, 2, 16), (2, 300, 2, 256), (4, 1, 3, 64), (3, 40, 5, 8)):
        name = f"{m}x{k}x{n}_{block}"
        cases.append({"name": name, "block": block})
        for key, value in case(rng, m, k, n, block).items():
            tensors[f"{name}/{key}"] = value
    for dtype in (ml_dtypes.bfloat16, np.float16):  # the transform alone, rounded to the dtype
        x = (rng.standard_normal((3, 200)) * 3).astype(dtype)
        name = np.dtype(dtype).name
        tensors[f"{name}/x"] = x
        tensors[f"{name}/rotated"] = hadamard_rows(x, 64)
    # One entry: safetensors writes several in no fixed order.
    versions = {"python": platform.python_version(), "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__,
                "safetensors": safetensors.__version__}
    metadata = {"recording": json.dumps({"cases": cases, **versions})}
    save_file(tensors, args.out, metadata=metadata)


if __name__ == "__main__":
    main()
