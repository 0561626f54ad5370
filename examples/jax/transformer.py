"""A small Flax encoder: AQT against aqt_native, the same losses to the bit."""

import argparse
import functools
import sys

from aqt.jax.v2 import config as aqt_config
from aqt.jax.v2.flax import aqt_flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import aqt_native
import compare


class Attention(nn.Module):
    config: object
    heads: int

    @nn.compact
    def __call__(self, x):
        dense = functools.partial(nn.Dense, use_bias=False,
                                  dot_general_cls=functools.partial(aqt_flax.AqtDotGeneral, self.config))
        einsum = functools.partial(aqt_flax.AqtEinsum, self.config)
        split = lambda y: y.reshape(*y.shape[:-1], self.heads, -1)
        query, key, value = (split(dense(x.shape[-1], name=name)(x)) for name in ("query", "key", "value"))
        scores = einsum(name="scores")("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1]).astype(np.float32)
        mixed = einsum(name="mix")("bhqk,bkhd->bqhd", nn.softmax(scores), value)
        return dense(x.shape[-1], name="out")(mixed.reshape(x.shape))


class Encoder(nn.Module):
    config: object
    width: int
    heads: int = 4
    blocks: int = 2

    @nn.compact
    def __call__(self, tokens):
        dense = functools.partial(nn.Dense, use_bias=False,
                                  dot_general_cls=functools.partial(aqt_flax.AqtDotGeneral, self.config))
        x = nn.Embed(64, self.width)(tokens)
        for _ in range(self.blocks):
            x = x + Attention(self.config, self.heads)(nn.LayerNorm()(x))
            y = nn.gelu(dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + dense(self.width)(y)
        return dense(10)(x.mean(axis=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    tokens = jnp.asarray(rng.integers(0, 64, (arguments.steps, arguments.rows, arguments.length)))
    labels = tokens[:, :, 0] % 10

    config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8)
    configs = (("AQT", config), ("aqt_native", aqt_native.accelerate(config)))  # the one line
    make = functools.partial(Encoder, width=arguments.width)
    return compare.report(make, configs, lambda step: (tokens[step], labels[step]), arguments.steps, 0)


if __name__ == "__main__":
    sys.exit(main())
