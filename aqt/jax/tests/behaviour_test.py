"""What a user of aqt_native relies on besides the bits of single contractions.

    PYTHONPATH=aqt/jax python aqt/jax/tests/behaviour_test.py

Needs aqtp and flax. AQT runs op by op; where a float sum is involved, only aqt_native is compared with itself.
"""

import dataclasses
import functools
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import unittest
import warnings

from aqt.jax.v2 import config as aqt_config
from aqt.jax.v2 import utils
from aqt.jax.v2.flax import aqt_flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import aqt_native
from aqt_native import _library
import comparing

MATMUL = (((1,), (0,)), ((), ()))


def repository():
    return pathlib.Path(__file__).resolve().parents[3]


def normal(seed, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32).astype(dtype)


def accelerate(config):
    return aqt_native.accelerate(config, arithmetic=comparing.arithmetic())


def with_gradients(dot_general, lhs, rhs, g):
    out, vjp = jax.vjp(lambda l, r: dot_general(l, r, MATMUL), lhs, rhs)
    return (out, *vjp(g))


class Case(unittest.TestCase):

    def same(self, got, want):
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), got, want)


class Vmap(Case):

    def setUp(self):
        self.config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=False)
        self.noisy = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8)
        self.arrays = normal(1, (16, 32, 24)), normal(2, (16, 24, 20)), normal(3, (16, 32, 20))

    def test_a_batch_is_that_of_aqt(self):
        ours, aqt = (jax.vmap(functools.partial(with_gradients, c)) for c in (accelerate(self.config), self.config))
        self.same(ours(*self.arrays), aqt(*self.arrays))

    def test_an_operand_without_the_axis(self):
        lhs, rhs, g = self.arrays
        ours, aqt = (jax.vmap(functools.partial(with_gradients, c), (0, None, 0))
                     for c in (accelerate(self.config), self.config))
        self.same(ours(lhs, rhs[0], g), aqt(lhs, rhs[0], g))

    def test_two_axes(self):
        arrays = [x.reshape(4, 4, *x.shape[1:]) for x in self.arrays]
        ours, aqt = (jax.vmap(jax.vmap(functools.partial(with_gradients, c)))
                     for c in (accelerate(self.config), self.config))
        self.same(ours(*arrays), aqt(*arrays))

    def test_per_tensor_scales_are_per_entry(self):
        config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=False)
        config.fwd.dg_quantizer.lhs.calib_shared_axes = "per_tensor"
        ours, aqt = (jax.vmap(functools.partial(with_gradients, c)) for c in (accelerate(config), config))
        self.same(ours(*self.arrays), aqt(*self.arrays))

    def test_one_key_for_all_entries_and_one_for_each(self):
        key = jax.random.PRNGKey(0)
        keys = jax.random.split(key, 16)

        def run(config, axis, keys):
            one = lambda l, r, g, k: with_gradients(aqt_config.set_context(config, k, None), l, r, g)
            return jax.vmap(one, (0, 0, 0, axis))(*self.arrays, keys)

        for axis, keys in ((None, key), (0, keys)):
            self.same(run(accelerate(self.noisy), axis, keys), run(self.noisy, axis, keys))

    def test_sixteen_products_are_one_call(self):
        dot_general = aqt_native.from_textproto(aqt_native.to_textproto(self.config))
        lhs, rhs = normal(1, (16, 128, 64)), normal(2, (16, 64, 128))
        text = jax.jit(jax.vmap(lambda l, r: dot_general(l, r, MATMUL))).lower(lhs, rhs).as_text()
        self.assertEqual(text.count("custom_call @aqt_jax_forward"), 1)
        self.assertNotIn("while", text)


