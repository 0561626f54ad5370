#!/usr/bin/env python3
"""Runs transformer_layer at a small size: every mode trains to nearly the same loss. It does not check times."""
import pathlib
import subprocess
import sys
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))
SMALL = ("--seq=32", "--batch=2", "--hidden=32", "--ffn=64", "--heads=2", "--warmup=1")
MODES = ["f32", "bf16", "bf16+fp8", "fp8_delayed", "fp8_current", "fp8_hybrid", "fp8_mx"]


def run(*flags):
    given = {flag.split("=")[0] for flag in flags}
    small = [flag for flag in SMALL if flag.split("=")[0] not in given]
    return subprocess.run([BINARY, *small, *flags], capture_output=True, text=True, check=False)


class TransformerLayerTest(unittest.TestCase):
    def rows(self, *flags):
        result = run(*flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return {row[0]: [float(v) for v in row[1:]] for row in map(str.split, result.stdout.splitlines()[3:])}

    def test_all_modes_learn_alike(self):
        rows = self.rows("--mode=" + ",".join(MODES), "--steps=60", "--learning-rate=0.2")
        self.assertEqual(list(rows), MODES)
        self.assertEqual(rows["f32"][1], 1)
        first, last = rows["f32"][2:]
        self.assertLess(last, 0.1 * first)
        for mode, (milliseconds, ratio, first_loss, last_loss) in rows.items():
            self.assertGreater(milliseconds, 0, mode)
            self.assertGreater(ratio, 0, mode)
            self.assertLess(last_loss, 0.1 * first_loss, mode)
            # 0.0529 to 0.0594: products in 8-bit floats have errors of a few percent.
            self.assertAlmostEqual(last_loss, last, delta=0.02, msg=mode)

    def test_losses_do_not_depend_on_threads(self):
        losses = [
            {mode: row[2:] for mode, row in self.rows("--steps=3", f"--threads={threads}").items()} for threads in (1, 2)
        ]
        self.assertEqual(list(losses[0]), MODES[:3])
        self.assertEqual(*losses)

    def test_errors(self):
        for flags, message in (
            (("--mode=f31",), "--mode f31"),
            (("--heads=3",), "--heads 3: expected a divisor of --hidden 32"),
            (("--steps=0",), "--steps 0: expected 1 or more"),
            (("--mode=fp8_mx", "--hidden=48"), "32"),
            (("--step=3",), "--step"),
        ):
            result = run(*flags)
            self.assertEqual(result.returncode, 2, (flags, result.stderr))
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
