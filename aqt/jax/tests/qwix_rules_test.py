"""from_qwix: what rules become, and what is refused. Needs neither Qwix nor the library, but for the last class.

    PYTHONPATH=aqt/jax python aqt/jax/tests/qwix_rules_test.py
"""

import dataclasses
import os
import re
import unittest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aqt_native import _qwix
from aqt_native._errors import NotSupportedError
from aqt_native._qwix_rules import from_qwix


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """The fields of qwix.QtRule."""

    module_path: str = ".*"
    op_names: Any = ()
    weight_qtype: Any = None
    act_qtype: Any = None
    tile_size: Any = None
    act_static_scale: Any = None
    weight_calibration_method: str = "absmax"
    act_calibration_method: Any = None
    act_batch_axes: Any = (0,)
    bwd_qtype: Any = None
    bwd_calibration_method: str = "absmax"
    bwd_weight_grad_tile_size: Any = None
    disable_channelwise_axes: bool = False
    bwd_stochastic_rounding: Any = None
    channelwise_noise_axes: Any = (0,)
    additional_qt_config: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraRule(Rule):
    rank: int = 4


DENSE = _qwix.Operation("rhs", ((1,), (0,), (), ()), ((4, 512), (512, 8)))


def text(operation=DENSE, **fields):
    (rule,) = _qwix.read_rules([Rule(**fields)])
    return _qwix.contraction_text(rule, operation)


class RefusalTest(unittest.TestCase):
    def refused(self, what, operation=None, **fields):
        with self.assertRaisesRegex(NotSupportedError, re.escape(what)):
            (rule,) = _qwix.read_rules([Rule(**fields)])
            if operation is not None:
                _qwix.contraction_text(rule, operation)

    def test_each_names_rule_field_and_value(self):
        self.refused("rules[0].weight_qtype is 'nf4'", weight_qtype="nf4")
        self.refused("rules[0].act_qtype is 'mxfp8'", weight_qtype="int8", act_qtype="mxfp8")
        self.refused("rules[0].weight_qtype is 'float32'", weight_qtype=jnp.float32)
        self.refused("rules[0].weight_qtype is 'nonsense'", weight_qtype="nonsense")
        self.refused("rules[0].weight_calibration_method is 'minmax'", weight_calibration_method="minmax")
        self.refused("rules[0].act_calibration_method is 'fixed,-1,2'", act_calibration_method="fixed,-1,2")
        self.refused("rules[0].weight_calibration_method is 'percentile'", weight_calibration_method="percentile")
        self.refused("rules[0].weight_calibration_method is 'absmax,0'", weight_calibration_method="absmax,0")
        self.refused("rules[0].act_static_scale is True", act_qtype="int8", act_static_scale=True)
        self.refused("rules[0].bwd_stochastic_rounding is 'low_bit_uniform'", bwd_stochastic_rounding="low_bit_uniform")
        self.refused("rules[0].op_names is 'conv_general_dilated'", op_names=("conv_general_dilated",))
        self.refused("rules[0].additional_qt_config['sparsity_rule'] is", additional_qt_config={"sparsity_rule": 1})
        self.refused("rules[0].weight_qtype is 'int3'", weight_qtype="int3", bwd_qtype="int8")
        self.refused("rules[0].disable_channelwise_axes is True", weight_qtype="int8", tile_size=4,
                     disable_channelwise_axes=True)
        self.refused("rules[0].weight_calibration_method is 'fixed,1.0'", weight_qtype="float8_e4m3fn",
                     weight_calibration_method="fixed,1")
        self.refused("rules[0].tile_size is 1", DENSE, weight_qtype="int8", tile_size=1)
        with self.assertRaisesRegex(NotSupportedError, r"rules\[0\].rank is 4"):
            _qwix.read_rules([LoraRule(weight_qtype="int8")])

    def test_second_rule_is_named(self):
        with self.assertRaisesRegex(NotSupportedError, r"rules\[1\]"):
            _qwix.read_rules([Rule(weight_qtype="int8"), Rule(weight_qtype="nf4")])

    def test_errors_as_in_qwix(self):
        with self.assertRaisesRegex(ValueError, "tile_size is 100, but the axis has 512"):
            text(weight_qtype="int8", tile_size=100)
        with self.assertRaisesRegex(ValueError, "act_qtype is not"):
            _qwix.read_rules([Rule(act_static_scale=False)])
        with self.assertRaisesRegex(ValueError, "module_path"):
            _qwix.read_rules([Rule(module_path="(")])
        with self.assertRaisesRegex(ValueError, "expected 1"):
            _qwix.read_rules([Rule(weight_calibration_method="rms")])
        with self.assertRaises(TypeError):
            _qwix.read_rules(["int8"])
        with self.assertRaises(TypeError):
            _qwix.read_rules(Rule())


