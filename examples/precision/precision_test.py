#!/usr/bin/env python3
"""Runs precision and compares its output with expected_output.txt, which has the numbers of the originals' public documents."""
import pathlib
import subprocess
import sys
import unittest

BINARY = pathlib.Path(sys.argv.pop(1))
HERE = pathlib.Path(__file__).parent


class PrecisionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.output = subprocess.run([BINARY], check=True, capture_output=True, text=True).stdout

    def test_output(self):
        self.assertEqual(self.output, (HERE / "expected_output.txt").read_text(encoding="utf-8"))

    def test_numbers_of_the_public_documents(self):
        for line in (
            "  a + b            data [2 4]  scale 2\n",
            "scale 2.236068\n",
            "  rescaled         data [0.5 1]  scale 8\n",
            "  call 1   value 8  gradient 12  scaler 4096  resets 3\n",
            "  call 11  value 8  gradient 12  scaler 8192  resets 3\n",
            "  call 12  value 8  gradient 12  scaler 4096  resets 4\n",
        ):
            self.assertIn(line, self.output)


if __name__ == "__main__":
    unittest.main()
