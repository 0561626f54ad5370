#!/usr/bin/env python3
"""Runs static_range: fixed ranges cost at most a point of accuracy, and the served model is int8."""
import pathlib
import re
import subprocess
import sys
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))


class StaticRangeTest(unittest.TestCase):
    def test_output(self):
        output = subprocess.run([BINARY], check=True, capture_output=True, text=True).stdout
        accuracies = {name: float(value) for name, value in re.findall(r"^(\w+) +accuracy ([0-9.]+)$", output, re.M)}
        self.assertGreater(accuracies["float"], 0.9)
        self.assertGreater(accuracies["static"], accuracies["float"] - 0.01)
        self.assertIn('frozen "mlp/fc1/qrhs/value" s8[64,64]', output)
        self.assertRegex(output, r'frozen "mlp/fc1/qlhs/scale" f32\[1,1\] = 0\.\d+')
        self.assertNotIn("kernel", output)
        self.assertNotIn("stat ", output)


if __name__ == "__main__":
    unittest.main()
