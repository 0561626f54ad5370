#!/usr/bin/env python3
"""Writes trees with flax.serialization, and beside each NAME the arrays in it as NAME.safetensors.

Usage: make_flax.py FOLDER   (aqtp 0.9.0, flax 0.12.8, jax 0.10.2, ml_dtypes 0.6.0, safetensors 0.8.0)
"""
import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from aqt.jax.v2 import config as aqt_config
from aqt.jax.v2 import utils as aqt_utils
from aqt.jax.v2.flax import aqt_flax
from flax import linen as nn
from flax import serialization
from safetensors.numpy import save_file

FOLDER = pathlib.Path(sys.argv[1])


def flat(tree, name=""):
    if hasattr(tree, "items"):
        result = {}
        for key, value in tree.items():
            result.update(flat(value, f"{name}.{key}" if name else str(key)))
        return result
    if isinstance(tree, (list, tuple)):
        return flat({str(i): item for i, item in enumerate(tree)}, name)
    if not isinstance(tree, (np.ndarray, np.generic, jax.Array)):
        return {}
    array = np.asarray(tree)
    small = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8}.get(array.dtype.name)
    array = array if small is None else array.astype(small)
    return {name: np.ascontiguousarray(array).reshape(array.shape)}


def write(name, tree):
    (FOLDER / name).write_bytes(serialization.msgpack_serialize(serialization.to_state_dict(tree)))
    save_file(flat(serialization.to_state_dict(tree)), FOLDER / f"{name}.safetensors")


def frozen(bits, legacy, dtype=jnp.float32):
    """A model of three layers, two of them quantized, converted for serving."""
    def model(mode):
        dot_general = functools.partial(
            aqt_flax.AqtDotGeneral, aqt_config.dot_general_make(bits, bits), rhs_quant_mode=mode,
            rhs_freeze_mode=aqt_flax.FreezerMode.CALIBRATION_AND_VALUE, use_legacy_freezer=legacy)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                x = nn.relu(nn.Dense(6, dot_general_cls=dot_general, param_dtype=dtype)(x))
                x = nn.Dense(5, param_dtype=dtype)(x)
                return nn.Dense(3, use_bias=False, dot_general_cls=dot_general, param_dtype=dtype)(x)
        return Model()
    x = jax.random.normal(jax.random.key(0), (4, 8), dtype)
    variables = model(aqt_utils.QuantMode.TRAIN).init(jax.random.key(1), x)
    return model(aqt_utils.QuantMode.CONVERT).apply(variables, x, mutable=True, rngs={"params": jax.random.key(2)})[1]


rng = np.random.default_rng(3)
write("types.msgpack", {
    "f32": rng.standard_normal((2, 3), np.float32), "bf16": jnp.array([1, -2.5, 3], jnp.bfloat16), "i4": jnp.array([1, -2, 7, -8], jnp.int4),
    "u4": jnp.array([0, 15], jnp.uint4), "i2": jnp.array([-2, -1, 0, 1], jnp.int2), "e4m3": jnp.array([1, -448, .5], jnp.float8_e4m3fn),
    "e5m2": jnp.array([1, -2], jnp.float8_e5m2), "i8": np.array([-128, 127], np.int8), "scalar": np.float32(3.5), "empty": np.zeros((0, 4), np.float32),
    "bool": np.array([True, False]), "i64": np.arange(3), "u16": np.arange(300, 302, dtype=np.uint16), "f16": np.float16([1.5]), "complex": np.complex64([1 + 2j]),
    "nested": {"list": [np.ones(2, np.float32), np.zeros(1, np.int32)], "step": 7, "rate": .5, "name": "x", "none": None, "imaginary": 1 + 2j}})
serialization.MAX_CHUNK_SIZE = 40
write("chunked.msgpack", {"w": rng.standard_normal((5, 6), np.float32), "b": rng.standard_normal(33).astype(ml_dtypes.bfloat16), "small": np.ones(2, np.float32)})
serialization.MAX_CHUNK_SIZE = 2**30
for bits in (8, 4):
    write(f"frozen_int{bits}.msgpack", frozen(bits, legacy=False))
    write(f"frozen_legacy_int{bits}.msgpack", frozen(bits, legacy=True))
write("frozen_int8_bf16.msgpack", frozen(8, legacy=False, dtype=jnp.bfloat16))
