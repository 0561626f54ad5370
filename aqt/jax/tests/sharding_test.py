"""Sharded arrays: on four devices the bits of one, computed in parts where that is possible.

    PYTHONPATH=aqt/jax python aqt/jax/tests/sharding_test.py

Needs aqtp. The four devices are parts of the CPU. Where this JAX has two partitioners, both are tested.
"""

import functools
import inspect
import os
import unittest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

from aqt.jax.v2 import aqt_dot_general
from aqt.jax.v2 import config as aqt_config
import jax
from jax.experimental.custom_partitioning import custom_partitioning
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import numpy as np

import aqt_native

MATMUL = (((1,), (0,)), ((), ()))
ATTENTION = (((3,), (3,)), ((0, 2), (0, 2)))  # bqhd, bkhd -> bhqk
MESH = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("x", "y"))


def partitioners():
    """Values of the flag that chooses Shardy; None for JAX that has no rules for Shardy yet."""
    has_rules = "sharding_rule" in inspect.signature(custom_partitioning.def_partition).parameters
    return (False, True) if has_rules else (None,)


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32).astype(dtype)


def quantized(noise=False, **kwargs):
    return aqt_config.fully_quantized(**{"fwd_bits": 8, "bwd_bits": 8, "use_stochastic_rounding": noise, **kwargs})


def step(dot_general, dims):
    """Forward, both gradients."""

    def run(lhs, rhs, g):
        out, vjp = jax.vjp(lambda l, r: dot_general(l, r, dims), lhs, rhs)
        return (out, *vjp(g))

    return run


