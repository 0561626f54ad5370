#!/usr/bin/env python3
"""Checks that outputs of the converter load in transformers with compressed-tensors and give the expected results.

    AQT=.../aqt python3 load_in_transformers.py [--only REGEX]

For each family a tiny random model is saved in f32, converted, and loaded by from_pretrained. No key may be missing,
unexpected or have another shape, and every module that is `quantized` in the record must be quantized. The results are
compared with those of a reference: the original model with its weights replaced by the stored values times their scales,
and with the inputs of these layers rounded to int8 per token if the scheme quantizes activations. Both perform the same
operations in f32, and were equal when this was written; REFERENCE_BOUND allows for another order of sums. The distance to
the original model must be within the error of the scheme (SCHEMES).

CANNOT lists models that these versions of the libraries cannot load, whatever the converter writes."""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import safetensors
import torch
from compressed_tensors.compressors.base import decompress_module

import families
import record as recorder

REFERENCE_BOUND = 1e-5

# The relative error (root mean square) of a result of these models. A row of K normal weights has a largest element of
# about sqrt(2 ln K) deviations; a step of q levels is 2 sqrt(2 ln K) / q, and its error step / sqrt(12).
#   int8, K = 64 to 128: 0.7 %, the same for the activations, 1 % together; int4 in groups of 32: 10 %.
# There are up to 20 such layers in sequence. Independent errors add up to sqrt(20) times one error; for int8 twice that
# is allowed, because exponentials and gates (Mamba) amplify errors.
SCHEMES = {"w8a8_dynamic": 0.09, "w4a16_g32": 0.5}

TEXT = {"input_ids": torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(1))}
TWO_TEXTS = {**TEXT, "decoder_input_ids": TEXT["input_ids"][:, :6]}
PICTURES = {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))}
SOUND = {"input_features": torch.randn(2, 32, 80, generator=torch.Generator().manual_seed(3)),
         "decoder_input_ids": TEXT["input_ids"][:, :6]}

# Family -> inputs of its forward pass.
CASES = {"llama": TEXT, "llama_tied": TEXT, "qwen2": TEXT, "qwen3": TEXT, "qwen3_moe": TEXT, "mixtral": TEXT,
         "gemma2": TEXT, "phi3": TEXT,
         "opt": TEXT, "gpt_neox": TEXT, "falcon": TEXT, "bloom": TEXT, "mpt": TEXT, "olmo2": TEXT, "granite": TEXT,
         "cohere": TEXT,
         "bert_masked_lm": TEXT, "roberta_masked_lm": TEXT, "distilbert_masked_lm": TEXT, "mpnet": TEXT,
         "t5": TWO_TEXTS, "bart": TWO_TEXTS, "whisper": SOUND, "vit": PICTURES,
         "clip": {**TEXT, **PICTURES}, "siglip": {**TEXT, **PICTURES}, "gpt_oss": TEXT, "llava": TEXT, "gemma3": TEXT,
         "qwen2_vl": TEXT,
         "jamba": TEXT, "mamba": TEXT, "deepseek_v3": TEXT, "qwen2_moe": TEXT, "hunyuan_v1_moe": TEXT,
         "albert_masked_lm": TEXT,
         "electra_masked_lm": TEXT, "bert_sequence_classification": TEXT}


# transformers initializes each module with a buffer that is not stored. It does so through the parent, where a quantized
# child has no float weight.
NO_START_VALUES = "transformers 4.57.6 sets start values of quantized weights"
CANNOT = {
    "llama4": "transformers 4.57.6 builds one layer per expert as soon as there is a quantization, also where it is ignored",
    "llama4_text": "as llama4",
    "qwen2_5_omni": "transformers 4.57.6 asks for spk_dict.pt, which only the published checkpoints have",
    "musicgen_full": "transformers 4.57.6 finds two text configurations, and gives up on the quantization",
    "falcon_mamba": NO_START_VALUES, "modernbert": NO_START_VALUES, "modernbert_masked_lm": NO_START_VALUES,
    "recurrent_gemma": NO_START_VALUES}


def result(model, inputs):
    with torch.no_grad():
        out = model(**inputs)
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            return getattr(out, name).float()
    raise ValueError(f"{type(out).__name__} has no logits")


def dequantize(tensors, module, columns):
    """The stored values of a weight, in f32."""
    scale = tensors[module + ".weight_scale"].float()
    if module + ".weight" in tensors:
        return tensors[module + ".weight"].float() * scale
    packed = tensors[module + ".weight_packed"]
    rows, _ = tensors[module + ".weight_shape"].tolist()
    nibbles = torch.stack([(packed >> (4 * k)) & 15 for k in range(8)], dim=-1).reshape(rows, -1)[:, :columns] - 8
    return (nibbles.float().reshape(rows, scale.shape[1], -1) * scale[:, :, None]).reshape(rows, columns)


