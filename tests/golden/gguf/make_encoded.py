#!/usr/bin/env python3
"""Writes encoded.gguf: F32 tensors, and their blocks as the quantizers of the gguf package make them.

usage: make_encoded.py FILE        (gguf 0.19.0, NumPy 2.4)
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

rng = np.random.default_rng(49)
normal = (rng.standard_normal((6, 96)) * 0.05).astype(np.float32)
normal[1, :32] = 0
normal[2] *= 1e-7  # scales that are subnormal in f16
normal[3, 32:64] = -3.5
edges = np.zeros((4, 64), np.float32)
edges[0] = np.ldexp(1.0, np.arange(64) - 45)
edges[1] = np.nextafter(np.ldexp(np.float32(1), np.arange(64) - 45), np.float32(0))  # below powers of two
edges[2] = np.linspace(-6, 6, 64)  # ties of MXFP4
edges[3] = np.repeat([[0.5, -0.5, 7.5, -8.0]], 16)
writer = GGUFWriter(sys.argv[1], "llama")
for name, x in (("normal", normal), ("edges", edges)):
    writer.add_tensor(name, x)
    for kind in ("Q8_0", "Q4_0", "MXFP4"):
        kind_id = GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.{kind}", quants.quantize(x, kind_id), raw_dtype=kind_id)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
