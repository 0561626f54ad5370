#!/usr/bin/env python3
"""Tests aqt_native.numpy: of the installed package, or of the source tree with AQT_LIBRARY (docs/python.md).

usage: aqt/jax/tests/numpy_test.py [unittest's arguments]
"""
import concurrent.futures
import gc
import importlib.util
import json
import os
import pathlib
import pickle
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[3]
if "AQT_LIBRARY" in os.environ:
    sys.path.insert(0, str(ROOT / "aqt" / "jax"))

import aqt_native.numpy as aqt  # noqa: E402  pylint: disable=wrong-import-position

HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None
if HAS_ML_DTYPES:
    import ml_dtypes
INT8 = "fully_quantized_int8"
MODELS = ROOT / "tests" / "golden" / "models"
F32 = np.float32


def random(shape, seed=0, dtype=F32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def write_checkpoint(path, tensors):
    """A safetensors file of float32 tensors."""
    header, data = {}, b""
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class LibraryTest(unittest.TestCase):
    def test_versions(self):
        self.assertRegex(aqt.version(), r"^\d+\.\d+\.\d+$")
        self.assertIn("scalar", aqt.supported_targets())
        self.assertTrue(aqt.simd_target())
        aqt.check_environment()

    def test_exceptions_are_also_those_of_python(self):
        for error, python in ((aqt.InvalidArgumentError, ValueError), (aqt.MissingError, FileNotFoundError),
                              (aqt.ExistsError, FileExistsError), (aqt.NotSupportedError, NotImplementedError),
                              (aqt.ResourceExhaustedError, MemoryError), (aqt.DataLossError, ValueError)):
            self.assertTrue(issubclass(error, aqt.AqtError) and issubclass(error, python))
            again = pickle.loads(pickle.dumps(error("what is wrong")))
            self.assertEqual((type(again), str(again)), (error, "what is wrong"))


class DotGeneralTest(unittest.TestCase):
    def test_a_float_product_is_that_of_numpy(self):
        x, w = np.arange(15, dtype=F32).reshape(5, 3), np.arange(6, dtype=F32).reshape(3, 2)
        plan = aqt.DotGeneral("default_unquantized", x, w)
        np.testing.assert_array_equal(plan(x, w), x @ w)  # small integers: exact
        self.assertEqual(plan.out, ((5, 2), np.dtype(F32)))

    def test_a_quantized_product_is_that_of_its_definition(self):
        x, w = random((7, 64), 1), random((64, 33), 2)
        def quantize(a, axis):
            # R(m / 127.5) as XLA computes it is m * (1 / 127.5); the quotient by the scale is a product with 1 / scale.
            scale = (np.abs(a).max(axis=axis, keepdims=True) * F32(1 / F32(127.5))).astype(F32)
            value = np.clip(a * (F32(1) / scale), -127.5 + 0.1, 127.5 - 0.1)
            return np.round(value).astype(np.int32), scale
        qx, sx = quantize(x, 1)
        qw, sw = quantize(w, 0)
        want = ((qx @ qw).astype(F32) * sx) * sw
        got = aqt.DotGeneral(INT8, x, w)(x, w)
        # At most one integer of a row may round the other way: half a step of each factor of a sum.
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=float(sx.max() * sw.max() * 127))
        self.assertLess(np.abs(got - x @ w).max(), 64 * 0.5 * (sx.max() * np.abs(w).max() + sw.max() * np.abs(x).max()))

    def test_strided_arrays_are_not_copied_and_give_the_same_bits(self):
        x, w = random((6, 40), 3), random((40, 24), 4)
        plan = aqt.DotGeneral(INT8, x, w)
        want = plan(x, w)
        wide = np.zeros((12, 80), F32)
        wide[::2, ::2] = x
        np.testing.assert_array_equal(plan(wide[::2, ::2], w), want)
        np.testing.assert_array_equal(plan(x, np.asfortranarray(w)), want)
        np.testing.assert_array_equal(plan(np.ascontiguousarray(x[::-1])[::-1], w), want)
        out = np.zeros((24, 6), F32).T
        self.assertIs(plan(x, w, out=out), out)
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(plan(np.broadcast_to(x[:1], x.shape), w)[5], want[0])

    def test_gradients(self):
        x, w, g = random((5, 32), 5), random((32, 16), 6), random((5, 16), 7)
        plan = aqt.DotGeneral("default_unquantized", x, w)
        y, residuals = plan.forward(x, w)
        np.testing.assert_array_equal(y, plan(x, w))
        dx, dw = plan.backward(g, residuals)
        np.testing.assert_allclose(dx, g @ w.T, rtol=1e-5, atol=1e-5)  # sums of 16 and 5 terms in another order
        np.testing.assert_allclose(dw, x.T @ g, rtol=1e-5, atol=1e-5)
        self.assertEqual([a is None for a in plan.backward(g, residuals, lhs=False)], [True, False])
        borrowed = aqt.Residuals(borrow=True)
        plan.forward(x, w, residuals=borrowed)
        self.assertEqual(borrowed.nbytes, 0)
        self.assertGreater(residuals.nbytes, 0)
        np.testing.assert_array_equal(plan.backward(g, borrowed)[0], dx)

    def test_keys(self):
        x, w, g = random((5, 32), 5), random((32, 16), 6), random((5, 16), 7)
        plan = aqt.DotGeneral(INT8, x, w)
        self.assertEqual((plan.forward_needs_key, plan.backward_needs_key), (False, True))
        _, residuals = plan.forward(x, w)
        with self.assertRaisesRegex(aqt.FailedPreconditionError, "draws random numbers: give a key"):
            plan.backward(g, residuals)
        a = plan.backward(g, residuals, key=7)[0]
        np.testing.assert_array_equal(a, plan.backward(g, residuals, key=np.array([0, 7], np.uint32))[0])
        self.assertTrue((a != plan.backward(g, residuals, key=8)[0]).any())
        original = aqt.DotGeneral(INT8, x, w, prng_layout="original")
        _, residuals = original.forward(x, w)
        self.assertTrue((a != original.backward(g, residuals, key=7)[0]).any())
        for key in (-1, 1 << 64, "7", np.zeros(2, np.int32), np.zeros(3, np.uint32)):
            with self.assertRaisesRegex(aqt.InvalidArgumentError, "key is "):
                plan.backward(g, residuals, key=key)

    def test_batch_axes_and_empty_arrays(self):
        x, w = random((3, 4, 5)), random((3, 5, 2))
        dims = (((2,), (1,)), ((0,), (0,)))
        plan = aqt.DotGeneral("default_unquantized", x, w, dims)
        np.testing.assert_allclose(plan(x, w), x @ w, rtol=1e-5, atol=1e-5)
        empty = aqt.DotGeneral("default_unquantized", ((0, 3), F32), ((3, 2), F32))
        self.assertEqual(empty(np.zeros((0, 3), F32), np.zeros((3, 2), F32)).shape, (0, 2))

    def test_prepared_operands(self):
        x, w = random((6, 64), 8), random((64, 32), 9)
        plan = aqt.DotGeneral(INT8, x, w)
        want = plan(x, w)
        prepared = plan.prepare("rhs", w)
        np.testing.assert_array_equal(plan(x, prepared), want)
        stored = prepared.quantized
        self.assertEqual((stored.qvalue.dtype, stored.scales[0].shape), (np.int8, (1, 32)))
        del prepared
        gc.collect()
        again = plan.prepare("rhs", pickle.loads(pickle.dumps(stored)))
        np.testing.assert_array_equal(plan(x, again), want)
        np.testing.assert_array_equal(plan(x, again.without_values()), want)
        np.testing.assert_array_equal(plan(x, pickle.loads(pickle.dumps(again))), want)
        scales = plan.prepare("lhs", aqt.QuantizedTensor(scales=plan.prepare("lhs", x).quantized.scales))
        np.testing.assert_array_equal(plan((x, scales), again), want)
        with self.assertRaises(TypeError):
            pickle.dumps(again.without_values())
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "side is 'left'"):
            plan.prepare("left", x)

    def test_statistics_are_updated_in_place(self):
        x, w = random((6, 16), 1), random((16, 8), 2)
        plan = aqt.DotGeneral("fp8_delayed", x, w)
        slots = plan.forward_state
        self.assertTrue(slots and all(slot.operand.startswith("fwd.") for slot in slots))
        state = [slot.initial.copy() for slot in slots]
        plan(x, w, state=state)
        got = plan(x, w, state=state)
        # Factors in e4m3fn are off by at most 1/16 each.
        self.assertLess(np.abs(got - x @ w).max(), 0.14 * (np.abs(x) @ np.abs(w)).max())
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "read-only"):
            plan(x, w, state=[slot.initial for slot in slots])
        with self.assertRaises(aqt.FailedPreconditionError):
            plan(x, w)

    def test_threads_and_executors_give_the_same_bits(self):
        x, w = random((128, 256), 1), random((256, 96), 2)
        plan = aqt.DotGeneral(INT8, x, w)
        want = plan(x, w)
        with aqt.Executor(3) as executor:
            self.assertEqual(executor.threads, 3)
            np.testing.assert_array_equal(plan(x, w, executor=executor), want)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for got in pool.map(lambda _: plan(x, w, executor=executor), range(16)):
                    np.testing.assert_array_equal(got, want)
        with self.assertRaisesRegex(ValueError, "closed"):
            plan(x, w, executor=executor)
        with self.assertRaisesRegex(TypeError, "cannot be pickled"):
            pickle.dumps(aqt.Executor(1))

    def test_plans_can_be_pickled(self):
        x, w = random((4, 32), 1), random((32, 8), 2)
        plan = aqt.DotGeneral(INT8, x, w, compat="original", weight_only="float", forward_only=True)
        again = pickle.loads(pickle.dumps(plan))
        np.testing.assert_array_equal(again(x, w), plan(x, w))
        self.assertEqual((again.config, repr(again)), (plan.config, repr(plan)))
        _, residuals = aqt.DotGeneral(INT8, x, w).forward(x, w)
        with self.assertRaises(TypeError):
            pickle.dumps(residuals)

    def test_errors(self):
        x, w = random((4, 3)), random((3, 2))
        plan = aqt.DotGeneral("default_unquantized", x, w)
        cases = {
            "DotGeneral: rhs is f32\\[4,3\\]": lambda: plan(x, x),
            "expected one of bool": lambda: plan(x.astype(complex), w),
            "bytes in the order of another machine": lambda: plan(x.astype(">f4"), w),
            "out and lhs overlap": lambda: plan(x, w, out=x[:, :2]),
            "out is read-only": lambda: plan(x, w, out=np.broadcast_to(F32(0), (4, 2))),
            "out: two elements may share memory": lambda: plan(
                x, w, out=np.lib.stride_tricks.as_strided(np.zeros(8, F32), (4, 2), (4, 4))),
            "config:1:12: |config:1:19: ": lambda: aqt.DotGeneral("schema: 1 nonsense: 1", x, w),
            "no preset \"nonsense\"": lambda: aqt.DotGeneral("nonsense", x, w),
            "dimension_numbers is ": lambda: aqt.DotGeneral("config_v4", x, w, ((1,), (0,))),
            "has 1 contracting axes of lhs and 0 of rhs": lambda: aqt.DotGeneral("config_v4", x, w, (((1,), ()), ((), ()))),
            "prng_layout is 'new'": lambda: aqt.DotGeneral("config_v4", x, w, prng_layout="new"),
            "options.compat has no field": lambda: aqt.DotGeneral("config_v4", x, w, compat="nothing"),
            "options.target": lambda: aqt.DotGeneral("config_v4", x, w, target="z80"),
            "mode is 'now'": lambda: plan(x, w, mode="now"),
            "config has a NUL": lambda: aqt.DotGeneral("schema: 1\0", x, w),
        }
        for message, call in cases.items():
            with self.subTest(message), self.assertRaisesRegex(aqt.InvalidArgumentError, message):
                call()
        with self.assertRaisesRegex(TypeError, "expected an array or"):
            aqt.DotGeneral("config_v4", 7, w)
        with self.assertRaisesRegex(TypeError, "out is list"):
            plan(x, w, out=[])
        with self.assertRaisesRegex(TypeError, "config is None, expected the name of a preset, or a textproto"):
            aqt.DotGeneral(None, x, w)
        masked = np.ma.masked_array(x, mask=x > 0)
        with self.assertRaisesRegex(aqt.InvalidArgumentError, r"lhs is a masked array, whose mask .* use lhs.filled\(VALUE\)"):
            plan(masked, w)

    def test_unaligned_arrays_are_copied(self):
        x, w = random((4, 3)), random((3, 2))
        memory = np.zeros(x.nbytes + 1, np.uint8)
        odd = np.frombuffer(memory.data, F32, x.size, offset=1).reshape(x.shape)
        self.assertFalse(odd.flags.aligned)
        np.copyto(odd, x)
        plan = aqt.DotGeneral("default_unquantized", x, w)
        np.testing.assert_array_equal(plan(odd, w), plan(x, w))


