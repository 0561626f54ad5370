#!/usr/bin/env python3
"""Records the facts about a model family's checkpoint that follow from its module classes.

    python3 record.py [--only REGEX] [--out DIR]

Each family is constructed from its real class in the transformers library with a tiny configuration, and saved by the
library. Names and shapes are those of the saved file, and classes those of the modules. Whether a conversion to int8
quantizes a weight follows from the class (`nn.Linear` or not) and from a few facts in families.py that do not follow
from classes: heads, routers, classifiers. README.md has the format and the versions.

The script does not read the converter or its table of architectures, because the records check them."""
import argparse
import json
import os
import re
import struct
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import torch
import transformers
from transformers.pytorch_utils import Conv1D

import families
import hand

# Keys of config.json that determine the layout; the others are left out.
CONFIG_KEYS = re.compile(
    r"model_type|architectures|auto_map|vocab_size|.*_vocab_size|tie_.*|.*tie_word_embeddings|num_hidden_layers|n_layers?|"
    r"num_layers|num_decoder_layers|encoder_layers|decoder_layers|hidden_size|d_model|n_embd|is_encoder_decoder|"
    r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_nextn_predict_layers|layers_block_type|"
    r"first_k_dense_replace|num_codebooks|num_labels|num_mem_blocks|hybrid_layer_ids|depth")


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "loader_names.json")) as f:
    LOADERS = json.load(f)["architectures"]


EXPERT_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def read_header(path):
    """Names and shapes of a safetensors file."""
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
    header.pop("__metadata__", None)
    return {name: (entry["shape"], entry["dtype"]) for name, entry in header.items()}


def small_config(config):
    """The keys of a config.json that a converter may use, also of nested configurations."""
    out = {}
    for key, value in config.items():
        if isinstance(value, dict):
            if key.endswith("_config") or key.endswith("ttn_config") or key in ("decoder", "encoder", "text_encoder"):
                nested = small_config(value)
                if nested or key.endswith("_config"):
                    out[key] = nested
        elif CONFIG_KEYS.fullmatch(key) and value is not None:
            out[key] = value
    return out


def hub_name(model, key):
    """The name under which save_pretrained stores the parameter `key`."""
    mapping = getattr(model, "_checkpoint_conversion_mapping", None) or {}
    for replacement, pattern in ((k, v) for k, v in mapping.items()):
        target = re.sub(r"\(.*\)", "", replacement.lstrip("^"))
        key, n = re.subn(pattern, target, key)
        if n:
            break
    renamed = model._fix_state_dict_key_on_save(key)
    return renamed[0] if isinstance(renamed, tuple) else renamed


def why_kept(module, key, shape):
    """The reason to keep a weight that follows from its class, or None if int8 fits it."""
    if key.endswith("_bias"):
        return "parameter"
    if (len(shape) == 3 or not key.endswith(".weight")) and ("experts" in key or "Experts" in type(module).__name__):
        return "fused_experts"
    if not key.endswith(".weight") and key != "weight":
        return "parameter"
    if isinstance(module, torch.nn.modules.linear.NonDynamicallyQuantizableLinear):
        return "multihead_attention"
    if isinstance(module, torch.nn.Linear):
        return None
    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    if isinstance(module, Conv1D):
        return "conv1d_in_out"
    if "Conv" in type(module).__name__:
        return "conv"
    if "Norm" in type(module).__name__:
        return "norm"
    return "parameter"


def experts_module(name, renamed):
    """The module for which a server asks to get the experts in a tensor of the module `name`, or "" if no server does."""
    for pattern, replacement in renamed.items():
        name = re.sub(pattern, replacement, name)
    return re.sub(r"\.experts\..*", ".experts", name)


def complete(out):
    """Adds derived entries: the names of experts, vLLM's handling of names, sorting."""
    out["experts"] = sorted({n for n in out["experts"] if n})
    for name in out["experts"]:
        out["ask"] += [name] + [f"{name}.{e}.{p}" for e in (0, 3) for p in ("gate_proj", "up_proj", "down_proj")]
    for name in out["quantized"]:  # older versions of vLLM ask for experts by these names, whatever their real names
        match = re.fullmatch(r"(.*\.experts\.0)\.(w1|w2|w3)", name)
        if match:
            out["ask_quantized"].append(f"{match[1]}.{EXPERT_NAMES[match[2]]}")
    architecture = (out["config"].get("architectures") or [""])[0]
    if architecture in LOADERS:
        out["vllm"] = {k: v for k, v in LOADERS[architecture].items() if k != "float"}
    out["classes"] = {n: c for n, c in out["classes"].items() if c != "Linear"}
    for key in ("tied", "quantized", "either", "ignore", "ask", "ask_quantized"):
        out[key] = sorted(set(out[key]))
    return out


