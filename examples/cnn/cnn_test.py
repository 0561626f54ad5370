#!/usr/bin/env python3
"""Runs cnn on two folds: every configuration trains. cnn itself checks that the served bits are those of the training."""
import pathlib
import re
import subprocess
import sys
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))


def run(*flags):
    return subprocess.run([BINARY, *flags], capture_output=True, text=True, check=False)


class CnnTest(unittest.TestCase):
    def test_all_configurations(self):
        result = run("--folds", "2", "--epochs", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        means = dict(re.findall(r"^(\w+) .* mean ([0-9.]+),", result.stdout, re.MULTILINE))
        self.assertEqual(set(means), {"float", "int8", "int4_weights", "fp8", "static"})
        for name, mean in means.items():
            # With ten classes, two epochs on half of the rows are enough for this accuracy.
            self.assertGreater(float(mean), 0.8, name)

    def test_two_runs_are_equal(self):
        flags = ("--config", "int8", "--folds", "2", "--epochs", "1")
        self.assertEqual(run(*flags).stdout, run(*flags).stdout)

    def test_errors(self):
        for flags, message in (
            (("--config", "int5"), "--config int5"),
            (("--folds", "1"), "--folds 1: expected 2 to 1797"),
            (("--batch", "0"), "batch = 0"),
            (("--bath", "8"), "--bath"),
        ):
            result = run(*flags)
            self.assertEqual(result.returncode, 2)
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
