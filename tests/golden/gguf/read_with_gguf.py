#!/usr/bin/env python3
"""Converts random GGUF files with `aqt`, and reads the results with the gguf package.

usage: read_with_gguf.py AQT        (the program; gguf 0.19.0, NumPy)

Checks that Q8_0, Q4_0 and MXFP4 are the bytes of the package's quantizers; that the package dequantizes every type to the values
that `aqt` decodes; that the squared error of Q4_K and Q6_K is at most that of the plain scale of each group; and that all other
tensors and the metadata are unchanged.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader, GGUFWriter, quants

KEPT = ("general.file_type", "general.quantization_version")


def write_input(path):
    rng = np.random.default_rng(49)
    writer = GGUFWriter(str(path), "llama")
    writer.add_name("random")
    writer.add_block_count(2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "\u00e9"])
    writer.add_array("llama.numbers", [1, -2, 3])
    writer.add_float64("llama.double", 0.1)
    for name, shape, dtype in (("token_embd.weight", (7, 256), np.float16), ("blk.0.ffn_up.weight", (5, 512), np.float32),
                               ("blk.0.ffn_down.weight", (3, 256), np.float16), ("blk.1.ffn_up_exps.weight", (4, 2, 256), np.float32),
                               ("blk.1.ffn_down.weight", (300, 1024), np.float32), ("blk.1.attn_norm.weight", (9,), np.float32)):
        scale = 10.0**rng.integers(-4, 1, (*shape[:-1], 1))
        writer.add_tensor(name, (rng.standard_normal(shape) * scale).astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(path):
    return {t.name: t for t in GGUFReader(str(path)).tensors}


def values(tensor):
    return np.asarray(quants.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(tensor.shape[::-1])


def plain_error(x, kind):
    """The squared error with scales in full precision from the largest magnitude, or from minimum and maximum."""
    if kind == "Q6_K":
        groups = x.reshape(-1, 16).astype(np.float64)
        most = np.take_along_axis(groups, np.abs(groups).argmax(1)[:, None], 1)
        scale = np.where(most == 0, 1, most / -32)
        return ((np.clip(np.round(groups / scale), -32, 31) * scale - groups)**2).sum()
    groups = x.reshape(-1, 32).astype(np.float64)
    low = np.minimum(groups.min(1, keepdims=True), 0)
    scale = (groups.max(1, keepdims=True) - low) / 15
    scale = np.where(scale == 0, 1, scale)
    return ((np.clip(np.round((groups - low) / scale), 0, 15) * scale + low - groups)**2).sum()


def check(aqt, folder, kind):
    source, output, back = folder / "in.gguf", folder / f"{kind}.gguf", folder / f"{kind}.f32.gguf"
    run = lambda *args: subprocess.run([aqt, "convert", *map(str, args), "--progress", "never"], check=True, stdout=subprocess.DEVNULL)
    run(source, output, "--preset", f"gguf_{kind.lower()}")
    config = folder / "f32.textproto"
    config.write_text("schema: 1 rule { match: '.*' gguf { type: 'F32' } }")
    run(output, back, "--config", config)
    before, after, decoded = tensors(source), tensors(output), tensors(back)
    assert list(before) == list(after) == list(decoded)
    for name, tensor in after.items():
        original = values(before[name])
        if not name.startswith("blk.") or name.endswith("norm.weight"):
            assert tensor.tensor_type == before[name].tensor_type and tensor.data.tobytes() == before[name].data.tobytes(), name
            continue
        assert tensor.tensor_type.name == kind, name
        assert np.array_equal(values(tensor), values(decoded[name])), name
        if kind in ("Q8_0", "Q4_0", "MXFP4"):
            assert quants.quantize(original, tensor.tensor_type).tobytes() == tensor.data.tobytes(), name
        else:
            error = ((values(tensor).astype(np.float64) - original)**2).sum()
            assert error <= plain_error(original, kind), name
    fields = lambda path: {key: (field.types, [bytes(part) for part in field.parts])
                           for key, field in GGUFReader(str(path)).fields.items() if not key.startswith("GGUF.")}
    old, new = fields(source), fields(output)
    assert {k: v for k, v in new.items() if k not in KEPT} == {k: v for k, v in old.items() if k not in KEPT}
    print(kind, "as expected;", len(after), "tensors")


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        write_input(folder / "in.gguf")
        for kind in ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4"):
            check(sys.argv[1], folder, kind)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