class QuantizerTest(unittest.TestCase):
    def test_values(self):
        x = np.array([[1, -2, 127], [4, 5.4, -254]], F32)
        quantized = aqt.Quantizer("int_symmetric { bits: 8 preserve_max_val: true } abs_max {}").quantize(x, 1)
        np.testing.assert_array_equal(quantized.scales[0], [[1], [2]])
        np.testing.assert_array_equal(quantized.qvalue, [[1, -2, 127], [2, 3, -127]])
        np.testing.assert_array_equal(quantized.dequantize(), [[1, -2, 127], [4, 6, -254]])
        out = np.zeros((2, 3), F32)
        self.assertIs(quantized.dequantize(out), out)
        self.assertEqual(quantized.biases, ())
        with self.assertRaises(ValueError):
            quantized.qvalue[0, 0] = 1

    def test_views_outlive_the_tensor(self):
        qvalue = aqt.Quantizer("int_symmetric { bits: 8 } abs_max {}").quantize(random((64, 64)), [0, 1]).qvalue
        gc.collect()
        self.assertEqual(np.abs(qvalue).max(), 127)

    def test_parts(self):
        tensor = aqt.QuantizedTensor(np.array([[2, 4]], np.int8), [np.array([[0.5]], F32)], [np.array([[1]], F32)])
        np.testing.assert_array_equal(tensor.dequantize(), [[0, 1]])
        again = pickle.loads(pickle.dumps(tensor))
        np.testing.assert_array_equal(again.dequantize(), [[0, 1]])
        self.assertIsNone(aqt.QuantizedTensor(scales=[np.array([[0.5]], F32)]).qvalue)
        self.assertIn("no qvalue", repr(aqt.QuantizedTensor(scales=[np.array([[0.5]], F32)])))
        with self.assertRaises(aqt.FailedPreconditionError):
            aqt.QuantizedTensor(scales=[np.array([[0.5]], F32)]).dequantize()
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "neither a qvalue nor a scale"):
            aqt.QuantizedTensor()

    def test_int4_as_int8(self):
        values = np.array([[-8, -3, 0, 7]], np.int8)
        tensor = aqt.QuantizedTensor(values, [np.array([[2]], F32)], qvalue_dtype="int4")
        self.assertEqual(tensor.qvalue_dtype, "int4")
        again = pickle.loads(pickle.dumps(tensor))
        self.assertEqual(again.qvalue_dtype, "int4")
        np.testing.assert_array_equal(again.qvalue.astype(np.int8), values)
        self.assertEqual(repr(again), "QuantizedTensor(int4[1, 4], scales [[1, 1]])")
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "values from -8 to 7, expected -2 .. 1 for int2"):
            aqt.QuantizedTensor(values, qvalue_dtype="int2")
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "qvalue_dtype is 'int3'"):
            aqt.QuantizedTensor(values, qvalue_dtype="int3")

    def test_gradient_and_keys(self):
        x, g = random((8, 16), 1), random((8, 16), 2)
        quantizer = pickle.loads(pickle.dumps(aqt.Quantizer("int_symmetric { bits: 4 noise {} } abs_max {}")))
        with self.assertRaisesRegex(aqt.FailedPreconditionError, "key"):
            quantizer.quantize(x, 0)
        for axes in (None, "0", 0.5, [0.5]):
            with self.assertRaisesRegex(TypeError, "axes is .*, expected an integer or a list of integers"):
                quantizer.quantize(x, axes)
        with self.assertRaisesRegex(TypeError, "config is None, expected a textproto such as"):
            aqt.Quantizer(None)
        a, b = (quantizer.quantize(x, 0, key=key) for key in (1, 2))
        self.assertTrue((a.qvalue != b.qvalue).any())
        np.testing.assert_array_equal(quantizer.gradient(x, a, g), g)
        clips = "int_symmetric { preserve_max_val: true clip_gradient: true } constant { bound { number: 889 } }"
        x = np.array([[889, 890, 7]], np.float32)  # 889 / 7 is 127, the clip bound, and 889 * R(1 / 7) is above it
        for compat, want in (("", [0, 0, 1]), ("divide_by_scale", [1, 0, 1])):
            quantizer = aqt.Quantizer(clips, arithmetic="ieee", compat=compat)
            got = quantizer.gradient(x, quantizer.quantize(x, 1), np.ones((1, 3), np.float32))
            np.testing.assert_array_equal(got, [want])
        quantizer = aqt.Quantizer(clips, compat="qwix")
        with self.assertRaisesRegex(aqt.NotSupportedError, "clip_gradient_at_bound needs the bound of the calibration"):
            quantizer.gradient(x, quantizer.quantize(x, 1), x)
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "config:1:1: IntSymmetric"):
            aqt.Quantizer("int_symmetric { bits: 99 } abs_max {}")


