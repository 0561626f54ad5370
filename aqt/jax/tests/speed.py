"""A training step of AQT and of aqt_native, both jitted, in turns in one process: the shortest of several rounds.

    PYTHONPATH=aqt/jax python aqt/jax/tests/speed.py 512x1024x4096 512x4096x1024

A step is the product and both gradients, int8 everywhere, rounding to nearest and stochastically. If qwix is installed,
its step stands beside. `taskset -c 0` gives one thread, AQT_MAX_TARGET=avx2 caps this library's instructions, and
XLA_FLAGS=--xla_cpu_max_isa=AVX2 those of XLA. --call times a small product, as XLA's float product and as ours.
"""

import argparse
import os
import time

from aqt.jax.v2 import config as aqt_config
import jax
import jax.numpy as jnp
import numpy as np

import aqt_native
import aqt_native.numpy

_DIMS = (((1,), (0,)), ((), ()))


def shortest(functions, arguments, rounds):
    """The shortest time of each function in seconds. They take turns."""
    for function in functions:
        jax.block_until_ready(function(*arguments))
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def step(contraction):
    """A jitted step of (lhs, rhs, g, key). `contraction` is a function of a key that gives a dot_general."""

    def run(lhs, rhs, g, key):
        out, vjp = jax.vjp(lambda a, b: contraction(key)(a, b, _DIMS), lhs, rhs)
        return (out, *vjp(g))

    return jax.jit(run)


def aqt_steps(noise):
    config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=noise)
    return [("AQT", step(lambda key: aqt_config.set_context(config, key, None))),
            ("aqt_native", step(lambda key: aqt_config.set_context(aqt_native.accelerate(config), key, None)))]


def qwix_steps(lhs, rhs, g, key, noise):
    """Steps of Qwix and of from_qwix; none without qwix."""
    try:
        import qwix  # pylint: disable=import-outside-toplevel
        import qwix_cases  # pylint: disable=import-outside-toplevel
        from qwix._src.core import dot_general_qt  # pylint: disable=import-outside-toplevel
    except ImportError:
        return []
    rule = qwix.QtRule(weight_qtype="int8", act_qtype="int8", bwd_qtype="int8",
                       bwd_stochastic_rounding="uniform" if noise else None)
    config = qwix_cases.config_of(qwix_cases.Case(rule, "rhs", _DIMS, lhs, rhs, g, key))
    rules = aqt_native.from_qwix([rule])
    return [("Qwix", step(lambda _: lambda a, b, dims: dot_general_qt.dot_general_qt(a, b, dims, config))),
            ("from_qwix", step(lambda key: rules.dot_general(weight="rhs", key=key)))]


def float_step():
    return ("f32", step(lambda _: jax.lax.dot_general))


def report_steps(shape, rounds):
    m, k, n = (int(extent) for extent in shape.split("x"))
    random = np.random.default_rng(0)
    lhs, rhs, g = (jnp.asarray(random.standard_normal(s), jnp.float32) for s in ((m, k), (k, n), (m, n)))
    key = jax.random.PRNGKey(0)
    for noise in (False, True):
        steps = aqt_steps(noise) + qwix_steps(lhs, rhs, g, key, noise) + [float_step()]
        names, functions = zip(*steps)
        times = dict(zip(names, shortest(functions, (lhs, rhs, g, key), rounds)))
        line = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in times.items())
        ratios = f"AQT / aqt_native {times['AQT'] / times['aqt_native']:.2f}"
        if "Qwix" in times:
            ratios += f", Qwix / from_qwix {times['Qwix'] / times['from_qwix']:.2f}"
        print(f"{shape} {'stochastic' if noise else 'nearest'}: {line}; {ratios}", flush=True)


def report_call(rounds):
    contraction = aqt_native.accelerate(aqt_config.fully_quantized(use_stochastic_rounding=False))
    for m, k, n in ((1, 8, 8), (8, 64, 64)):
        functions = [jax.jit(lambda a, b: contraction(a, b, _DIMS)), jax.jit(lambda a, b: jax.lax.dot_general(a, b, _DIMS))]
        ours, floats = shortest(functions, (jnp.ones((m, k)), jnp.ones((k, n))), rounds)
        lhs, rhs = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        plan = aqt_native.numpy.DotGeneral(aqt_native.to_textproto(contraction), lhs, rhs, forward_only=True)
        direct, = shortest([lambda a, b: plan(a, b)], (lhs, rhs), rounds)
        print(f"call {m}x{k}x{n}: aqt_native {1e6 * ours:.1f} us, XLA's f32 {1e6 * floats:.1f} us, "
              f"NumPy bindings {1e6 * direct:.1f} us", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("shapes", nargs="*", help="MxKxN of steps")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each step")
    parser.add_argument("--call", action="store_true", help="time a small call, too")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}, {aqt_native.numpy.simd_target()}, {len(os.sched_getaffinity(0))} threads, "
          f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '')}", flush=True)
    for shape in arguments.shapes:
        report_steps(shape, arguments.rounds)
    if arguments.call:
        report_call(1000 * arguments.rounds)


if __name__ == "__main__":
    main()
