#!/usr/bin/env python3
"""Compares our encoders with ONNX Runtime and PyTorch on this machine, taking turns, and prints a table for the README.

  examples/minilm/fetch.py /tmp/minilm
  ./bazelw build //tests/benchmarks/encoders:all
  VENV/bin/python tests/benchmarks/encoders/compare_encoders.py /tmp/minilm

Needs torch, transformers, onnx, onnxruntime and onnxscript. Every round computes each shape twice with each program. A time is the
minimum over all rounds. ONNX Runtime runs torch's export of the same model with all graph optimizations; its int8 is its own dynamic
quantization, per channel. The cosines are those of the embeddings of sentences.txt with torch's in f32, one sentence at a time.
"""
import argparse
import hashlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SENTENCES_SHA256 = "345ab5f2978aaf04f05df26de6bd6576df3083b1e4e7398722651b6346a0eef1"
PAUSE_SECONDS = 0.05  # threads of the program before have then stopped to wait for work actively
SHAPES = "1x16,1x128,8x64,32x32,32x128"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="a BertModel with mean pooling and normalization, such as all-MiniLM-L6-v2")
    parser.add_argument("--presets", default="float,int8_all", help="our configurations: float, or inject presets (default %(default)s)")
    parser.add_argument("--shapes", default=SHAPES, help="BATCHxLENGTH,... (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "bazel-bin/tests/benchmarks/encoders/encoder_times")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    return parser.parse_args()


def read_sentences():
    data = (HERE / "sentences.txt").read_bytes()
    if hashlib.sha256(data).hexdigest() != SENTENCES_SHA256:
        sys.exit("compare_encoders: sentences.txt has changed")
    return data.decode().splitlines()


def normalized_mean(hidden, mask):
    mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / (mean**2).sum(1, keepdims=True)**0.5


class Ours:
    def __init__(self, args, preset):
        self.name = f"aqt {preset}"
        self.process = subprocess.Popen([args.bin, args.folder, preset, str(args.threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def _ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            sys.exit(f"compare_encoders: {self.name} ended")
        return [float(value) for value in answer]

    def seconds(self, batch, length):
        return self._ask(f"{batch} {length}")[0]

    def embed(self, ids):
        return self._ask(f"1 {len(ids)} " + " ".join(map(str, ids)))[1:]


class Peer:
    """A program in this process: `run` takes ids and a mask, int64 [batch, length], and gives the hidden states."""

    def __init__(self, name, run):
        self.name, self.run, self.inputs = name, run, {}

    def seconds(self, batch, length):
        import numpy as np
        if (batch, length) not in self.inputs:
            ids = 1000 + np.arange(batch * length, dtype=np.int64).reshape(batch, length) * 37 % 20000
            self.inputs[batch, length] = ids, np.ones_like(ids)
        ids, mask = self.inputs[batch, length]
        start = time.perf_counter()
        normalized_mean(self.run(ids, mask), mask)
        return time.perf_counter() - start

    def embed(self, ids):
        import numpy as np
        ids = np.array([ids], np.int64)
        return normalized_mean(self.run(ids, np.ones_like(ids)), np.ones_like(ids))[0].tolist()


def export_onnx(model, float_path, int8_path):
    """Writes the model that gives hidden states, and its dynamic quantization by ONNX Runtime."""
    import torch
    from onnxruntime import quantization
    example = torch.ones(2, 8, dtype=torch.int64)
    axes = {0: "batch", 1: "length"}
    torch.onnx.export(model, (example, example), float_path, input_names=["input_ids", "attention_mask"], output_names=["hidden"],
                      dynamic_axes={"input_ids": axes, "attention_mask": axes, "hidden": axes}, opset_version=17, dynamo=False)
    quantization.quantize_dynamic(float_path, int8_path, per_channel=True, weight_type=quantization.QuantType.QInt8)


def peers(args, work):
    import onnxruntime
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    model = transformers.AutoModel.from_pretrained(args.folder, dtype=torch.float32).eval()

    def run_torch(ids, mask):
        with torch.inference_mode():
            return model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state.numpy()

    float_path, int8_path = str(work / "float.onnx"), str(work / "int8.onnx")
    export_onnx(model, float_path, int8_path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL

    def session(path):
        opened = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return lambda ids, mask: opened.run(None, {"input_ids": ids, "attention_mask": mask})[0]

    return [Peer(f"torch {torch.__version__.split('+')[0]} float", run_torch),
            Peer(f"ORT {onnxruntime.__version__} float", session(float_path)),
            Peer(f"ORT {onnxruntime.__version__} int8", session(int8_path))]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def main():
    args = arguments()
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    tokens = [tokenizer(sentence)["input_ids"] for sentence in read_sentences()]
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    with tempfile.TemporaryDirectory() as work:
        programs = peers(args, pathlib.Path(work)) + [Ours(args, preset) for preset in args.presets.split(",")]
    times = {program.name: {shape: math.inf for shape in shapes} for program in programs}
    for _ in range(args.rounds + 1):  # the first compiles
        for shape in shapes:
            for program in programs:
                time.sleep(PAUSE_SECONDS)
                times[program.name][shape] = min(times[program.name][shape], program.seconds(*shape), program.seconds(*shape))
    reference = [programs[0].embed(ids) for ids in tokens]
    print("| " + " | ".join(["ms, " + (f"{args.threads} threads" if args.threads > 1 else "1 thread")] + [f"{b}x{n}" for b, n in shapes] +
                            ["cosine: mean", "5th percentile", "worst"]) + " |")
    print("|---" * (len(shapes) + 4) + "|")
    rows = {}
    for program in programs:
        cosines = sorted(cosine(program.embed(ids), want) for ids, want in zip(tokens, reference))
        ms = {f"{b}x{n}": times[program.name][b, n] * 1e3 for b, n in shapes}
        rows[program.name] = {"ms": ms, "cosine_mean": sum(cosines) / len(cosines), "cosine_p5": cosines[len(cosines) // 20],
                              "cosine_worst": cosines[0]}
        row = rows[program.name]
        print("| " + " | ".join([program.name] + [f"{value:.2f}" for value in ms.values()] +
                                [f"{row[key]:.5f}" for key in ("cosine_mean", "cosine_p5", "cosine_worst")]) + " |")
    for ours in [program.name for program in programs if isinstance(program, Ours)]:
        kind = "float" if ours.endswith("float") else "int8"
        rivals = [program.name for program in programs if isinstance(program, Peer) and program.name.endswith(kind)]
        ratios = [min(times[rival][shape] for rival in rivals) / times[ours][shape] for shape in shapes]
        print(f"\n{ours} against the best {kind} of the others: " + ", ".join(f"{b}x{n} {r:.2f}" for (b, n), r in zip(shapes, ratios)) +
              f"; geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    if args.json:
        args.json.write_text(json.dumps({"threads": args.threads, "programs": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