class Transformations(Case):

    def setUp(self):
        config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=False)
        self.ways = (accelerate(config), aqt_native.from_textproto(aqt_native.to_textproto(config)))
        self.lhs, self.rhs, self.g = normal(1, (5, 8)), normal(2, (8, 6)), normal(3, (5, 6))

    def test_gradients_of_gradients_are_refused_by_name(self):
        for way in self.ways:
            loss = lambda x, way=way: way(x, self.rhs, MATMUL).sum()
            with self.assertRaisesRegex(aqt_native.NotSupportedError, "quantized contraction cannot be differentiated"):
                jax.grad(lambda x: jax.grad(loss)(x).sum())(self.lhs)

    def test_unused_gradients_are_not_computed(self):
        for way in self.ways:
            grad = jax.jit(jax.grad(lambda x, way=way: way(x, self.rhs, MATMUL).sum()))
            text = grad.lower(self.lhs).compile().as_text()
            self.assertEqual(text.count('custom_call_target="aqt_jax_gradient"'), 1)
            self.assertEqual(text.count('custom_call_target="aqt_jax_quantize"'), 0)

    def test_scan_and_remat(self):
        for way in self.ways:
            want = way(self.lhs, self.rhs, MATMUL)
            _, got = jax.lax.scan(lambda c, x, way=way: (c, way(x, self.rhs, MATMUL)), 0, self.lhs[None])
            self.same(got[0], want)
            loss = lambda x, way=way: way(x, self.rhs, MATMUL).sum()
            self.same(jax.grad(jax.checkpoint(loss))(self.lhs), jax.grad(loss)(self.lhs))

    def test_keys_of_both_kinds_and_layouts(self):
        config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8)
        raw, typed = jax.random.PRNGKey(7), jax.random.key(7)
        before = jax.config.jax_threefry_partitionable
        try:
            for partitionable in (False, True):
                jax.config.update("jax_threefry_partitionable", partitionable)
                ours = [with_gradients(aqt_config.set_context(accelerate(config), key, None), self.lhs, self.rhs, self.g)
                        for key in (raw, typed)]
                want = with_gradients(aqt_config.set_context(config, raw, None), self.lhs, self.rhs, self.g)
                self.same(ours[0], want)
                self.same(ours[1], want)
        finally:
            jax.config.update("jax_threefry_partitionable", before)

    def test_a_missing_key_is_named(self):
        config = accelerate(aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8))
        with self.assertRaisesRegex(ValueError, "dlhs.lhs rounds stochastically, but there is no key"):
            with_gradients(config, self.lhs, self.rhs, self.g)
        with self.assertRaisesRegex(aqt_native.NotSupportedError, "generator"):
            own = aqt_native.from_textproto(aqt_native.to_textproto(aqt_config.fully_quantized()))
            with_gradients(own.set_context(jax.random.key(0, impl="rbg")), self.lhs, self.rhs, self.g)

    def test_wrong_arguments_are_named(self):
        for way in self.ways:
            with self.assertRaisesRegex(TypeError, "lhs is float32 and rhs is bfloat16"):
                way(self.lhs, self.rhs.astype(jnp.bfloat16), MATMUL)
            with self.assertRaisesRegex(aqt_native.NotSupportedError, "precision"):
                way(self.lhs, self.rhs, MATMUL, precision="highest")
            with self.assertRaisesRegex(aqt_native.NotSupportedError, r"\[5,8\]"):
                way(self.lhs, self.rhs, (((0,), (0,)), ((), ())))
            for dims in (None, ((1,), (0,)), (((0.5,), (0,)), ((), ()))):
                with self.assertRaisesRegex(TypeError, r"dimension_numbers is .*, expected \(\(lhs_contracting"):
                    way(self.lhs, self.rhs, dims)
        own = aqt_native.from_textproto('schema: 1 base: "fully_quantized_int8"')
        for key in (3, "key", jnp.zeros(2), jax.random.split(jax.random.PRNGKey(0), 2)):
            with self.assertRaisesRegex(TypeError, "the key is .*, expected one of jax.random.key or jax.random.PRNGKey"):
                with_gradients(own.set_context(key), self.lhs, self.rhs, self.g)
        with self.assertRaisesRegex(TypeError, "textproto is None, expected a text"):
            aqt_native.from_textproto(None)
        with self.assertRaisesRegex(ValueError, 'arithmetic is \'xla\', expected "" .* or "ieee"'):
            aqt_native.from_textproto("schema: 1", arithmetic="xla")
        with self.assertRaisesRegex(aqt_native.NotSupportedError, 'no field "nothing"; expected "original", "qwix"'):
            aqt_native.from_textproto("schema: 1", compat="nothing")

    def test_one_result_beside_a_concatenation(self):
        # JAX 0.4.35 would end the process without the workaround of _library.handler.
        own = aqt_native.from_textproto('schema: 1 base: "fully_quantized_int8"')
        x = self.lhs.at[0, 0].set(jnp.nan).at[1, 1].set(-0.0)
        run = lambda x, y, w: own(jnp.concatenate([x, y]), w, MATMUL)
        self.same(jax.jit(run)(x, self.lhs, self.rhs), run(x, self.lhs, self.rhs))

    def test_another_key_is_another_static_argument(self):
        own = aqt_native.from_textproto(aqt_native.to_textproto(aqt_config.fully_quantized()))
        step = jax.jit(lambda dot_general: with_gradients(dot_general, self.lhs, self.rhs, self.g)[1], static_argnums=0)
        a, b = (own.set_context(jax.random.PRNGKey(seed)) for seed in (1, 2))
        self.assertFalse(np.array_equal(step(a), step(b)))
        self.assertEqual(own, aqt_native.from_textproto(own.config))
        self.assertEqual(hash(own), hash(aqt_native.from_textproto(own.config)))


