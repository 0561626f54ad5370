#!/usr/bin/env python3
"""Writes files of torch.save and numpy.save, and beside each NAME the tensors in it as NAME.safetensors.

Usage: make_torch_numpy.py FOLDER   (torch 2.15.0, numpy 2.4.6, ml_dtypes 0.6, safetensors 0.8.0)
"""
import collections
import io
import pathlib
import sys
import zipfile

import ml_dtypes
import numpy as np
import torch
from safetensors.torch import save_file

FOLDER = pathlib.Path(sys.argv[1])


def flat(value, name=""):
    if isinstance(value, torch.Tensor):
        return {name: value.detach()}
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return {}
    result = {}
    for key, item in items:
        result.update(flat(item, f"{name}.{key}" if name else str(key)))
    return result


def expect(name, tensors):
    save_file({key: t.clone().contiguous() for key, t in tensors.items()}, FOLDER / f"{name}.safetensors")


def torch_file(name, value, **options):
    torch.save(value, FOLDER / name, **options)
    read = torch.load(FOLDER / name, weights_only=False)  # our own files
    expect(name, flat(read))


def views():
    g = torch.Generator().manual_seed(1)
    w = torch.randn(6, 5, generator=g)
    c = torch.randn(2, 3, 4, 5, generator=g)
    return collections.OrderedDict([
        ("weight", w), ("tied", w), ("transposed", w.t()), ("part", w[2:5, 1:4]), ("every_other", w[::2, ::2]),
        ("column", w[:, 3]), ("parameter", torch.nn.Parameter(w[:2].clone())), ("bfloat16", w.to(torch.bfloat16).t()),
        ("half", w.half()), ("double", w.double()), ("channels_last", c.contiguous(memory_format=torch.channels_last)),
        ("permuted", c.permute(2, 0, 3, 1)), ("repeated", w[0].expand(4, 5)), ("long", torch.arange(7)),
        ("int", torch.arange(3, dtype=torch.int32)), ("short", torch.arange(3, dtype=torch.int16)),
        ("char", torch.arange(-2, 2, dtype=torch.int8)), ("byte", torch.arange(5, dtype=torch.uint8)),
        ("bool", torch.tensor([True, False, True])), ("empty", torch.zeros(0, 3)), ("scalar", torch.tensor(2.5)),
        ("complex", torch.randn(3, 2, dtype=torch.complex64, generator=g).t()),
    ])


def wide():
    w = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    return {"e4m3": w.to(torch.float8_e4m3fn).t(), "e5m2": w.to(torch.float8_e5m2), "u16": w.to(torch.uint16),
            "u32": w.to(torch.uint32).t(), "u64": w.to(torch.uint64), "e8m0": w.to(torch.float8_e8m0fnu)}


def npz(name, arrays, write):
    write(FOLDER / name, arrays)
    expect(name, {key: torch.from_numpy(np.ascontiguousarray(a).reshape(a.shape)) for key, a in arrays.items()})


def stream(path, arrays, **options):
    """Through a file without seek: members have data descriptors."""
    class Pipe(io.RawIOBase):
        def __init__(self): self.bytes = b""
        def writable(self): return True
        def write(self, b): self.bytes += bytes(b); return len(b)
    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            with archive.open(zipfile.ZipInfo(key + ".npy"), "w", **options) as member:
                np.lib.format.write_array(member, array)
    path.write_bytes(pipe.bytes)


def versions(path, arrays):
    with zipfile.ZipFile(path, "w") as archive:
        for version, (key, array) in enumerate(arrays.items(), 1):
            with archive.open(key + ".npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, version=(version, 0))


torch_file("views.bin", views())
torch_file("old_format.bin", views(), _use_new_zipfile_serialization=False)
torch_file("old_format_4.bin", views(), _use_new_zipfile_serialization=False, pickle_protocol=4)
torch_file("protocol_4.pt", views(), pickle_protocol=4)
torch_file("newer_types.bin", wide())
torch_file("state_dict.bin", torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict())
torch_file("training.pth", {"model": views(), "epoch": 3, "losses": [0.5, 0.25], "name": "x", "more": [torch.ones(2), {"a": torch.zeros(1)}]})
rng = np.random.default_rng(2)
A = {"c_order": rng.standard_normal((4, 3), np.float32), "fortran": np.asfortranarray(rng.standard_normal((2, 3, 4))),
     "matrix_f": np.asfortranarray(rng.integers(-9, 9, (5, 7), np.int16)), "half": np.float16([1, 2.5]), "scalar": np.float32(2).reshape(()),
     "flags": np.array([[True, False]]), "bytes": np.arange(3, dtype=np.uint8), "empty": np.zeros((0, 4), np.float32),
     "long": np.arange(4), "nested/name": np.ones(1, np.float64), "complex": np.array([1 + 2j], np.complex64)}
npz("stored.npz", A, lambda path, arrays: np.savez(path, **arrays))
npz("deflated.npz", A, lambda path, arrays: np.savez_compressed(path, **arrays))
npz("streamed.npz", A, stream)
npz("streamed_zip64.npz", A, lambda path, arrays: stream(path, arrays, force_zip64=True))
npz("versions.npz", {k: A[k] for k in ("c_order", "matrix_f", "half")}, versions)
npz("array.npy", {"array": A["matrix_f"]}, lambda path, arrays: np.save(path, arrays["array"]))
bf16 = np.asfortranarray(rng.standard_normal((3, 2)).astype(ml_dtypes.bfloat16))
np.savez(FOLDER / "bfloat16.npz", w=bf16, f=A["c_order"])
expect("bfloat16.npz", {"w": torch.from_numpy(bf16.astype(np.float32)).bfloat16(), "f": torch.from_numpy(A["c_order"])})
