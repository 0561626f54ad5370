#!/usr/bin/env python3
"""Runs transformer at a small size: trains, resumes, serves, and refuses invalid flags."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))
SMALL = {
    "--layers": "1",
    "--width": "16",
    "--heads": "2",
    "--length": "12",
    "--text-bytes": "6000",
    "--steps": "10",
    "--batch": "4",
    "--sample": "20",
}


def run(*flags):
    given = {flag.split("=")[0] for flag in flags}
    small = [f"{name}={value}" for name, value in SMALL.items() if name not in given]
    return subprocess.run([BINARY, *small, *flags], capture_output=True, text=True, check=False)


class TransformerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def files(self, name):
        return {file.name: file.read_bytes() for file in (self.out / name).iterdir()}

    def test_trains_and_serves(self):
        result = run("--config=float,int8", f"--out={self.out}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.count("logits equal those of training to the bit"), 2)
        self.assertIn("step 10/10", result.stdout)
        self.assertEqual(set(self.files("int8")), {"state.safetensors", "served.safetensors"})
        self.assertIn("int8", (self.out / "loss.svg").read_text(encoding="utf-8"))
        served = run("--config=int8", "--serve", "--prompt=Mira", f"--out={self.out}")
        self.assertEqual(served.returncode, 0, served.stderr)
        self.assertIn("  sample: Mira", served.stdout)
        loss = [line for line in result.stdout.splitlines() if "int8/served.safetensors" in line]
        self.assertIn(loss[0], served.stdout)

    def test_computes_in_bf16(self):
        result = run("--config=float,fp8_delayed", "--amp=bf16", f"--out={self.out}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(", precision: bf16\n", result.stdout)
        self.assertEqual(result.stdout.count("logits equal those of training to the bit"), 2)
        in_bf16 = self.files("float")
        self.assertEqual(run("--config=float", f"--out={self.out}").returncode, 0)
        self.assertNotEqual(self.files("float"), in_bf16)

    def test_a_resumed_training_has_the_same_bytes(self):
        self.assertEqual(run("--config=int8", f"--out={self.out}").returncode, 0)
        want = self.files("int8")
        self.assertEqual(run("--config=int8", "--stop=4", f"--out={self.out}").returncode, 0)
        self.assertNotEqual(self.files("int8"), want)
        result = run("--config=int8", "--resume", "--threads=2", f"--out={self.out}")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.files("int8"), want)

    def test_a_training_goes_on_with_the_same_flags(self):
        self.assertEqual(run("--config=int8", "--stop=2", f"--out={self.out}").returncode, 0)
        state = self.files("int8")
        for flag, message in (
            ("--seed=2", 'seed was "1" and is "2"'),
            ("--dropout=0.5", 'dropout was "0" and is "0.5"'),
            ("--amp=bf16", "amp is not the same text"),
            ("--learning-rate=0.5", 'learning rate was "0.002" and is "0.5"'),
        ):
            result = run("--config=int8", "--resume", flag, f"--out={self.out}")
            self.assertEqual(result.returncode, 4, (flag, result.stderr))
            self.assertIn("is the state of a training with other settings: " + message, result.stderr)
        self.assertEqual(self.files("int8"), state)

    def test_errors(self):
        for flags, code, message in (
            (["--config=int5"], 2, "--config int5"),
            (["--amp=bf17"], 2, "--amp bf17"),
            (["--layers=0"], 2, "layers = 0"),
            (["--heads=3"], 2, "3 heads do not divide the 16 features"),
            (["--text-bytes=50"], 2, "text bytes = 50"),
            (["--config=float", "--prompt", ""], 2, "prompt is empty"),
            (["--layer=2"], 2, "--layer=2"),
            (["--config=float", "--serve"], 4, "float/served.safetensors"),
            (["--config=float", "--resume"], 4, "float/state.safetensors"),
        ):
            out = self.out / str(len(list(self.out.iterdir())))
            result = run(*flags, f"--out={out}")
            self.assertEqual(result.returncode, code, (flags, result.stderr))
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