def first_match(patterns, name):
    for pattern, value in patterns.items():
        if re.fullmatch(pattern, name):
            return value
    return None


def record(family):
    """The record of a family, its config.json, and the modules whose names in the checkpoint and the model differ."""
    model = family.build()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, safe_serialization=True, max_shard_size="20GB")
        stored = read_header(os.path.join(folder, "model.safetensors"))
        if family.model_names:
            names = {hub_name(model, key): key for key in model.state_dict()}
            stored = {names[n]: entry for n, entry in stored.items()}
        with open(os.path.join(folder, "config.json")) as f:
            config = json.load(f)
    out = {"family": family.name,
           "source": f"{family.cls} of transformers {transformers.__version__}" + (f"; {family.note}" if family.note else ""),
           "config": small_config(config), "tensors": {n: s for n, (s, _) in sorted(stored.items())},
           "classes": {}, "tied": [], "quantized": [], "kept": {}, "either": [], "ignore": [], "experts": [], "ask": [],
           "ask_quantized": [], "towers": dict(family.towers)}
    integers = {n for n, (_, d) in stored.items() if not (d.startswith("F") or d.startswith("BF"))}
    if integers:
        out["integers"] = sorted(integers)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    heads = [head] if isinstance(head, torch.nn.Module) else []
    inner = {}  # the name of the module in the model, if it differs from that in the checkpoint
    seen = set()
    for path, module in model.named_modules(remove_duplicate=False):
        for key, param in list(module.named_parameters(recurse=False)):
            full = f"{path}.{key}" if path else key
            name = full if family.model_names else hub_name(model, full)
            module_name = name[:-len(key) - 1] if name.endswith("." + key) else ""
            seen.add(name)
            if param.dim() < 2:
                continue
            out["classes"][module_name] = type(module).__name__
            if module_name != path:
                inner[module_name] = path
            linear = isinstance(module, torch.nn.Linear) and key == "weight"
            why = first_match(family.keep, module_name)
            if why is None:
                why = "head" if any(module is h for h in heads) else why_kept(module, name, param.shape)
            if name not in stored:
                if not linear and not isinstance(module, torch.nn.Embedding):
                    raise ValueError(f"{family.name}: {name} ({type(module).__name__}) is not stored")
                if linear:
                    out["tied"].append(module_name)
                    out["ignore"].append(module_name)
                continue
            if why is None and any(re.fullmatch(p, module_name) for p in family.either):
                out["either"].append(module_name)
                continue
            if why is None:
                out["quantized"].append(module_name)
                continue
            out["kept"][name] = why
            if linear:
                out["ignore"].append(module_name)
            elif why == "router":
                out["ask"].append(module_name)
            if why == "fused_experts":
                out["experts"].append(experts_module(module_name, family.experts))
    missing = [n for n, (s, d) in stored.items() if len(s) >= 2 and n not in seen and n not in integers]
    if missing:  # stored buffers
        for n in missing:
            out["kept"][n] = "buffer"
    # Names for which transformers asks, if they differ from those of the checkpoint.
    out["ask"] += sorted(inner[n] for n in out["ignore"] if n in inner)
    patterns = families.VLLM_FLOAT.get(family.name, [])
    out["vllm_float"] = [n for n in out["quantized"] if any(re.fullmatch(p, n) for p in patterns)]
    unused = [p for p in [*family.keep, *family.either, *patterns] if not any(re.fullmatch(p,
            n) for n in out["classes"])]
    if unused:
        raise ValueError(f"{family.name}: no module is called {unused}")
    return complete(out), config, inner


def write(out, folder):
    lines = []
    for key, value in out.items():
        if isinstance(value, dict) and key not in ("config", "vllm") and value:
            body = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(value.items()))
            lines.append(f" {json.dumps(key)}: {{\n{body}}}")
        elif isinstance(value, list) and value:
            body = ",\n".join(f"  {json.dumps(v)}" for v in value)
            lines.append(f" {json.dumps(key)}: [\n{body}]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    with open(os.path.join(folder, out["family"] + ".json"), "w") as f:
        f.write("{\n" + ",\n".join(lines) + "}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=".*")
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "data"))
    args = parser.parse_args()
    torch.manual_seed(0)
    failed = []
    for family in families.FAMILIES:
        if not re.fullmatch(args.only, family.name):
            continue
        try:
            write(record(family)[0], args.out)
        except Exception as e:  # continue with the next family; the failures are listed at the end
            failed.append(f"{family.name}: {type(e).__name__}: {str(e).strip().partition(chr(10))[0]}")
    for out in hand.HAND:
        if re.fullmatch(args.only, out["family"]):
            write(complete(out), args.out)
    if failed:
        print("\n".join(failed))
        sys.exit(f"{len(failed)} families cannot be made")


if __name__ == "__main__":
    main()