@unittest.skipUnless(HAS_ML_DTYPES, "needs ml_dtypes")
class MlDtypesTest(unittest.TestCase):
    def test_products(self):
        x, w = random((4, 32), 1), random((32, 8), 2)
        for dtype, step in ((ml_dtypes.bfloat16, 2**-8), (np.float16, 2**-11)):
            plan = aqt.DotGeneral("default_unquantized", x.astype(dtype), w.astype(dtype))
            got = plan(x.astype(dtype), w.astype(dtype))
            self.assertEqual(got.dtype, dtype)
            want = x.astype(dtype).astype(F32) @ w.astype(dtype).astype(F32)
            # One rounding of a sum in f32.
            np.testing.assert_allclose(got.astype(F32), want, rtol=2 * step, atol=1e-5)
            self.assertEqual(pickle.loads(pickle.dumps(plan)).out[1], dtype)

    def test_int4_of_any_padding(self):
        values = np.array([[-8, -3, 0, 7]], np.int8)
        tensor = aqt.QuantizedTensor(values.astype(ml_dtypes.int4), [np.array([[2]], F32)])
        np.testing.assert_array_equal(tensor.dequantize(), [[-16, -6, 0, 14]])
        self.assertEqual(tensor.qvalue.dtype, ml_dtypes.int4)
        np.testing.assert_array_equal(tensor.qvalue.astype(np.int8), values)
        quantized = aqt.Quantizer("int_symmetric { bits: 4 dtype: 's4' } abs_max {}").quantize(random((8, 8)), 0)
        self.assertEqual(quantized.qvalue.dtype, ml_dtypes.int4)
        self.assertLessEqual(np.abs(quantized.qvalue.astype(np.int8)).max(), 7)

    def test_fp8(self):
        x = random((8, 16), 3)
        quantized = aqt.Quantizer("fp8 { dtype: 'e4m3fn' } abs_max {}").quantize(x, 1)
        self.assertEqual(quantized.qvalue.dtype, ml_dtypes.float8_e4m3fn)
        want = quantized.qvalue.astype(F32) * quantized.scales[0]
        np.testing.assert_array_equal(quantized.dequantize(), want)


