#!/usr/bin/env python3
"""Times of `aqt convert` for every format, over int8 from bf16, and its memory for a checkpoint that is quantized already.

  ./bazelw build //serving/cli:aqt
  VENV/bin/python tests/benchmarks/checkpoints/convert_times.py write /tmp/work
  VENV/bin/python tests/benchmarks/checkpoints/convert_times.py read /tmp/work
  VENV/bin/python tests/benchmarks/checkpoints/convert_times.py memory /tmp/work --gib 8 --kind awq

Needs numpy, safetensors and ml_dtypes, and 3 GiB of disk. `write` converts the same 490 MiB of bf16 with each preset. `read` converts
each of these, and weights in the layouts of GPTQ, AWQ and bitsandbytes, to int8. A time is the smallest of --rounds, which take turns.
`memory` writes weights whose integers are holes of sparse files, converts them to int4, and prints the largest anonymous memory.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
WRITE = ("w8a16 w4a16_g128 w4a16_g32 w3a16_g64 w8a8_dynamic fp8_dynamic fp8_block128 mxfp4 mxfp8 mxfp6a16 nvfp4a16 w4afp8 "
         "w4a8_g32").split()
READ = [preset for preset in WRITE if preset not in ("w8a8_dynamic", "w4a8_g32")]  # the others store the same
NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302, 0.2461123,
       0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]


def config(width, inner, layers, quantization=None):
    fields = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": inner,
              "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
              "torch_dtype": "bfloat16"}
    return fields | ({"quantization_config": quantization} if quantization else {})


def weights(width, inner, layer):
    """(name, outputs, inputs) of a layer."""
    prefix = f"model.layers.{layer}."
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        yield f"{prefix}self_attn.{name}", width, width
    for name in ("gate_proj", "up_proj"):
        yield f"{prefix}mlp.{name}", inner, width
    yield f"{prefix}mlp.down_proj", width, inner


QUANTIZATION = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "checkpoint_format": "gptq"},
    "fp8": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    "bnb_int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "bnb_nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}


def quantized(kind, random, name, o, i):
    """Small tensors of a weight, and (name, dtype, shape) of its integers."""
    words = lambda *shape: random.integers(-2**31, 2**31, shape).astype(np.int32)
    scales = lambda dtype, *shape: random.uniform(0.001, 0.02, shape).astype(dtype)
    if kind == "awq":
        return ({f"{name}.qzeros": words(i // 128, o // 8), f"{name}.scales": scales(np.float16, i // 128, o)},
                (f"{name}.qweight", "I32", [i, o // 8]))
    if kind == "gptq":
        return ({f"{name}.qzeros": np.full((i // 128, o // 8), 0x77777777, np.int32), f"{name}.scales": scales(np.float16, i // 128, o),
                 f"{name}.g_idx": (np.arange(i) // 128).astype(np.int32)}, (f"{name}.qweight", "I32", [i // 8, o]))
    if kind == "fp8":
        return {f"{name}.weight_scale_inv": scales(np.float32, o // 128, i // 128)}, (f"{name}.weight", "F8_E4M3", [o, i])
    if kind == "bnb_int8":
        return {f"{name}.SCB": scales(np.float32, o)}, (f"{name}.weight", "I8", [o, i])
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [o, i]}).encode()
    return ({f"{name}.weight.absmax": scales(np.float32, o * i // 64), f"{name}.weight.quant_map": np.array(NF4, np.float32),
             f"{name}.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8)}, (f"{name}.weight", "U8", [o * i // 2, 1]))


SIZES = {"I32": 4, "F16": 2, "F32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1}
NAMES = {"int32": "I32", "float16": "F16", "float32": "F32", "uint8": "U8"}


def write_quantized(kind, folder, width, inner, layers, sparse):
    """A file for each layer. Integers are random, or holes of the files."""
    folder.mkdir()
    random, index = np.random.default_rng(0), {}
    for layer in range(layers):
        header, at, small, large = {}, 0, [], []
        parts = [quantized(kind, random, *weight) for weight in weights(width, inner, layer)]
        for tensors, _ in parts:
            for name, array in tensors.items():
                header[name] = {"dtype": NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
                small.append(array)
                at += array.nbytes
        for _, (name, dtype, shape) in parts:
            size = int(np.prod(shape)) * SIZES[dtype]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            large.append(size)
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
        index |= dict.fromkeys(header, file)
        with open(folder / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for array in small:
                out.write(array.tobytes())
            for size in [] if sparse else large:
                out.write(random.integers(0, 127, size).astype(np.uint8).tobytes() if kind == "fp8" else random.bytes(size))
            out.truncate(8 + len(text) + at)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config(width, inner, layers, QUANTIZATION[kind])))


def write_floats(folder):
    import ml_dtypes  # pylint: disable=import-outside-toplevel
    from safetensors.numpy import save_file  # pylint: disable=import-outside-toplevel

    random, tensors = np.random.default_rng(1), {}
    for layer in range(5):
        for name, o, i in weights(2048, 5632, layer):
            tensors[f"{name}.weight"] = (random.standard_normal((o, i), np.float32) * 0.02).astype(ml_dtypes.bfloat16)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(2048, 5632, 5)))


class Converter:
    def __init__(self, args):
        self.args = args

    def command(self, source, out, preset):
        shutil.rmtree(out, ignore_errors=True)
        return [self.args.aqt, "convert", source, out, "--preset", preset, "--jobs", str(self.args.jobs), "--progress", "never",
                "--allow-requantize"]

    def time(self, source, out, preset):
        """Wall and CPU time."""
        command = self.command(source, out, preset)
        os.sync()
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if ran.returncode != 0:
            sys.exit(f"convert_times: {' '.join(map(str, command))} failed:\n{ran.stderr}")
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def table(self, runs):
        """runs: {row: (source, out, preset)}; the first is what the others are compared with."""
        best = {}
        for _ in range(self.args.rounds):
            for row, run in runs.items():
                best[row] = tuple(map(min, zip(self.time(*run), best.get(row, (1e9, 1e9)))))
        base = best[next(iter(runs))]
        print(f"{'':20} wall s  ratio   CPU s  ratio")
        for row, (wall, cpu) in best.items():
            print(f"{row:20} {wall:6.2f} {wall / base[0]:6.2f}  {cpu:6.2f} {cpu / base[1]:6.2f}")

    def peak(self, source, out, preset):
        start, peak = time.perf_counter(), 0
        process = subprocess.Popen(self.command(source, out, preset))  # pylint: disable=consider-using-with
        while process.poll() is None:
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
                peak = max(peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)
            except OSError:
                pass
            time.sleep(0.02)
        if process.returncode != 0:
            sys.exit(f"convert_times: aqt convert ended with {process.returncode}")
        return peak / 1024, time.perf_counter() - start


def memory(args, converter):
    source = args.work / f"large_{args.kind}"
    width, inner = 8192, 28672
    bits = 4 if args.kind in ("awq", "gptq", "bnb_nf4") else 8
    layers = -(-int(args.gib * 2**33) // ((4 * width + 3 * inner) * width * bits))
    if not source.exists():
        write_quantized(args.kind, source, width, inner, layers, sparse=True)
    size = sum(file.stat().st_size for file in source.iterdir())
    peak, seconds = converter.peak(source, args.work / "out", "w4a16_g128")
    print(f"{args.kind}, {size / 2**30:.2f} GiB in {layers} files, to int4 with {args.jobs} jobs: {peak:.1f} MiB of anonymous memory, "
          f"{seconds:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "read", "memory"))
    parser.add_argument("work", type=pathlib.Path, help="a folder for checkpoints; those that are there are used again")
    parser.add_argument("--aqt", type=pathlib.Path, default=ROOT / "bazel-bin/serving/cli/aqt")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kind", choices=sorted(QUANTIZATION), default="awq", help="for memory (default %(default)s)")
    parser.add_argument("--gib", type=float, default=8, help="for memory: size of the weights (default %(default)s)")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    converter, base = Converter(args), args.work / "bf16"
    if args.what == "memory":
        return memory(args, converter)
    if not base.exists():
        write_floats(base)
    folders = {preset: args.work / preset for preset in WRITE}
    if args.what == "write":
        converter.table({preset: (base, folder, preset) for preset, folder in folders.items()})
        return None
    for preset in READ:
        if not folders[preset].exists():
            converter.time(base, folders[preset], preset)
    sources = {"bf16": base} | {preset: folders[preset] for preset in READ}
    for kind in QUANTIZATION:
        sources[kind] = args.work / f"small_{kind}"
        if not sources[kind].exists():
            write_quantized(kind, sources[kind], 2048, 5632, 5, sparse=False)
    converter.table({row: (source, args.work / "out", "w8a16") for row, source in sources.items()})
    return None


if __name__ == "__main__":
    main()
