"""The recorded cases of AQT (tests/golden/aqt) through Python: dot_general, stochastic rounding, serving, training.

    PYTHONPATH=aqt/jax python aqt/jax/tests/recorded_test.py

Values are compared as the case says: exactly, or within its tolerance.
"""

import copy
import functools
import itertools
import json
import pathlib
import unittest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

import aqt_native
from aqt_native import _calls
from aqt_native._dot_general import Options, split_key
from aqt_native._spec import Spec
import recorded_config

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "aqt"
MATMUL = (((1,), (0,)), ((), ()))
STORAGE = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16, "I8": np.int8, "I32": np.int32,
           "U32": np.uint32, "U8": np.uint8, "U16": np.uint16, "I64": np.int64, "F8_E4M3": ml_dtypes.float8_e4m3fn,
           "F8_E5M2": ml_dtypes.float8_e5m2, "BOOL": np.bool_}


@functools.lru_cache(maxsize=None)
def tensors(family):
    content = (GOLDEN / f"{family}.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    header.pop("__metadata__", None)
    return {name: np.frombuffer(content[8 + size:][slice(*entry["data_offsets"])], STORAGE[entry["dtype"]]).reshape(
        entry["shape"]) for name, entry in header.items()}


@functools.lru_cache(maxsize=None)
def cases(family):
    manifest = json.loads((GOLDEN / "manifest.json").read_text(encoding="utf-8"))
    return [case for case in manifest["cases"] if case["family"] == family]


def inputs_of(case):
    return {name: jnp.asarray(tensors(case["family"])[entry["key"]]) for name, entry in case["inputs"].items()}


def expected_of(case, name):
    return tensors(case["family"])[case["expected"][name]["key"]]


def with_observed_scale_dtypes(case):
    """The configuration with the scale dtypes that AQT really used: its setter for them has no effect."""
    config = copy.deepcopy(case["config"])
    for product, side in itertools.product(("fwd", "dlhs", "drhs"), ("lhs", "rhs")):
        scale = case["expected"].get(f"{product}.{side}.scale")
        if scale is not None and config[product][side]["calibration"]:
            config[product][side]["calibration"]["scale_dtype"] = scale["dtype"]
    return config


def run(dot_general, inputs, dims):
    out, vjp = jax.vjp(lambda l, r: dot_general(l, r, dims), inputs["lhs"], inputs["rhs"])
    return (out, *vjp(inputs["g"]))


class Recorded(unittest.TestCase):

    def check(self, case, name, got):
        if name not in case["expected"]:
            return
        tolerance = case["expected"][name]["tol"]
        want = expected_of(case, name)
        a, b = np.asarray(got).astype(np.float64), want.astype(np.float64)
        self.assertEqual(a.shape, b.shape, (case["name"], name))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if tolerance["kind"] == "info":
            return
        if tolerance["kind"] == "rtol":
            with np.errstate(invalid="ignore"):
                same |= np.abs(a - b) <= float(tolerance.get("atol", 0)) + float(tolerance["value"]) * np.abs(b)
        self.assertTrue(same.all(), f"{case['name']} {name}: {np.count_nonzero(~same)} of {same.size} differ")

    def check_dot_generals(self, family, features):
        count = 0
        for case in cases(family):
            if case["feature"] not in features:
                continue
            with self.subTest(case["name"]):
                inputs = inputs_of(case)
                numbers = case["config"]["dimension_numbers"]
                dims = ((numbers["lhs_contracting"], numbers["rhs_contracting"]),
                        (numbers["lhs_batch"], numbers["rhs_batch"]))
                text = recorded_config.dot_general(with_observed_scale_dtypes(case), inputs)
                dot_general = aqt_native.from_textproto(text)
                if "key" in inputs:
                    dot_general = dot_general.set_context(inputs["key"])
                for way in (run, jax.jit(run, static_argnums=(0, 2))):
                    names = ("out", "dlhs", "drhs")
                    frozen = tuple(tuple(tuple(axes) for axes in pair) for pair in dims)
                    for name, got in zip(names, way(_hashable(dot_general), inputs, frozen)):
                        self.check(case, name, got)
            count += 1
        self.assertGreater(count, 0)

    def test_dot_general(self):
        self.check_dot_generals("dot_general", {"dot_general"})

    def test_stochastic_rounding_of_contractions(self):
        self.check_dot_generals("stochastic_rounding", {"dot_general_sr"})

    def test_keys_of_operands(self):
        for case in cases("stochastic_rounding"):
            if case["feature"] != "set_context":
                continue
            names = ("fwd.lhs", "fwd.rhs", "dlhs.lhs", "dlhs.rhs", "drhs.lhs", "drhs.rhs")
            for name, key in zip(names, split_key(inputs_of(case)["key"])):
                self.check(case, name, key)

    def test_stochastic_rounding_of_tensors(self):
        for case in cases("stochastic_rounding"):
            if case["feature"] != "quantize_sr":
                continue
            with self.subTest(case["name"]):
                inputs = inputs_of(case)
                axes = case["config"]["calibration_axes"]
                text = recorded_config.quantizer(case["config"], inputs, axes)
                config = ('schema: 1 fwd { dg_accumulator_dtype: "none" rhs { dequant_mode: DEQUANT_MODE_THIS_INPUT '
                          f"quantizer {{ {text} }} }} }}")
                x = inputs["x"]
                spec = Spec(config, ((1,), (0,), (), ()))
                row = _calls.aval_text((1, x.shape[0]), x.dtype)
                qvalue, scale = _calls.quantize(spec, "rhs", x, row, inputs["key"])
                self.check(case, "qvalue", qvalue)
                self.check(case, "scale", scale)

    def test_serving(self):
        for case in cases("serving"):
            with self.subTest(case["name"]):
                inputs = inputs_of(case)
                text = recorded_config.dot_general(case["config"], inputs)
                for layer in range(len(case["config"]["features"])):
                    self.check_served_layer(case, text, inputs, layer)

    def check_served_layer(self, case, text, inputs, layer):
        calibrated = case["feature"] == "ptq_calibrate_convert_serve"
        rhs = f"frozen{layer}.rhs" if calibrated else f"frozen{layer}"
        if not calibrated and f"{rhs}.qvalue" in case["expected"]:
            weights = aqt_native.convert({"kernel": inputs[f"kernel{layer}"]}, aqt_native.from_textproto(text))["kernel"]
            self.check(case, f"{rhs}.qvalue", weights.qvalue)
            self.check(case, f"{rhs}.scale", weights.scales[0])
        x = jnp.asarray(expected_of(case, f"layer_in{layer}"))
        qvalue, scale = (jnp.asarray(expected_of(case, f"{rhs}.{part}")) for part in ("qvalue", "scale"))
        lhs = _calls.Given(x, None, (jnp.asarray(expected_of(case, f"frozen{layer}.lhs.scale")),) if calibrated else ())
        spec = Options().spec(text, MATMUL, 2, 2)
        out, = _calls.forward(spec, lhs, _calls.Given(None, qvalue, (scale,)), x.dtype, (None, None), False)
        self.check(case, f"layer_out{layer}", out + inputs[f"bias{layer}"])

    def test_training(self):
        for case in cases("training"):
            with self.subTest(case["name"]):
                self.check_training(case)

    def check_training(self, case):
        inputs = inputs_of(case)
        config = case["config"]["dot_general"]
        if config is None:
            return  # AQT's float run
        dot_general = aqt_native.from_textproto(recorded_config.dot_general(config, inputs))
        weights = [(inputs[f"w{i}"], inputs[f"b{i}"]) for i in range(3)]
        batch = inputs["batch_indices"][0]
        keys = inputs["keys"][0]

        def logits(weights):
            x = inputs["x"][batch]
            for i, (w, b) in enumerate(weights):
                x = dot_general.set_context(keys[i])(x, w, MATMUL) + b
                x = jax.nn.relu(x) if i < 2 else x
            return x

        out, vjp = jax.vjp(logits, weights)
        self.check(case, "step0.logits", out)
        gradients, = vjp(jnp.asarray(expected_of(case, "step0.dlogits")))
        for i, (dw, _) in enumerate(gradients):
            self.check(case, f"step0.dw{i}", dw)


def _hashable(dot_general):
    return functools.partial(_call, dot_general) if dot_general.key is not None else dot_general


def _call(dot_general, *arguments):
    return dot_general(*arguments)


if __name__ == "__main__":
    jax.config.update("jax_threefry_partitionable", True)  # as recorded; the default before JAX 0.5 is False
    unittest.main()
