#!/usr/bin/env python3
"""Writes the variables of flax models, and the same models as PyTorch has them.

usage: make_flax_tree.py FOLDER   (flax 0.12.8, jax 0.10.2, torch 2.15.0, transformers 4.57.6, safetensors 0.8.0)

flax_layers.msgpack has one layer of each kind; the script fails unless PyTorch's layers give flax's results with the expected
tensors. The expected tensors of flax_bert.msgpack are those that transformers loads from it.
"""
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen as nn
from flax import serialization
from safetensors.numpy import save_file
from transformers import BertConfig, BertForMaskedLM
from transformers.modeling_flax_pytorch_utils import load_flax_weights_in_pytorch_model

FOLDER = pathlib.Path(sys.argv[1])


class Layers(nn.Module):
    @nn.compact
    def __call__(self, ids, x):
        words = nn.Embed(11, 8, name="words")(ids)
        image = nn.Conv(6, (3, 2), padding="VALID", name="conv")(x)
        image = nn.BatchNorm(use_running_average=True, name="bn")(image)
        series = nn.Conv(4, (3,), padding="VALID", use_bias=False, name="conv_1d")(words)
        seen = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8, name="attention")(words)
        bare = nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=8, use_bias=False, name="bare")(words)
        heads = nn.DenseGeneral((2, 3), name="to_heads")(words)
        return words, image, series, seen, bare, heads, nn.LayerNorm(name="norm")(nn.Dense(5, name="dense")(words))


def randomized(variables):
    leaves, tree = jax.tree_util.tree_flatten(variables)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    return jax.tree_util.tree_unflatten(tree, [jax.random.uniform(k, v.shape, v.dtype, 0.1, 1) for k, v in zip(keys, leaves)])


def expected(variables):
    """The tensors under PyTorch's names, kind by kind."""
    p, stats = variables["params"], variables["batch_stats"]
    result = {"words.weight": p["words"]["embedding"], "norm.weight": p["norm"]["scale"], "norm.bias": p["norm"]["bias"],
              "dense.weight": p["dense"]["kernel"].T, "dense.bias": p["dense"]["bias"],
              "conv.weight": p["conv"]["kernel"].transpose(3, 2, 0, 1), "conv.bias": p["conv"]["bias"],
              "conv_1d.weight": p["conv_1d"]["kernel"].transpose(2, 1, 0),
              "bn.weight": p["bn"]["scale"], "bn.bias": p["bn"]["bias"],
              "bn.running_mean": stats["bn"]["mean"], "bn.running_var": stats["bn"]["var"],
              "to_heads.weight": p["to_heads"]["kernel"].reshape(8, 6).T, "to_heads.bias": p["to_heads"]["bias"].reshape(6)}
    for module in ("attention", "bare"):
        for name in ("query", "key", "value"):
            result[f"{module}.{name}.weight"] = p[module][name]["kernel"].reshape(8, 8).T
        result[f"{module}.out.weight"] = p[module]["out"]["kernel"].reshape(8, 8).T
    for name in ("query", "key", "value"):
        result[f"attention.{name}.bias"] = p["attention"][name]["bias"].reshape(8)
    result["attention.out.bias"] = p["attention"]["out"]["bias"]
    return {name: np.ascontiguousarray(value) for name, value in result.items()}


def attention(x, t, module):
    def linear(value, name):
        return torch.nn.functional.linear(value, t[f"{module}.{name}.weight"], t.get(f"{module}.{name}.bias"))
    q, k, v = (linear(x, name).unflatten(-1, (2, 4)).transpose(1, 2) for name in ("query", "key", "value"))
    return linear(torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2), "out")


def check_layers(tensors, ids, x, outputs):
    f, t = torch.nn.functional, {name: torch.tensor(value) for name, value in tensors.items()}
    words = f.embedding(torch.tensor(np.asarray(ids)), t["words.weight"])
    image = f.conv2d(torch.tensor(np.asarray(x)).permute(0, 3, 1, 2), t["conv.weight"], t["conv.bias"])
    image = f.batch_norm(image, t["bn.running_mean"], t["bn.running_var"], t["bn.weight"], t["bn.bias"])
    dense = f.linear(words, t["dense.weight"], t["dense.bias"])
    results = (words, image.permute(0, 2, 3, 1), f.conv1d(words.transpose(1, 2), t["conv_1d.weight"]).transpose(1, 2),
               attention(words, t, "attention"), attention(words, t, "bare"),
               f.linear(words, t["to_heads.weight"], t["to_heads.bias"]).unflatten(-1, (2, 3)),
               f.layer_norm(dense, (5,), t["norm.weight"], t["norm.bias"], 1e-6))
    for got, want in zip(results, outputs, strict=True):
        np.testing.assert_allclose(got.numpy(), np.asarray(want), rtol=1e-4, atol=1e-5)


def write(name, tree, tensors):
    (FOLDER / f"{name}.msgpack").write_bytes(serialization.msgpack_serialize(serialization.to_state_dict(tree)))
    save_file(tensors, FOLDER / f"{name}.msgpack.torch.safetensors")


jax.config.update("jax_default_matmul_precision", "highest")
ids, x = jnp.arange(10).reshape(2, 5), jax.random.normal(jax.random.key(1), (2, 5, 4, 3))
variables = randomized(Layers().init(jax.random.key(0), ids, x))
tensors = expected(variables)
check_layers(tensors, ids, x, Layers().apply(variables, ids, x))
write("flax_layers", variables, tensors)

config = BertConfig(vocab_size=19, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
                    max_position_embeddings=12, type_vocab_size=2)
torch.manual_seed(0)
model = BertForMaskedLM(config)
tree = {}
for name, value in model.state_dict().items():  # any tree of these names and shapes would do
    if name in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids"):
        continue
    *path, last = name.split(".")
    last = {"weight": "embedding" if "embeddings." in name and value.ndim == 2 else "kernel" if value.ndim == 2 else "scale"}.get(last, last)
    node = tree
    for key in path:
        node = node.setdefault(key, {})
    node[last] = np.random.default_rng(len(name)).standard_normal(value.shape[::-1] if last == "kernel" else value.shape).astype(np.float32)
loaded = load_flax_weights_in_pytorch_model(model, tree)
write("flax_bert", tree, {name: value.numpy().copy() for name, value in loaded.state_dict().items()
                          if name not in ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "bert.embeddings.position_ids")})
