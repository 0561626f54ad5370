#!/usr/bin/env python3
"""Intel MKL (PyPI: mkl) through its C functions."""
import ctypes
import importlib.metadata
import pathlib

import harness
import numpy as np

ROW_MAJOR, NO_TRANS, TRANS, PACKED, B_MATRIX, FIX_OFFSET = 101, 111, 112, 151, 162, 173
C = ctypes
F32, INT, SIZE, PTR = C.c_float, C.c_int, C.c_size_t, C.c_void_p


def load():
    """The library in the folder of the pip package."""
    files = importlib.metadata.files("mkl") or ()
    path = next((pathlib.Path(f.locate()) for f in files if f.name.startswith("libmkl_rt.so")), None)
    if path is None:
        raise ImportError("the package mkl has no libmkl_rt.so")
    mkl = C.CDLL(str(path.resolve()))
    gemm = [INT, INT, INT, INT, INT, INT]  # layout, two transposes, m, n, k
    mkl.cblas_sgemm.argtypes = [*gemm, F32, PTR, INT, PTR, INT, F32, PTR, INT]
    mkl.cblas_gemm_bf16bf16f32.argtypes = mkl.cblas_sgemm.argtypes
    mkl.cblas_sgemm_pack.argtypes = [INT, INT, INT, INT, INT, INT, F32, PTR, INT, PTR]
    mkl.cblas_sgemm_compute.argtypes = [*gemm, PTR, INT, PTR, INT, F32, PTR, INT]
    mkl.cblas_gemm_s8u8s32.argtypes = [INT, INT, INT, INT, INT, INT, INT, F32, PTR, INT, C.c_byte, PTR, INT, C.c_byte, F32,
                                       PTR, INT, PTR]
    mkl.cblas_gemm_s8u8s32_pack.argtypes = [INT, INT, INT, INT, INT, INT, PTR, INT, PTR]
    mkl.cblas_gemm_s8u8s32_compute.argtypes = mkl.cblas_gemm_s8u8s32.argtypes
    for name in ("cblas_sgemm_pack_get_size", "cblas_gemm_s8u8s32_pack_get_size"):
        getattr(mkl, name).argtypes, getattr(mkl, name).restype = [INT, INT, INT, INT], SIZE
    return mkl


def bound(function, *args):
    """The function with its arguments bound, arrays by address, so that a call has little overhead."""
    held = [a for a in args if isinstance(a, np.ndarray)]
    values = [kind(a.ctypes.data if isinstance(a, np.ndarray) else a) for kind, a in zip(function.argtypes, args)]

    def call():
        function(*values)
    call.held = held
    return call


def products(h, mkl, who, shape):
    batch, m, k, n = harness.parse_product(shape)
    random = np.random.default_rng(0)
    x, w, g = (random.standard_normal((batch, *size), dtype=np.float32) for size in ((m, k), (k, n), (m, n)))
    out, dx, dw = np.zeros_like(g), np.zeros_like(x), np.zeros_like(w)

    def gemm(a, ta, b, tb, c, m, n, k):
        calls = [bound(mkl.cblas_sgemm, ROW_MAJOR, ta, tb, m, n, k, 1.0, a[i], a.shape[2], b[i], b.shape[2], 0.0, c[i],
                       c.shape[2]) for i in range(batch)]
        return calls[0] if batch == 1 else lambda: [call() for call in calls]

    forward = gemm(x, NO_TRANS, w, NO_TRANS, out, m, n, k)
    dlhs, drhs = gemm(g, NO_TRANS, w, TRANS, dx, m, k, n), gemm(x, TRANS, g, NO_TRANS, dw, k, n, m)

    def gradients():
        dlhs()
        drhs()

    def step():
        forward()
        dlhs()
        drhs()

    h.row("product", shape, "f32", who, lambda: forward)
    h.row("gradients", shape, "f32", who, lambda: gradients)
    h.row("step", shape, "f32", who, lambda: step)
    if batch > 1:
        return
    half = [(a.view(np.uint32) >> 16).astype(np.uint16) for a in (x, w)]
    h.row("product", shape, "bf16", who, lambda: bound(
        mkl.cblas_gemm_bf16bf16f32, ROW_MAJOR, NO_TRANS, NO_TRANS, m, n, k, 1.0, half[0], k, half[1], n, 0.0, out, n))

    def packed_f32():
        panels = np.zeros(mkl.cblas_sgemm_pack_get_size(B_MATRIX, m, n, k), np.uint8)
        bound(mkl.cblas_sgemm_pack, ROW_MAJOR, B_MATRIX, NO_TRANS, m, n, k, 1.0, w, n, panels)()
        return bound(mkl.cblas_sgemm_compute, ROW_MAJOR, NO_TRANS, PACKED, m, n, k, x, k, panels, n, 0.0, out, n)

    h.row("packed", shape, "f32", who, packed_f32)
    # For row-major arrays the first operand is the unsigned one.
    u8, s8 = random.integers(0, 255, (m, k), dtype=np.uint8), random.integers(-127, 128, (k, n), dtype=np.int8)
    sums, zero = np.zeros((m, n), np.int32), np.zeros(1, np.int32)

    def integers(function, transpose, weights):
        return bound(function, ROW_MAJOR, NO_TRANS, transpose, FIX_OFFSET, m, n, k, 1.0, u8, k, 0, weights, n, 0, 0.0, sums, n, zero)

    def packed_s8():
        panels = np.zeros(mkl.cblas_gemm_s8u8s32_pack_get_size(B_MATRIX, m, n, k), np.uint8)
        bound(mkl.cblas_gemm_s8u8s32_pack, ROW_MAJOR, B_MATRIX, NO_TRANS, m, n, k, s8, n, panels)()
        return integers(mkl.cblas_gemm_s8u8s32_compute, PACKED, panels)

    h.row("product", shape, "s8", who, lambda: integers(mkl.cblas_gemm_s8u8s32, NO_TRANS, s8))
    h.row("packed", shape, "s8", who, packed_s8)


def main():
    h = harness.Harness(__doc__)
    mkl = load()
    mkl.MKL_Set_Dynamic(0)
    mkl.MKL_Set_Num_Threads(h.threads)
    for shape in h.shapes("product", "packed", "step", "gradients"):
        products(h, mkl, "mkl-" + importlib.metadata.version("mkl"), shape)


if __name__ == "__main__":
    main()
