#!/usr/bin/env python3
"""Records ten training steps of the language model of examples/transformer from JAX.

  python record.py FOLDER

writes initial.safetensors (parameters and batches) and steps.safetensors (loss, logits and all gradients of every step).
Everything is computed in f64 and stored as f32, rounded once. Recorded with jax 0.10.2 and numpy 2.4.6 on a CPU. The model is
implemented again in plain jax.numpy, from the formulas in the headers of aqt/nn.
"""
import json
import pathlib
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

LAYERS, WIDTH, HEADS, LENGTH, BATCH, BYTES, STEPS, RATE = 2, 8, 2, 6, 3, 256, 10, 0.5


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        dtype = {"float32": "F32", "int32": "I32"}[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def initial_params():
    rng = np.random.default_rng(2026)
    head = WIDTH // HEADS
    shapes = {"positions": (LENGTH, WIDTH), "bytes/embedding": (BYTES, WIDTH), "logits/kernel": (WIDTH, BYTES)}
    for norm in ["norm"] + [f"layer{i}/{n}" for i in range(LAYERS) for n in ("norm1", "norm2")]:
        shapes[f"{norm}/scale"] = shapes[f"{norm}/bias"] = (WIDTH,)
    for i in range(LAYERS):
        for name in ("query", "key", "value"):
            shapes[f"layer{i}/attention/{name}/kernel"] = (WIDTH, HEADS, head)
            shapes[f"layer{i}/attention/{name}/bias"] = (HEADS, head)
        shapes[f"layer{i}/attention/out/kernel"] = (HEADS, head, WIDTH)
        shapes[f"layer{i}/attention/out/bias"] = (WIDTH,)
        shapes[f"layer{i}/fc1/kernel"], shapes[f"layer{i}/fc1/bias"] = (WIDTH, 4 * WIDTH), (4 * WIDTH,)
        shapes[f"layer{i}/fc2/kernel"], shapes[f"layer{i}/fc2/bias"] = (4 * WIDTH, WIDTH), (WIDTH,)
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in sorted(shapes.items())}


def layer_norm(params, name, x):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-6) * params[f"{name}/scale"] + params[f"{name}/bias"]


def attention(params, name, x):
    def projected(which):
        return jnp.einsum("bld,dhf->blhf", x, params[f"{name}/{which}/kernel"]) + params[f"{name}/{which}/bias"]

    query, key, value = projected("query"), projected("key"), projected("value")
    scores = jnp.einsum("bqhf,bkhf->bhqk", query, key) / np.sqrt(query.shape[-1])
    scores = jnp.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, np.finfo(np.float64).min)
    mixed = jnp.einsum("bhqk,bkhf->bqhf", jax.nn.softmax(scores, -1), value)
    return jnp.einsum("bqhf,hfd->bqd", mixed, params[f"{name}/out/kernel"]) + params[f"{name}/out/bias"]


def dense(params, name, x):
    return x @ params[f"{name}/kernel"] + params[f"{name}/bias"]


def logits_of(params, tokens):
    x = params["bytes/embedding"][tokens] + params["positions"]
    for i in range(LAYERS):
        x = x + attention(params, f"layer{i}/attention", layer_norm(params, f"layer{i}/norm1", x))
        hidden = dense(params, f"layer{i}/fc1", layer_norm(params, f"layer{i}/norm2", x))
        x = x + dense(params, f"layer{i}/fc2", jax.nn.gelu(hidden, approximate=False))
    return layer_norm(params, "norm", x) @ params["logits/kernel"]


def loss_of(params, tokens, targets):
    logits = logits_of(params, tokens)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), targets[..., None], -1)
    return -jnp.mean(picked), logits


def main():
    folder = pathlib.Path(sys.argv[1])
    params = initial_params()
    rng = np.random.default_rng(7)
    initial = {f"param/{name}": value for name, value in params.items()}
    steps = {}
    params = {name: jnp.asarray(value, jnp.float64) for name, value in params.items()}
    for step in range(STEPS):
        text = rng.integers(0, BYTES, (BATCH, LENGTH + 1)).astype(np.int32)
        tokens, targets = text[:, :-1], text[:, 1:]
        initial[f"data/{step}/bytes"], initial[f"data/{step}/targets"] = tokens, targets
        (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(params, tokens, targets)
        steps[f"data/{step}/loss"] = np.asarray(loss, np.float32)
        steps[f"data/{step}/logits"] = np.asarray(logits, np.float32)
        for name, grad in grads.items():
            steps[f"data/{step}/{name}"] = np.asarray(grad, np.float32)
        params = {name: value - RATE * grads[name] for name, value in params.items()}
    write_safetensors(folder / "initial.safetensors", initial)
    write_safetensors(folder / "steps.safetensors", steps)


main()