class TextTest(unittest.TestCase):
    def test_integers_on_both_sides_are_summed_as_integers(self):
        config = text(weight_qtype="int8", act_qtype=jnp.int4)
        self.assertIn('lhs { quantizer { int_symmetric { bits: 4 dtype: "s4" } abs_max {} } }', config)
        self.assertIn('dg_accumulator_dtype: "s32"', config)
        self.assertNotIn("THIS_INPUT", config)
        self.assertNotIn("dlhs", config)

    def test_weight_only_is_dequantized_first(self):
        config = text(weight_qtype="int8")
        self.assertIn("lhs {}", config)
        self.assertIn("DEQUANT_MODE_THIS_INPUT", config)
        self.assertNotIn("s32", config)

    def test_tiles(self):
        both = {"weight_qtype": "int8", "act_qtype": "int8"}
        self.assertIn("tile_size: 128", text(**both, tile_size=0.25))
        self.assertNotIn("THIS_INPUT", text(**both, tile_size=128))
        self.assertIn("THIS_INPUT", text(**both, tile_size=64))
        self.assertNotIn("tiling", text(**both, tile_size=512))
        self.assertNotIn("use_fwd_quant", text(**both, tile_size=128, bwd_qtype="int8"))
        self.assertIn("use_fwd_quant", text(**both, tile_size=512, bwd_qtype="int8"))

    def test_gradients_are_masked_where_a_calibration_clips(self):
        for method, masks in (("absmax", False), ("absmax,1.5", False), ("absmax,0.5", True), ("rms,2", True),
                              ("fixed,3", True), ("FIXED,-3,3", True)):
            config = text(weight_qtype="int8", weight_calibration_method=method)
            self.assertEqual("clip_gradient" in config, masks, method)
            off = text(weight_qtype="int8", weight_calibration_method=method,
                       additional_qt_config={"disable_gradient_clipping": True})
            self.assertNotIn("clip_gradient", off)

    def test_weight_on_the_left(self):
        config = text(DENSE._replace(weight="lhs"), weight_qtype="int4", act_qtype="int8")
        self.assertRegex(config, r"fwd { lhs { quantizer { int_symmetric { bits: 4")

    def test_noise_is_shared_but_along_the_named_axes(self):
        config = text(weight_qtype="int8", bwd_qtype="int8", bwd_stochastic_rounding="uniform")
        self.assertIn("noise { kind: NOISE_KIND_JAX_UNIFORM noise_sharing_axes: 1 }", config)

    def test_tiles_of_the_gradient_of_the_weight_only(self):
        config = text(DENSE._replace(shapes=((512, 4), (4, 8))), weight_qtype="int8", act_qtype="int8",
                      bwd_qtype="int8", bwd_weight_grad_tile_size=256)
        self.assertEqual(config.count("local_aqt { contraction_axis_shard_count: 2 }"), 1)
        self.assertIn("local_aqt", config[config.index("drhs"):])


