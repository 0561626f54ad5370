#!/usr/bin/env python3
"""Runs fp8 and compares its output with expected_output.txt, which has the numbers of the original's public documents."""
import pathlib
import subprocess
import sys
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))
HERE = pathlib.Path(__file__).parent


class Fp8Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.output = subprocess.run([BINARY], check=True, capture_output=True, text=True).stdout

    def test_output(self):
        self.assertEqual(self.output, (HERE / "expected_output.txt").read_text(encoding="utf-8"))

    def test_numbers_of_the_public_documents(self):
        for line in (
            "  f16              1.234 2.346 3.457\n",
            "  e4m3             1.25 2.25 3.5\n",
        ):
            self.assertIn(line, self.output)
        scales = [line.split()[3] for line in self.output.splitlines() if line.startswith("  amax ")]
        self.assertEqual(scales, ["1/256", "1/64", "1/64", "1/64", "1/64", "1/128", "1/32"])


if __name__ == "__main__":
    unittest.main()