class Configurations(Case):

    def test_what_is_refused_is_named(self):
        config = aqt_config.config_v4()
        config.fwd.dg_accumulator_dtype = jnp.int16
        with self.assertRaisesRegex(aqt_native.NotSupportedError, "fwd.dg_accumulator_dtype is int16"):
            aqt_native.accelerate(config)
        config = aqt_config.config_v4()
        config.dlhs.dg_quantizer.lhs.numerics.noise_fn = lambda shape, key: jnp.zeros(shape)
        with self.assertRaisesRegex(aqt_native.NotSupportedError, "dlhs.dg_quantizer.lhs.numerics.noise_fn"):
            aqt_native.accelerate(config)
        for field, value, shown in (("calib_shared_axes", "per_tensor", "per_tensor"), ("scale_dtype", jnp.bfloat16, "bfloat16")):
            config = aqt_config.config_v4(fwd_mid_alpha_both=0.5)
            aqt_native.accelerate(config)
            setattr(config.fwd.dg_quantizer.rhs_mid, field, value)
            with self.assertRaisesRegex(aqt_native.NotSupportedError, f"fwd.dg_quantizer.rhs_mid.{field} is {shown}"):
                aqt_native.accelerate(config)
        with self.assertRaisesRegex(aqt_native.NotSupportedError, "1:"):
            aqt_native.from_textproto("schema: 1 fwd { colour: 1 }")

    def test_fallback_is_aqt_and_says_so_once(self):
        config = aqt_config.config_v4()
        config.fwd.dg_accumulator_dtype = jnp.int16
        config.fwd.dg_quantizer.lhs.numerics.bits = 2
        config.fwd.dg_quantizer.rhs.numerics.bits = 2
        lhs, rhs = normal(1, (5, 8)), normal(2, (8, 6))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                ours = aqt_native.accelerate(config, fallback=True)
        self.assertEqual(len([w for w in caught if "fallback=True" in str(w.message)]), 1)
        self.same(ours(lhs, rhs, MATMUL), config(lhs, rhs, MATMUL))

    def test_fallback_for_a_shape(self):
        config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=False)
        # Long enough that a sum of int32 could overflow, which this library refuses.
        arrays = normal(1, (2, 140000)), normal(2, (140000, 3)), normal(3, (2, 3))
        with self.assertRaisesRegex(aqt_native.NotSupportedError, "overflow"):
            aqt_native.accelerate(config)(*arrays[:2], MATMUL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = aqt_native.accelerate(config, fallback=True)
            self.same(ours(*arrays[:2], MATMUL), config(*arrays[:2], MATMUL))
            self.same(with_gradients(ours, *arrays), with_gradients(config, *arrays))

    def test_setters_work_on_the_result(self):
        aqt = aqt_config.config_v4(fwd_bits=8, dlhs_bits=None, drhs_bits=None)
        ours = accelerate(aqt)
        for config in (aqt, ours):
            aqt_config.set_bits(config, 4, 4, None, None, None, None)
            config.fwd.dg_quantizer.rhs.calib_shared_axes = "per_tensor"
        lhs, rhs = normal(1, (5, 8)), normal(2, (8, 6))
        self.same(ours(lhs, rhs, MATMUL), aqt(lhs, rhs, MATMUL))


class Model(nn.Module):
    config: object
    mode: object = utils.QuantMode.TRAIN

    @nn.compact
    def __call__(self, x):
        freeze = {"use_legacy_freezer": False}
        dense = functools.partial(aqt_flax.AqtDotGeneral, self.config, rhs_quant_mode=self.mode,
                                  rhs_freeze_mode=aqt_flax.FreezerMode.CALIBRATION_AND_VALUE, **freeze)
        x = nn.relu(nn.Dense(24, dot_general_cls=dense)(x))
        w = self.param("w", nn.initializers.normal(), (24, 12))
        einsum = aqt_flax.AqtEinsum(self.config, lhs_quant_mode=self.mode,
                                    lhs_freeze_mode=aqt_flax.FreezerMode.CALIBRATION_AND_VALUE, **freeze)
        x = einsum("bc,ab->ac", w, x)  # AQT exchanges the operands
        return nn.Dense(6, dot_general_cls=dense)(x)


class Flax(Case):

    def setUp(self):
        self.config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8)
        self.x, self.key = normal(1, (16, 20)), jax.random.PRNGKey(1)
        self.params = Model(self.config).init(self.key, self.x)

    def apply(self, config, mode, variables, **kwargs):
        return Model(config, mode).apply(variables, self.x, rngs={"params": self.key}, **kwargs)

    def test_training(self):
        def run(config):
            loss = lambda p: (self.apply(config, utils.QuantMode.TRAIN, p) ** 2).sum()
            return jax.value_and_grad(loss)(self.params)

        ours = accelerate(self.config)
        self.same(run(ours), run(self.config))

    def test_freezing_and_serving(self):
        frozen = [self.apply(config, utils.QuantMode.CONVERT, self.params, mutable=True)[1]["aqt"]
                  for config in (accelerate(self.config), self.config)]
        self.assertEqual(*(jax.tree.structure(tree) for tree in frozen))
        self.same(*frozen)
        served = [self.apply(config, utils.QuantMode.SERVE, {**self.params, "aqt": frozen[0]})
                  for config in (accelerate(self.config), self.config)]
        self.same(*served)
        self.same(served[0], self.apply(accelerate(self.config), utils.QuantMode.TRAIN, self.params))

    def test_convert_gives_what_the_freezer_stores(self):
        for config in (self.config, aqt_config.config_v4(fwd_bits=4)):
            frozen = self.apply(config, utils.QuantMode.CONVERT, self.params, mutable=True)[1]["aqt"]
            stored = frozen["Dense_0"]["AqtDotGeneral_0"]["qrhs"]["frozen"]
            converted = aqt_native.convert(self.params["params"], accelerate(config))["Dense_0"]["kernel"]
            self.same(converted.qvalue, stored.qvalue.astype(jnp.int8))
            self.same(converted.scales[0], stored.scale[0])
            self.same(converted.dequantize(), stored.dequant())
            own = aqt_native.from_textproto(aqt_native.to_textproto(config), arithmetic=comparing.arithmetic())
            kernel = self.params["params"]["Dense_0"]["kernel"]
            self.same(own(self.x, converted, MATMUL), own(self.x, kernel, MATMUL))