class ProgramTest(unittest.TestCase):
    def test_a_saved_program(self):
        folder = ROOT / "aqt" / "graph" / "saved" / "testdata"
        if not folder.exists() or not HAS_ML_DTYPES:
            self.skipTest("needs the source tree, and ml_dtypes for bfloat16")
        program = aqt.Program(folder / "every_op_v1.aqtprog")
        want = aqt.Program((folder / "every_op_v1_results.aqtprog").read_bytes())
        self.assertEqual(program.inputs, ())
        self.assertGreaterEqual(len(program.outputs), 60)
        self.assertEqual(program.outputs[0].kind, "data")
        for got, expected in zip(pickle.loads(pickle.dumps(program))(), want()):
            self.assertEqual(got.tobytes(), expected.tobytes())
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "has 0 inputs, and 1 are given"):
            program([np.zeros(3, F32)])
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "has no input 'x'"):
            program({"x": np.zeros(3, F32)})
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "out has 0 arrays"):
            program(out=[])

    def test_errors(self):
        with self.assertRaises(aqt.DataLossError):
            aqt.Program(b"no program")
        with self.assertRaises(FileNotFoundError):
            aqt.Program("/no/such/file")


@unittest.skipUnless(MODELS.exists(), "needs the source tree")
class EmbedderTest(unittest.TestCase):
    def test_embeddings(self):
        embedder = aqt.Embedder(MODELS / "bert")
        self.assertEqual((embedder.width, embedder.max_length), (24, 12))
        texts = ["w7 w8", "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16"]
        result = embedder.embed_with_counts(texts)
        self.assertEqual((result.tokens.tolist(), result.truncated.tolist()), ([4, 12], [0, 2]))
        np.testing.assert_allclose((result.values**2).sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_array_equal(embedder.embed(texts[1:])[0], result.values[1])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(embedder)).embed(texts), result.values)
        self.assertEqual(embedder.embed([]).shape, (0, 24))
        self.assertIsInstance(embedder.notes, list)
        quantized = aqt.Embedder(MODELS / "bert", preset="int8_all").embed(texts)
        self.assertTrue((quantized != result.values).any())
        converted = aqt.Embedder(MODELS / "bert", preset="w8a16").embed(texts)
        self.assertTrue((converted != result.values).any() and (converted != quantized).any())
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "calibration is for presets of `aqt convert`"):
            aqt.Embedder(MODELS / "bert", preset="int8_all", calibration="ranges.safetensors")
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "give a list"):
            embedder.embed("w7")
        with self.assertRaisesRegex(TypeError, "text 2 is int"):
            embedder.embed(["w7", 7])
        with self.assertRaises(aqt.MissingError):
            aqt.Embedder("/no/such/folder")


class ConvertTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.weight = random((64, 128), 1)
        self.source = self.folder / "in.safetensors"
        write_checkpoint(self.source, {"fc.weight": self.weight})

    def test_there_and_back(self):
        out, back = self.folder / "out.safetensors", self.folder / "back.safetensors"
        seen = []
        report = aqt.convert(self.source, out, preset="w8a16", jobs=2, progress=lambda *args: seen.append(args))
        self.assertEqual((report["num_tensors"], report["num_quantized"]), (1, 1))
        self.assertEqual(seen[-1], (self.weight.nbytes, self.weight.nbytes, "fc.weight"))
        report = aqt.dequantize(out, back, dtype="float32")
        self.assertEqual(report["num_dequantized"], 1)
        data = back.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        values = np.frombuffer(data[start:], F32).reshape(self.weight.shape)
        # Half a step of the largest of a row, in 127 steps.
        self.assertLess(np.abs(values - self.weight).max(), np.abs(self.weight).max() / 127)

    def test_configurations(self):
        text = "schema: 1 base: 'w4a16_g32'"
        aqt.convert(self.source, self.folder / "a.safetensors", config=text)
        (self.folder / "config.textproto").write_text(text, encoding="utf-8")
        aqt.convert(self.source, self.folder / "b.safetensors", config=self.folder / "config.textproto")
        self.assertEqual(*((self.folder / name).read_bytes() for name in ("a.safetensors", "b.safetensors")))

    def test_progress_stops_it(self):
        out = self.folder / "out.safetensors"
        with self.assertRaises(aqt.CancelledError):
            aqt.convert(self.source, out, preset="w8a16", progress=lambda *_: True)

        def fail(*_):
            raise KeyError("mine")
        with self.assertRaisesRegex(KeyError, "mine"):
            aqt.convert(self.source, out, preset="w8a16", progress=fail)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["in.safetensors"])

    def test_an_interrupt_is_raised(self):  # and stops the work, unless it was done just then
        for jobs in (1, 2):
            done = threading.Event()

            def interrupt(*_):
                if not done.is_set():
                    os.kill(os.getpid(), signal.SIGINT)
                    done.wait(60)  # until the main thread has it
            previous = signal.signal(signal.SIGINT, lambda *_: (done.set(), signal.default_int_handler(*_)))
            try:
                with self.assertRaises(KeyboardInterrupt):
                    aqt.convert(self.source, self.folder / "out.safetensors", preset="w8a16", jobs=jobs, force=True,
                                progress=interrupt)
            finally:
                signal.signal(signal.SIGINT, previous)

    def test_errors(self):
        out = self.folder / "out.safetensors"
        with self.assertRaises(aqt.MissingError):
            aqt.convert(self.folder / "missing.safetensors", out, preset="w8a16")
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "nonsense"):
            aqt.convert(self.source, out, preset="nonsense")
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "is not quantized"):
            aqt.dequantize(self.source, out)
        for recipes in ({}, {"preset": "w8a16", "config": "schema: 1"}):
            message = f"options has {len(recipes)} of preset, config and scheme_from, expected exactly one"
            with self.assertRaisesRegex(aqt.InvalidArgumentError, message):
                aqt.convert(self.source, out, **recipes)
        with self.assertRaisesRegex(aqt.InvalidArgumentError, "options.jobs is 65"):
            aqt.convert(self.source, out, preset="w8a16", jobs=65)
        self.source.write_bytes(b"damaged")
        with self.assertRaises(aqt.DataLossError):
            aqt.convert(self.source, out, preset="w8a16")
        write_checkpoint(self.source, {"fc.weight": self.weight})
        out.write_bytes(b"")
        with self.assertRaises(aqt.ExistsError):
            aqt.convert(self.source, out, preset="w8a16")
        aqt.convert(self.source, out, preset="w8a16", force=True)