class Sharding(unittest.TestCase):

    def on_each_partitioner(self, check):
        for shardy in partitioners():
            with self.subTest(shardy=shardy):
                if shardy is None:
                    check()
                    continue
                before = jax.config.jax_use_shardy_partitioner
                try:
                    jax.config.update("jax_use_shardy_partitioner", shardy)
                    check()
                finally:
                    jax.config.update("jax_use_shardy_partitioner", before)

    def check(self, dot_general, arrays, specs, dims=MATMUL):
        """Forward and gradients of sharded arrays have the bits of whole ones."""
        want = jax.jit(step(dot_general, dims))(*arrays)

        def sharded():
            placed = [jax.device_put(x, NamedSharding(MESH, spec)) for x, spec in zip(arrays, specs)]
            with MESH:
                got = jax.jit(step(dot_general, dims))(*placed)
            for a, b in zip(got, want):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

        self.on_each_partitioner(sharded)

    def ways(self, config, key=None):
        own = aqt_native.from_textproto(aqt_native.to_textproto(config))
        ours = aqt_native.accelerate(config)
        return (own, ours) if key is None else (own.set_context(key), aqt_config.set_context(ours, key, None))

    def matrices(self, dtype=jnp.float32):
        return normal(1, (16, 24), dtype), normal(2, (24, 12), dtype), normal(3, (16, 12), dtype)

    def test_rows_columns_and_both(self):
        for specs in ((P("x"), P(), P("x")), (P(("x", "y")), P(), P(("x", "y"))), (P(), P(None, "y"), P(None, "y")),
                      (P("x"), P(None, "y"), P("x", "y")), (P("x"), P(None, "x"), P("x"))):
            for way in self.ways(quantized()):
                self.check(way, self.matrices(), specs)

    def test_packed_weights(self):
        x, kernel, _ = self.matrices()
        own = aqt_native.from_textproto(aqt_native.to_textproto(quantized()))
        packed = aqt_native.convert({"kernel": kernel}, own, packed=True)["kernel"]
        want = own(x, kernel, MATMUL)

        def sharded():
            for spec in (P("x"), P(("x", "y")), P(None, None)):
                with MESH:
                    placed = jax.device_put(x, NamedSharding(MESH, spec))
                    got = jax.jit(lambda x, w: own(x, w, MATMUL))(placed, jax.device_put(packed, NamedSharding(MESH, P())))
                np.testing.assert_array_equal(np.asarray(got), np.asarray(want))

        self.on_each_partitioner(sharded)

    def test_noise_is_that_of_the_whole_array(self):
        for way in self.ways(quantized(noise=True), jax.random.PRNGKey(5)):
            self.check(way, self.matrices(), (P("x"), P(None, "y"), P("x", "y")))

    def test_other_configurations(self):
        per_tensor = quantized()
        per_tensor.fwd.dg_quantizer.lhs.calib_shared_axes = "per_tensor"
        per_tensor.drhs.dg_quantizer.lhs.calib_shared_axes = "per_tensor"
        mid = quantized(use_fwd_quant=False)
        aqt_config.set_use_mid_quant(mid, 0.5, aqt_config.SKIP, aqt_config.SKIP)
        local = quantized(use_fwd_quant=False)
        aqt_config.set_local_aqt(local, aqt_config.SKIP, *[aqt_dot_general.LocalAqt(contraction_axis_shard_count=2)] * 2)
        constant = quantized()
        aqt_config.set_constant_calibration(constant, 2.5)
        for config in (per_tensor, mid, local, constant, quantized(fwd_bits=4, bwd_bits=None),
                       quantized(use_fwd_quant=False)):
            self.check(self.ways(config)[1], self.matrices(), (P("x"), P(None, "y"), P("x", "y")))
        self.check(self.ways(quantized())[0], self.matrices(jnp.bfloat16), (P("x"), P(None, "y"), P("x", "y")))

    def test_batch_axes(self):
        arrays = normal(1, (4, 6, 2, 8)), normal(2, (4, 10, 2, 8)), normal(3, (4, 2, 6, 10))
        specs = (P("x", None, "y"), P("x", None, "y"), P("x", "y"))
        for way in self.ways(quantized()):
            self.check(way, arrays, specs, ATTENTION)
        self.check(self.ways(quantized())[0], arrays, (P("x", "y"), P("x"), P("x", None, "y")), ATTENTION)

    def test_a_part_of_one_row(self):
        # With a single scale XLA divides: a part of one row would have other bits.
        arrays = normal(1, (4, 24)), normal(2, (24, 2)), normal(3, (4, 2))
        self.check(self.ways(quantized())[0], arrays, (P(("x", "y")), P(None), P(("x", "y"))))
        self.check(self.ways(quantized())[0], arrays, (P(None), P(None, "x"), P(None, "x")))

    def test_rows_that_cannot_be_shared_out_evenly(self):
        dot_general = self.ways(quantized())[0]
        lhs, rhs, _ = (x[:7] for x in self.matrices())
        rhs = self.matrices()[1]
        split = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(("x", "y"))))

        def check():
            with MESH:
                got = jax.jit(lambda l, r: -dot_general(split(-l), r, MATMUL))(lhs, rhs)
            np.testing.assert_array_equal(np.asarray(got), -np.asarray(dot_general(-lhs, rhs, MATMUL)))

        self.on_each_partitioner(check)

    def test_vmap(self):
        dot_general = self.ways(quantized())[0]
        arrays = normal(1, (4, 6, 8)), normal(2, (4, 8, 10)), normal(3, (4, 6, 10))
        want = jax.jit(jax.vmap(step(dot_general, MATMUL)))(*arrays)

        def check():
            placed = [jax.device_put(x, NamedSharding(MESH, P("x"))) for x in arrays]
            with MESH:
                got = jax.jit(jax.vmap(step(dot_general, MATMUL)))(*placed)
            for a, b in zip(got, want):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

        self.on_each_partitioner(check)

    def test_served_weights(self):
        dot_general = self.ways(quantized())[0]
        lhs, rhs, _ = self.matrices()
        weights = aqt_native.convert({"kernel": rhs}, dot_general)["kernel"]
        want = dot_general(lhs, weights, MATMUL)

        def check():
            qvalue = jax.device_put(weights.qvalue, NamedSharding(MESH, P(None, "y")))
            placed = aqt_native.QuantizedArray(qvalue, weights.scales, weights.dtype)
            with MESH:
                run = jax.jit(lambda l, w: dot_general(l, w, MATMUL))
                x = jax.device_put(lhs, NamedSharding(MESH, P("x")))
                self.assertNotIn("all-gather", run.lower(x, placed).compile().as_text())
                np.testing.assert_array_equal(np.asarray(run(x, placed)), np.asarray(want))

        self.on_each_partitioner(check)

    def test_parts_are_computed_where_they_are(self):
        # Rows of lhs and columns of rhs: the forward product moves no data between devices, and neither does the
        # gradient of lhs for rows alone.
        lhs, rhs, g = self.matrices()
        for way in self.ways(quantized()):
            forward = lambda l, r, way=way: way(l, r, MATMUL)
            gradient = lambda l, r, g, way=way: jax.vjp(lambda l: way(l, r, MATMUL), l)[1](g)[0]

            def check(forward=forward, gradient=gradient):
                put = lambda x, *spec: jax.device_put(x, NamedSharding(MESH, P(*spec)))
                with MESH:
                    both = jax.jit(forward).lower(put(lhs, "x"), put(rhs, None, "y")).compile()
                    rows = jax.jit(gradient).lower(put(lhs, "x"), put(rhs), put(g, "x")).compile()
                for compiled in (both, rows):
                    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
                        self.assertNotIn(collective, compiled.as_text())
                self.assertIn("f32[8,6]", both.as_text())

            self.on_each_partitioner(check)

    def test_a_split_contraction_is_refused_by_name(self):
        lhs, rhs, _ = self.matrices()
        for specs, name, axis in (((P(None, "x"), P()), "lhs", 1), ((P(), P("y")), "rhs", 0)):

            def check(specs=specs, name=name, axis=axis):
                placed = [jax.device_put(x, NamedSharding(MESH, spec)) for x, spec in zip((lhs, rhs), specs)]
                dot_general = self.ways(quantized())[0]
                with MESH, self.assertRaisesRegex(Exception, f"{name} is split along its contracting axis {axis}"):
                    jax.jit(functools.partial(dot_general, dimension_numbers=MATMUL))(*placed)
                # The process stays usable, and the remedy works.
                whole = lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P()))
                with MESH:
                    got = jax.jit(lambda l, r: dot_general(whole(l), whole(r), MATMUL))(*placed)
                np.testing.assert_array_equal(np.asarray(got), np.asarray(dot_general(lhs, rhs, MATMUL)))

            self.on_each_partitioner(check)

    @unittest.skipUnless(hasattr(jax, "set_mesh"), "this JAX has no explicit axes")
    def test_explicit_axes(self):
        lhs, rhs, _ = self.matrices()
        dot_general = self.ways(quantized())[0]
        want = np.asarray(dot_general(lhs, rhs, MATMUL))
        explicit = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
        with jax.set_mesh(explicit):
            got = jax.jit(lambda l, r: dot_general(l, r, MATMUL))(jax.device_put(lhs, P("x")), rhs)
        np.testing.assert_array_equal(np.asarray(got), want)

    def test_without_a_mesh_in_the_context(self):
        lhs, rhs, _ = self.matrices()
        dot_general = self.ways(quantized())[0]
        want = np.asarray(dot_general(lhs, rhs, MATMUL))

        def check():
            x = jax.device_put(lhs, NamedSharding(MESH, P("x")))
            w = jax.device_put(rhs, NamedSharding(MESH, P(None, "y")))
            np.testing.assert_array_equal(np.asarray(dot_general(x, w, MATMUL)), want)
            np.testing.assert_array_equal(np.asarray(jax.jit(lambda l, r: dot_general(l, r, MATMUL))(x, w)), want)

        self.on_each_partitioner(check)


if __name__ == "__main__":
    unittest.main()
