#!/usr/bin/env python3
"""Checks that every preset of the converter loads in transformers with compressed-tensors, for tiny models of six families.

    AQT=.../aqt python3 presets_in_transformers.py [--family REGEX] [--preset REGEX]

Written for transformers 4.57.6, compressed-tensors 0.20.0 and torch 2.15.0. Each model has random weights. It is converted,
and loaded by from_pretrained. For each pair of family and preset:
  - no key is missing, unexpected or of another shape, and exactly the modules that are stored quantized are built quantized;
  - each weight that the package decompresses equals that of `aqt dequantize`, rounded to the package's dtype;
  - the result differs from that of the original model, by no more than the error of the scheme (error_bound)."""
import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TQDM_DISABLE", "1")
warnings.filterwarnings("ignore")

import torch
import transformers
from compressed_tensors.compressors.base import decompress_module
from safetensors.torch import load_file, save_file

PRESETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../configs/presets/convert")
TEXT = {"input_ids": torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(1))}

COMMON = dict(vocab_size=96, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
GROUPED = dict(COMMON, num_key_value_heads=2)
FAMILIES = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED)),
    "mixtral": lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**GROUPED, num_local_experts=4)),
    "gemma2": lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**GROUPED, head_dim=32)),
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**COMMON)),
    "gpt_neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**COMMON)),
}


def error_bound(preset):
    """An upper bound of the relative error (root mean square) of a result.

    The error of a weight is at most that of 3-bit integers in groups of 64: steps of 2 sqrt(2 ln 64) / 7 deviations, rounded
    with an error of step / sqrt(12), 24 %. int4 and FP4 have 10 to 12 %. FP8 has 2^-4 / sqrt(3), 3.6 %, and 5 % together with
    FP8 activations; int8 has less. Errors of about 14 layers in sequence add up to sqrt(14) times one."""
    if re.match(r"w3", preset):
        return 0.9
    return 0.5 if re.search(r"w4|fp4", preset) else 0.2


def calibrate(model, path):
    """Writes the ranges of the inputs of each layer."""
    ranges, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: ranges.setdefault(name, []).append(args[0])))
    with torch.no_grad():
        model(**TEXT)
    for hook in hooks:
        hook.remove()
    tensors = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            inputs = torch.cat([x.float().flatten() for x in ranges.get(name, [])] + [torch.zeros(1)])
            if not inputs.any():  # an expert without tokens
                inputs = torch.tensor([-1.0, 1.0])
            tensors[name + ".input_min"], tensors[name + ".input_max"] = inputs.min().reshape(1), inputs.max().reshape(1)
    save_file(tensors, path)


def aqt(*args):
    run = subprocess.run([os.environ["AQT"], *args], capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(f"aqt {args[0]}: exit code {run.returncode}: {run.stderr.strip()}")


def check(build, preset):
    torch.manual_seed(7)
    model = build().eval()
    for parameter in model.parameters():  # the library's initial values are so small that the bias dominates the results
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    wrong = []
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        # The package returns bf16 from the formats of scaled blocks whatever the model's dtype.
        dtype = torch.bfloat16 if preset.startswith(("mx", "nv")) else torch.float32
        model.to(dtype)
        source, target, back = (os.path.join(folder, x) for x in ("in", "out", "back"))
        ranges = os.path.join(folder, "ranges.safetensors")
        model.save_pretrained(source)
        calibrate(model, ranges)
        needs_ranges = preset in ("fp8_static", "w8a8_static", "nvfp4")
        aqt("convert", source, target, "--preset", preset, *(("--calibration", ranges) if needs_ranges else ()))
        aqt("dequantize", target, back, "--dtype", "f32")
        loaded, info = type(model).from_pretrained(target, dtype=dtype, output_loading_info=True)
        loaded.eval()
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            if info[key]:
                wrong.append(f"{key}: {sorted(map(str, info[key]))[:4]}")
        stored = {re.sub(r"\.weight_scale$", "", k) for k in load_file(os.path.join(target, "model.safetensors"))
                  if k.endswith(".weight_scale")}
        built = {n: m for n, m in loaded.named_modules() if getattr(m, "quantization_scheme", None) is not None}
        if stored != set(built):
            wrong.append(f"stored and built differ: {sorted(stored ^ set(built))[:4]}")
        if wrong:
            return wrong, ""
        expected, got = model(**TEXT).logits.float(), loaded(**TEXT).logits.float()
        ours = load_file(os.path.join(back, "model.safetensors"))
        if preset.startswith("nvfp4"):
            # Loaded in bf16, the package divides the scales in bf16; loaded in f32 it does as the format says.
            loaded = type(model).from_pretrained(target, dtype=torch.float32)
        for name in built:
            module = loaded.get_submodule(name)
            if not hasattr(module, "weight") or module.weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
                decompress_module(module)
            if not torch.equal(ours[name + ".weight"].to(module.weight.dtype), module.weight):
                wrong.append(f"{name}: the package decompresses other values than aqt")
        error = ((got - expected).norm() / expected.norm()).item()
        if not 0 < error <= error_bound(preset):
            wrong.append(f"relative error {error:.2g}, expected more than 0 and at most {error_bound(preset)}")
    return wrong, f"{len(stored)} weights, error {error:.3f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", default=".*")
    parser.add_argument("--preset", default=".*")
    args = parser.parse_args()
    bad = 0
    presets = sorted(os.path.basename(p)[:-len(".textproto")] for p in glob.glob(PRESETS + "/*.textproto"))
    for family, build in FAMILIES.items():
        for preset in presets:
            if not re.fullmatch(args.family, family) or not re.fullmatch(args.preset, preset):
                continue
            try:
                wrong, what = check(build, preset)
            except Exception as e:
                wrong, what = [f"{type(e).__name__}: {str(e)[:300]}"], ""
            bad += bool(wrong)
            print(f"{'WRONG' if wrong else 'ok   '} {family} {preset}: {what}", *wrong, sep="\n        ", flush=True)
    sys.exit(f"{bad} outputs do not load or give wrong results" if bad else 0)


if __name__ == "__main__":
    main()