class Packed(Case):
    """Weights that convert has packed for the kernels: the results of the same weights without panels."""

    def setUp(self):
        self.own = aqt_native.from_textproto('schema: 1 base: "fully_quantized_int8"')
        self.x, self.kernel = normal(1, (5, 7, 64)), normal(2, (64, 33))
        self.packed, self.plain = self.converted(True), self.converted(False)

    def converted(self, packed, **kwargs):
        return aqt_native.convert({"kernel": self.kernel}, self.own, packed=packed, **kwargs)["kernel"]

    def test_calls_are_the_same(self):
        self.assertIsNotNone(self.packed.panels)
        self.assertIsNone(self.plain.panels)
        self.same(self.packed.dequantize(), self.plain.dequantize())
        dims = (((2,), (0,)), ((), ()))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            want = self.own(self.x, self.plain, dims)
            self.same(self.own(self.x, self.packed, dims), want)
            self.same(jax.jit(lambda x, w: self.own(x, w, dims))(self.x, self.packed), want)
            self.same(jax.jit(lambda x: self.own(x, self.packed, dims))(self.x), want)
            self.same(jax.vmap(lambda x: self.own(x, self.packed, MATMUL))(self.x), want)
            self.same(jax.lax.map(lambda x: self.own(x, self.packed, MATMUL), self.x), want)
            self.same(self.own(self.x, pickle.loads(pickle.dumps(self.packed)), dims), want)

    def test_mistakes_are_named(self):
        for axes in (0, "0", (0.5,)):
            with self.assertRaisesRegex(TypeError, r"contracting\['kernel'\] is .*, expected a list of axes such as \(0,\)"):
                self.converted(True, contracting={"kernel": axes})
        with self.assertRaisesRegex(ValueError, r"the pattern '\(', which is no regular expression"):
            self.converted(True, contracting={"(": (0,)})
        with self.assertRaisesRegex(ValueError, "kernel has 2 axes, but its contracting axes are \\[2\\]"):
            self.converted(True, contracting={"kernel": (2,)})

    def test_converted_weights_can_be_packed_later(self):
        again = aqt_native.convert({"kernel": self.plain}, self.own, packed=True)["kernel"]
        self.same(again.panels, self.packed.panels)
        self.assertEqual(again.packed_as, self.packed.packed_as)
        self.assertIs(aqt_native.convert({"kernel": self.plain}, self.own)["kernel"], self.plain)

    def test_panels_are_not_packed_again(self):
        text = jax.jit(lambda x, w: self.own(x, w, MATMUL)).lower(self.x[0], self.packed).as_text()
        self.assertIn('rhs = "panels:1:f32[64,33]"', text)

    def test_layers_of_a_scan(self):
        kernels = normal(3, (5, 64, 33))
        make = lambda packed: jax.vmap(lambda w: aqt_native.convert({"kernel": w}, self.own, packed=packed)["kernel"])
        run = lambda weights: jax.lax.scan(lambda _, one: (0, self.own(*one, MATMUL)), 0, (self.x, weights))[1]
        self.same(run(make(True)(kernels)), run(make(False)(kernels)))
        batch = jax.vmap(lambda x, w: self.own(x, w, MATMUL))
        self.same(batch(self.x, make(True)(kernels)), batch(self.x, make(False)(kernels)))

    def test_panels_of_another_contraction_are_left_out(self):
        turned = self.converted(True, contracting={"kernel": (1,)})
        x, dims = normal(4, (7, 33)), (((1,), (1,)), ((), ()))
        self.same(self.own(x, turned, dims), self.own(x, self.kernel, dims))
        other = dataclasses.replace(self.packed, panels=turned.panels, packed_as=turned.packed_as)
        with self.assertWarnsRegex(UserWarning, r"packed as .* but this contraction reads .* in each call; convert it"):
            self.same(self.own(self.x[0], other, MATMUL), self.own(self.x[0], self.plain, MATMUL))


