#!/usr/bin/env python3
"""Writes names.tsv: architecture, model_type, name in the file, name in the model, by the name tables of the gguf package.

usage: make_names.py FILE        (gguf 0.19.0)
"""
import sys

from gguf import get_tensor_name_map
from gguf.constants import MODEL_ARCH_NAMES

NORM, ATTENTION = ["input_layernorm"], ["q_proj", "k_proj", "v_proj", "o_proj"]
HEAD_NORMS = ["self_attn.q_norm", "self_attn.k_norm"]
MLP = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
EXPERTS = [f"mlp.experts.{part}_proj" for part in ("gate", "up", "down")]
SHARED = ["mlp.shared_expert_gate"] + [f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")]
PRE_NORM = NORM + [f"self_attn.{p}" for p in ATTENTION] + ["post_attention_layernorm"]
GEMMA2 = PRE_NORM + ["pre_feedforward_layernorm", "post_feedforward_layernorm"] + MLP
MODELS = {
    ("llama", "llama"): PRE_NORM + MLP,
    ("llama", "mixtral"): PRE_NORM + ["block_sparse_moe.gate"] + [f"block_sparse_moe.experts.{w}" for w in ("w1", "w2", "w3")],
    ("qwen2", "qwen2"): PRE_NORM + MLP,
    ("qwen3", "qwen3"): PRE_NORM + HEAD_NORMS + MLP,
    ("qwen2moe", "qwen2_moe"): PRE_NORM + ["mlp.gate"] + EXPERTS + SHARED,
    ("qwen3moe", "qwen3_moe"): PRE_NORM + HEAD_NORMS + ["mlp.gate"] + EXPERTS,
    ("gemma", "gemma"): PRE_NORM + MLP,
    ("gemma2", "gemma2"): GEMMA2,
    ("gemma3", "gemma3_text"): GEMMA2 + HEAD_NORMS,
    ("phi3", "phi3"): NORM + ["self_attn.qkv_proj", "self_attn.o_proj", "post_attention_layernorm", "mlp.gate_up_proj", "mlp.down_proj"],
}
ids = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    for (architecture, model_type), modules in MODELS.items():
        names = get_tensor_name_map(ids[architecture], 4)
        heads = [] if architecture in ("gemma", "gemma2") else ["lm_head"]
        for module in ["model.embed_tokens", "model.norm"] + heads + [f"model.layers.3.{m}" for m in modules]:
            file_name = names.get_name(module)
            assert file_name is not None, (architecture, module)
            for experts in ("mlp.experts.", "block_sparse_moe.experts."):
                module = module.replace(experts, experts + "0.")
            print(architecture, model_type, file_name + ".weight", module + ".weight", sep="\t", file=out)
