#!/usr/bin/env python3
"""Runs encoder on testdata/tiny: its embeddings match those of transformers, and any error in them is detected."""
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))
TINY = pathlib.Path("examples/minilm/testdata/tiny")
# Elements of an embedding are at most 1, and norms keep the earlier values near 1. An embedding is about 30 f32 results deep
# (15 a layer), each off by a few units of 6e-8: below 1e-5. The changes of the tests below move an element further.
NEAR = ("--max-difference", "1e-5")


def change(path, name, update):
    """Changes the 4-byte elements of a tensor in a safetensors file."""
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8:8 + size])[name]
    begin, end = (8 + size + offset for offset in tensor["data_offsets"])
    layout = f"<{(end - begin) // 4}{'f' if tensor['dtype'] == 'F32' else 'i'}"
    data[begin:end] = struct.pack(layout, *update(list(struct.unpack(layout, data[begin:end]))))
    path.write_bytes(data)


class EncoderTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name) / "model"
        self.folder.mkdir()
        for file in TINY.iterdir():
            shutil.copyfile(file, self.folder / file.name)

    def run_encoder(self, *flags):
        sentences = f"--sentences={self.folder / 'sentences.safetensors'}"
        return subprocess.run([BINARY, self.folder, sentences, *flags], capture_output=True, text=True, check=False)

    def refused(self, code, message, *flags):
        result = self.run_encoder(*flags)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertIn(message, result.stderr)

    def config(self, **fields):
        path = self.folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}), encoding="utf-8")

    def test_float_is_transformers(self):
        result = self.run_encoder("--config=float", *NEAR)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("6 sentences", result.stdout)

    def test_quantized(self):
        result = self.run_encoder("--config=float,int8_weights,w8a8,w8a8_static")
        self.assertEqual(result.returncode, 0, result.stderr)
        cosines = dict(re.findall(r"^(\w+) .* min ([0-9.]+) ", result.stdout, re.MULTILINE))
        self.assertEqual(set(cosines), {"float", "int8_weights", "w8a8", "w8a8_static"})
        for name, least in (("float", 0.999999), ("int8_weights", 0.9999), ("w8a8", 0.999), ("w8a8_static", 0.99)):
            self.assertGreaterEqual(float(cosines[name]), least, name)
        # The models are in fact quantized.
        self.assertLess(float(cosines["w8a8"]), 0.999999)
        self.assertLess(float(cosines["w8a8_static"]), float(cosines["w8a8"]))

    def test_scales_for_groups(self):
        rules = pathlib.Path("examples/minilm/configs/w8a8_g64.textproto").read_text(encoding="utf-8")
        path = self.folder / "w8a8_g16.textproto"  # the tiny model has fewer features
        path.write_text(rules.replace("tile_size: 64", "tile_size: 16"), encoding="utf-8")
        result = self.run_encoder(f"--config={path}", "--min-cosine=0.999")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.refused(1, "above --max-difference", f"--config={path}", *NEAR)

    def test_another_reference_is_noticed(self):
        change(self.folder / "sentences.safetensors", "data/embeddings", lambda v: [v[0] + 2e-5, *v[1:]])
        self.refused(1, "above --max-difference 1e-05", "--config=float", *NEAR)
        change(self.folder / "sentences.safetensors", "data/embeddings", lambda v: [-x for x in v])
        self.refused(1, "below --min-cosine 0.9", "--config=float", "--min-cosine=0.9")

    def test_lengths_count(self):
        change(self.folder / "sentences.safetensors", "data/lengths", lambda v: [v[0] + 1, *v[1:]])
        self.refused(1, "above --max-difference", "--config=float", *NEAR)

    def test_epsilon_counts(self):
        self.config(layer_norm_eps=1.2e-2)
        self.refused(1, "above --max-difference", "--config=float", *NEAR)

    def test_every_weight_counts(self):
        path = self.folder / "model.safetensors"
        original = path.read_bytes()
        size = struct.unpack("<Q", original[:8])[0]
        for name in json.loads(original[8:8 + size]):
            if name == "__metadata__":
                continue
            path.write_bytes(original)
            change(path, name, lambda v: [x + (i * 7919 % 13 - 6) / 60 for i, x in enumerate(v)])
            # The pooler is not read, and a constant in the key only shifts all scores of a query.
            unread = name.startswith("pooler.") or name.endswith("key.bias")
            self.assertEqual(self.run_encoder("--config=float", *NEAR).returncode, 0 if unread else 1, name)

    def test_errors(self):
        self.refused(2, "--config int5", "--config=int5")
        self.refused(2, "--max-diff", "--max-diff=1")
        self.refused(2, "missing.textproto", "--config=missing.textproto")
        for fields, message in (
            ({"num_hidden_layers": 1}, "encoder.layer.1."),
            ({"num_hidden_layers": 3}, "layer2/"),
            ({"hidden_size": 16}, "words/embedding"),
            ({"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor of the width 32"),
            ({"max_position_embeddings": 19}, "positions/embedding"),
            ({"hidden_act": "mish"}, "hidden_act is"),
            ({"position_embedding_type": "relative_key"}, 'expected "absolute"'),
            ({"vocab_size": 0}, "vocab_size is 0; expected an integer from 1 to 2147483648"),
            ({"layer_norm_eps": -1}, "expected a number above 0"),
        ):
            shutil.copyfile(TINY / "config.json", self.folder / "config.json")
            self.config(**fields)
            self.refused(2, message)
        self.config(model_type="gpt2")
        self.refused(5, "model_type is 'gpt2'; encoders of these types can be run: bert")
        (self.folder / "config.json").write_text("{}", encoding="utf-8")
        self.refused(5, "model_type is missing")
        (self.folder / "config.json").unlink()
        self.refused(4, "config.json")

    def test_sentences_of_another_model(self):
        path = self.folder / "sentences.safetensors"
        path.write_bytes(path.read_bytes().replace(b"data/embeddings", b"data/embeddingz"))
        self.refused(2, "data/embeddings is missing", "--config=float")


if __name__ == "__main__":
    unittest.main()