def round_per_token(module, args):
    """The input that a layer of the scheme "int8 dynamic per token" multiplies. For the package, a token is an index of the
    first two dimensions, and a matrix has one scale."""
    x = args[0]
    dims = tuple(range(2, x.dim())) or (0, 1)
    low, high = torch.clamp(x.amin(dims, keepdim=True), max=0), torch.clamp(x.amax(dims, keepdim=True), min=0)
    scale = torch.maximum(low.abs(), high.abs()) / 127.5
    scale = torch.where(scale == 0, torch.finfo(x.dtype).eps, scale)
    return (torch.clamp(torch.round(x / scale), -128, 127) * scale, *args[1:])


def reference(model, tensors, quantized, by_name, activations):
    """Replaces the weights of the model by the stored values."""
    modules = dict(model.named_modules())
    for name in quantized:
        module = modules[by_name.get(name, name)]
        module.weight = torch.nn.Parameter(dequantize(tensors, name, module.weight.shape[1]), requires_grad=False)
        if activations:
            module.register_forward_pre_hook(round_per_token)


def decompress_shared(model):
    """Performs the package's steps before the first forward pass, for models that have a module under two names (T5):
    compressed-tensors 0.20.0 itself fails there with "Attempted to offload a module twice"."""
    modules = [m for _, m in model.named_modules(remove_duplicate=False)]
    if len(modules) == len(set(map(id, modules))):
        return
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            decompress_module(module)
    model.ct_decompress_hook.remove()


def quantized_modules(model):
    return {n for n, m in model.named_modules() if getattr(m, "quantization_scheme", None) is not None}


def check(program, family, preset, inputs):
    truth, _, inner = recorder.record(family)
    torch.manual_seed(7)
    model = family.build().eval()
    cls = type(model)
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
        for parameter in model.parameters():  # the library's initial values are so small that the bias dominates the results
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        model.save_pretrained(source)
        run = subprocess.run([program, "convert", source, target, "--preset", preset], capture_output=True, text=True)
        if run.returncode != 0 and not truth["quantized"] and "nothing would be quantized" in run.stderr:
            return []
        if run.returncode != 0:
            return [f"exit code {run.returncode}: {run.stderr.strip()}"]
        loaded, info = cls.from_pretrained(target, dtype=torch.float32, output_loading_info=True)
        loaded.eval()
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            if info[key]:
                wrong.append(f"{key}: {sorted(map(str, info[key]))[:4]}")
        tensors = {}
        with safetensors.safe_open(os.path.join(target, "model.safetensors"), framework="pt") as f:
            for key in f.keys():
                tensors[key] = f.get_tensor(key)
        quantized = {k[:-len(".weight_scale")] for k in tensors if k.endswith(".weight_scale")}
        by_name = {n: inner.get(n, n) for n in quantized}
        became = quantized_modules(loaded)
        for name in sorted(became ^ set(by_name.values())):
            built, stored = ("quantized", "in float") if name in became else ("in float", "quantized")
            wrong.append(f"{name} is built {built}, and stored {stored}")
        if wrong or inputs is None:
            return wrong
        before = result(model, inputs)
        decompress_shared(loaded)
        reference(model, tensors, quantized, by_name, preset == "w8a8_dynamic")
        expected, got = result(model, inputs), result(loaded, inputs)
    worst = ((got - expected).abs().max() / expected.abs().max()).item()
    error = ((got - before).norm() / before.norm()).item()
    if not worst <= REFERENCE_BOUND:
        wrong.append(f"differs from the reference by {worst:.2g} of the largest result")
    if not error <= SCHEMES[preset]:
        wrong.append(f"relative error {error:.2g}, more than {SCHEMES[preset]}")
    if not error > 0:
        wrong.append("equals the original, so nothing is quantized")
    print(f"      {family.name} {preset}: {len(quantized)} layers, reference {worst:.1e}, error {error:.3f}")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=".*")
    parser.add_argument("--all", action="store_true", help="also load the other families, without computing results")
    args = parser.parse_args()
    program, bad = os.environ["AQT"], 0
    by_name = {f.name: f for f in families.FAMILIES}
    for name in by_name if args.all else CASES:
        if not re.fullmatch(args.only, name) or by_name[name].model_names:
            continue
        if name in CANNOT:
            print(f"      {name}: {CANNOT[name]}")
            continue
        inputs = CASES.get(name)
        for preset in SCHEMES:
            try:
                wrong = check(program, by_name[name], preset, inputs)
            except Exception as e:
                wrong = [f"{type(e).__name__}: {str(e)[:300]}"]
            bad += bool(wrong)
            print(f"{'WRONG' if wrong else 'ok   '} {name} {preset}", *wrong, sep="\n        ", flush=True)
    sys.exit(f"{bad} of the outputs do not load or give wrong results" if bad else 0)


if __name__ == "__main__":
    main()
