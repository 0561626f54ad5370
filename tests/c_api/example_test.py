#!/usr/bin/env python3
"""Tests the program of docs/c-api.md: its output is that of the page."""
import pathlib
import re
import subprocess
import sys
import unittest

BINARY, PAGE = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
del sys.argv[1:3]


class ExampleTest(unittest.TestCase):
    def test_it_prints_what_the_page_shows(self):
        shown = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        self.assertEqual(len(shown), 1)
        self.assertEqual(subprocess.run([BINARY], check=True, capture_output=True, text=True).stdout, shown[0])


if __name__ == "__main__":
    unittest.main()