class InjectTest(unittest.TestCase):
    def inject(self, *rules):
        return _qwix.inject_text(_qwix.read_rules(list(rules)))

    def test_equal_operands_need_one_rule(self):
        config = self.inject(Rule(module_path="a/.*", weight_qtype="int8", act_qtype="int8"), Rule(module_path="b"))
        self.assertEqual(config.count("rules {"), 2)
        self.assertIn('rules { name: "rules[1]" scope: "b" ops: "dot_general" ops: "einsum" keep: true }', config)
        self.assertNotIn("strict", config)
        self.assertIn("\ncompat { divide_by_scale: true ", config)

    def test_different_operands_need_three(self):
        config = self.inject(Rule(weight_qtype="int8"))
        self.assertEqual(config.count("rules {"), 3)
        self.assertIn("strict: false", config)

    def test_what_needs_shapes_is_refused(self):
        for fields in ({"tile_size": 0.5}, {"bwd_qtype": "int8", "bwd_weight_grad_tile_size": 128},
                       {"bwd_qtype": "int8", "bwd_stochastic_rounding": "uniform"}):
            with self.assertRaisesRegex(NotSupportedError, r"rules\[0\]"):
                self.inject(Rule(weight_qtype="int8", **fields))

    def test_patterns_that_re2_lacks_are_refused(self):
        for pattern in ("(?!a).*", "(?<=a)b", r"(a)\1", "a++", "(?>a)", "(?P<x>a)(?P=x)"):
            with self.assertRaisesRegex(NotSupportedError, "module_path"):
                self.inject(Rule(module_path=pattern, weight_qtype="int8"))
        self.assertIn(r'scope: "a\\.(b|c)\"d"', self.inject(Rule(module_path=r'a\.(b|c)"d', weight_qtype="int8")))


@unittest.skipUnless(os.environ.get("AQT_JAX_LIBRARY"), "AQT_JAX_LIBRARY is not set")
class RunTest(unittest.TestCase):
    def test_first_match_decides_and_unused_rules_are_reported(self):
        given = [Rule(module_path="a/.*", weight_qtype="int8", act_qtype="int8"), Rule(module_path="a/b"),
                 Rule(module_path="c", weight_qtype="int4", act_qtype="int8")]
        rules = from_qwix(given)
        x = jnp.asarray(np.random.default_rng(1).standard_normal((3, 8)), jnp.float32)
        w = jnp.asarray(np.random.default_rng(2).standard_normal((8, 5)), jnp.float32)
        dims = (((1,), (0,)), ((), ()))
        exact = x @ w
        quantized = rules.dot_general("a/b")(x, w, dims)
        self.assertFalse(np.array_equal(quantized, exact))
        self.assertTrue(np.array_equal(rules.dot_general("other")(x, w, dims), jax.lax.dot_general(x, w, dims)))
        self.assertEqual(rules.unused_rules(), (given[1], given[2]))

    def test_flax_layers_get_the_rule_of_their_path(self):
        from flax import linen as nn  # pylint: disable=import-outside-toplevel

        rules = from_qwix([Rule(module_path="Dense_1", weight_qtype="int8", act_qtype="int8", bwd_qtype="int8",
                                bwd_stochastic_rounding="uniform")])

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                x = nn.Dense(6, dot_general_cls=rules.dot_general_cls)(x)
                return nn.Dense(4, dot_general_cls=rules.dot_general_cls)(x)

        x = jnp.asarray(np.random.default_rng(1).standard_normal((3, 8)), jnp.float32)
        model = Model()
        params = model.init({"params": jax.random.key(0), "stochastic_rounding": jax.random.key(1)}, x)
        rngs = {"stochastic_rounding": jax.random.key(2)}
        gradient = jax.grad(lambda p: jnp.sum(model.apply(p, x, rngs=rngs) ** 2))(params)
        hidden = x @ params["params"]["Dense_0"]["kernel"]
        want = rules.dot_general("Dense_1")(hidden, params["params"]["Dense_1"]["kernel"], (((1,), (0,)), ((), ())))
        np.testing.assert_allclose(model.apply(params, x, rngs=rngs), want, rtol=1e-5)
        self.assertTrue(all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient)))
        self.assertEqual(rules.unused_rules(), ())

    def test_einsum_with_different_operands_is_refused(self):
        rules = from_qwix([Rule(weight_qtype="int4", act_qtype="int8")])
        x = jnp.ones((3, 8)), jnp.ones((8, 5))
        with self.assertRaisesRegex(NotSupportedError, "exchange"):
            jnp.einsum("ab,bc->ac", *x, _dot_general=rules.dot_general(op_name="einsum"))


if __name__ == "__main__":
    unittest.main()