FORK = """
import os, sys
import numpy as np
import aqt_native.numpy as aqt
x = np.ones((64, 64), np.float32)
executor = aqt.Executor(2)
plan = aqt.DotGeneral("fully_quantized_int8", x, x)
want = plan(x, x, executor=executor)
pid = os.fork()
if pid == 0:
    code = 1
    try:
        plan(x, x, executor=executor)
    except RuntimeError as error:
        with aqt.Executor(2) as own:
            code = 0 if "forked" in str(error) and (plan(x, x, executor=own) == want).all() else 2
    del executor
    os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class ProcessTest(unittest.TestCase):
    def test_fork(self):
        path = os.pathsep.join(filter(None, [*sys.path]))
        subprocess.run([sys.executable, "-c", FORK], check=True, env={**os.environ, "PYTHONPATH": path})

    def test_memory_stays_flat(self):
        x, w = random((8, 32)), random((32, 8))
        plan = aqt.DotGeneral(INT8, x, w)

        def resident():
            return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path("/proc/self/status").read_text(encoding="utf-8"))[1])

        def work(count):
            for _ in range(count):
                _, residuals = plan.forward(x, w)
                plan.backward(x[:, :8], residuals, key=1)
                plan.prepare("rhs", w).quantized.dequantize()
                try:
                    plan(x, x)
                except aqt.AqtError:
                    pass
        work(200)
        gc.collect()
        before = resident()
        work(3000)
        gc.collect()
        self.assertLess(resident() - before, 2000)  # KiB; a leak of one object per call would be 3000 * > 1 KiB

    def test_a_missing_library_is_named(self):
        code = "import aqt_native.numpy as aqt; aqt.version()"
        path = os.pathsep.join(filter(None, [*sys.path]))
        ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": path, "AQT_LIBRARY": "/no/such/libaqt.so"})
        self.assertIn("ImportError: aqt_native: cannot load /no/such/libaqt.so", ran.stderr)

    def test_what_needs_jax_says_so(self):
        code = "import sys; sys.modules['jax'] = None\nimport aqt_native\ntry: aqt_native.convert\nexcept ImportError as e: print(e)"
        ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        self.assertEqual(ran.stdout, "aqt_native.convert needs JAX 0.4.35 or later: pip install jax. aqt_native.numpy does "
                         "without.\n")

    @unittest.skipIf("AQT_LIBRARY" in os.environ, "of the installed package")
    def test_the_command(self):
        ran = subprocess.run([sys.executable, "-m", "aqt_native", "--version"], check=True, capture_output=True, text=True)
        self.assertTrue(ran.stdout.startswith(f"aqt {aqt.version()}\n"))
        script = pathlib.Path(sys.executable).parent / "aqt"
        self.assertEqual(subprocess.run([script, "--version"], check=True, capture_output=True, text=True).stdout, ran.stdout)
        self.assertEqual(subprocess.run([script, "nonsense"], check=False, capture_output=True).returncode, 2)


if __name__ == "__main__":
    unittest.main()