class Programs(Case):

    def test_saved_programs_give_their_results(self):
        files = sorted((repository() / "aqt").glob("*/saved/testdata/*_v1.aqtprog"))
        self.assertTrue(files)
        for file in files:
            try:
                program, results = aqt_native.Program(file), aqt_native.Program(str(file).replace("_v1", "_v1_results"))
            except aqt_native.NotSupportedError as error:
                self.assertLess(jax.__version_info__, (0, 5), error)
                self.assertRegex(str(error), "the output '.*' of .* is .*64; set JAX_ENABLE_X64=1")
                continue
            got, want = jax.jit(lambda program=program: program({}))(), results({})
            self.assertEqual(set(got), set(want))
            for name, array in got.items():
                self.assertEqual(np.asarray(array).tobytes(), np.asarray(want[name]).tobytes(), (file.name, name))

    def test_mistakes_are_named(self):
        file = repository() / "aqt" / "graph" / "saved" / "testdata" / "every_op_v1.aqtprog"
        with self.assertRaisesRegex(ValueError, "has no input 'x'"):
            aqt_native.Program(file)({"x": 1})
        with self.assertRaisesRegex(FileNotFoundError, "no_such_file"):
            aqt_native.Program("no_such_file")


class Process(Case):

    def setUp(self):
        config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=False)
        self.arrays = normal(1, (32, 24)), normal(2, (24, 20)), normal(3, (32, 20))
        self.functions = [jax.jit(functools.partial(with_gradients, accelerate(c)))
                          for c in (config, aqt_config.config_v4(fwd_bits=4, dlhs_bits=None, drhs_bits=None))]

    def test_two_functions_from_four_threads(self):
        want = [function(*self.arrays) for function in self.functions]
        different = []

        def work(first):
            for i in range(50):
                which = (first + i) % 2
                got = self.functions[which](*self.arrays)
                if not all(np.array_equal(a, b) for a, b in zip(got, want[which])):
                    different.append(which)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(different, [])

    def test_an_error_leaves_the_process_usable(self):
        want = self.functions[0](*self.arrays)
        call = _library.ffi().ffi_call("aqt_jax_forward", [jax.ShapeDtypeStruct((2, 2), jnp.float32)],
                                       vmap_method="sequential")
        with self.assertRaisesRegex(Exception, "INVALID_ARGUMENT: the call has no configuration"):
            call(*self.arrays[:2], spec="x", passes="forward", lhs="float", rhs="float")[0].block_until_ready()
        self.same(self.functions[0](*self.arrays), want)

    def test_memory_does_not_grow(self):
        def calls(count):
            for _ in range(count):
                self.functions[0](*self.arrays)[0].block_until_ready()

        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

        calls(1000)
        before = resident()
        calls(10000)
        # 10,000 leaks of the smallest result (2.5 KB) would be 25 MB.
        self.assertLess(resident() - before, 5 << 20)

    def test_order_of_imports(self):
        use = ("d = aqt_native.from_textproto('schema: 1 base: \"config_v4\"'); import jax.numpy as jnp; "
               "x = jnp.ones((4, 4)); d(x, x, (((1,), (0,)), ((), ()))).block_until_ready(); ")
        for order in ("import jax, google.protobuf.message, aqt_native; ", "import aqt_native, jax; ",
                      "import aqt_native; aqt_native._library = __import__('aqt_native._library')._library; "
                      "aqt_native._library.library(); import google.protobuf.message, jax; "):
            if "protobuf" in order:
                try:
                    import google.protobuf.message  # pylint: disable=import-outside-toplevel,unused-import
                except ImportError:
                    continue
            subprocess.run([sys.executable, "-c", order + use], check=True)


if __name__ == "__main__":
    unittest.main()
