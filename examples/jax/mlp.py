"""A Flax MLP: AQT against aqt_native, the same losses to the bit."""

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


class Mlp(nn.Module):
    config: object
    width: int

    @nn.compact
    def __call__(self, x):
        dot_general = functools.partial(aqt_flax.AqtDotGeneral, self.config)
        for _ in range(2):
            x = nn.relu(nn.Dense(self.width, dot_general_cls=dot_general, use_bias=False)(x))
        return nn.Dense(10, dot_general_cls=dot_general, use_bias=False)(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    digits = jnp.asarray(rng.standard_normal((10, 784)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 10, arguments.steps * arguments.rows).reshape(arguments.steps, -1))

    def batches(step):
        noise = jax.random.normal(jax.random.PRNGKey(1000 + step), (arguments.rows, 784))
        return digits[labels[step]] + 2 * noise, labels[step]

    config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8)
    configs = (("AQT", config), ("aqt_native", aqt_native.accelerate(config)))  # the one line
    return compare.report(functools.partial(Mlp, width=arguments.width), configs, batches, arguments.steps, 0)


if __name__ == "__main__":
    sys.exit(main())
