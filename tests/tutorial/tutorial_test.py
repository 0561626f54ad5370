#!/usr/bin/env python3
"""Tests the program of docs/tutorial.md: its length, its single header of the library, and its output are those of the page."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

BINARY, SOURCE, PAGE = (pathlib.Path(path).resolve() for path in sys.argv[1:4])
del sys.argv[1:4]
DECIMAL = re.compile(r"\d+\.\d+(?:e-?\d+)?|(?<=accuracy )1$", re.MULTILINE)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


class TutorialTest(unittest.TestCase):
    def setUp(self):
        self.page = PAGE.read_text(encoding="utf-8")

    def test_the_program_is_short(self):
        lines = SOURCE.read_text(encoding="utf-8").splitlines()
        self.assertEqual("\n".join(lines) + "\n", "".join(blocks(self.page, "cpp")))
        self.assertIn(f"**{len(lines)} lines**", self.page)
        self.assertLessEqual(len(lines), 60)
        self.assertLessEqual(max(len(line) for line in lines), 120)
        includes = [line for line in lines if line.startswith("#include")]
        self.assertEqual([line for line in includes if "<" not in line], ['#include "aqt/aqt.h"'])

    def test_it_prints_what_the_page_shows(self):
        os.chdir(os.environ["TEST_TMPDIR"])
        output = subprocess.run([BINARY], check=True, capture_output=True, text=True).stdout
        shown = "".join(blocks(self.page, "text"))
        # The last digits of a training depend on the SIMD target (docs/bits.md).
        self.assertEqual(DECIMAL.sub("#", output), DECIMAL.sub("#", shown))
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", output)]
        self.assertLess(losses[-1], 0.1 * losses[0])
        self.assertGreater(float(re.search(r"accuracy (\S+)", output).group(1)), 0.98)
        self.assertTrue(pathlib.Path("spirals.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
