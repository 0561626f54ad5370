#!/usr/bin/env python3
"""Tests the wheel: two runs give the same bytes, and its files are what its metadata says."""
import base64
import csv
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPT, *FLAGS = sys.argv[1:]
del sys.argv[1:]


def build(folder):
    subprocess.run([sys.executable, SCRIPT, *FLAGS, folder], check=True, capture_output=True)
    (path,) = pathlib.Path(folder).iterdir()
    return path


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(scratch.cleanup)
        cls.paths = [build(f"{scratch.name}/{name}") for name in ("a", "b")]
        cls.bytes = [path.read_bytes() for path in cls.paths]
        cls.archive = cls.enterClassContext(zipfile.ZipFile(cls.paths[0]))
        cls.info = next(name for name in cls.archive.namelist() if name.endswith("/RECORD")).rpartition("/")[0]

    def test_two_runs_give_the_same_bytes(self):
        self.assertTrue(self.bytes[0] == self.bytes[1])

    def test_record_lists_every_file(self):
        rows = list(csv.reader(io.StringIO(self.archive.read(f"{self.info}/RECORD").decode())))
        self.assertEqual([row[0] for row in rows], self.archive.namelist())
        self.assertEqual(rows[-1][1:], ["", ""])  # RECORD itself
        for name, digest, size in rows[:-1]:
            content = self.archive.read(name)
            want = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            self.assertEqual((digest, int(size)), (f"sha256={want}", len(content)), name)

    def test_names(self):
        self.assertRegex(self.paths[0].name, r"^aqt_native-[0-9.]+-py3-none-manylinux_2_34_x86_64\.whl$")
        names = set(self.archive.namelist())
        for name in ("__init__.py", "py.typed", "numpy/__init__.py", "libaqt.so", "bin/aqt", "include/aqt/c_api.h"):
            self.assertIn(f"aqt_native/{name}", names)
        self.assertFalse([name for name in names if "__pycache__" in name or "test" in name])

    def test_metadata(self):
        text = self.archive.read(f"{self.info}/METADATA").decode()
        head, _, description = text.partition("\n\n")
        self.assertIn("Name: aqt-native\n", head)
        self.assertTrue(description.startswith("# aqt-native\n"))
        licenses = [line.split(": ")[1] for line in head.splitlines() if line.startswith("License-File")]
        self.assertEqual(sorted(f"{self.info}/licenses/{name}" for name in licenses),
                         sorted(name for name in self.archive.namelist() if "/licenses/" in name))
        self.assertIn("Tag: py3-none-manylinux_2_34_x86_64\n", self.archive.read(f"{self.info}/WHEEL").decode())

    def test_the_programs_can_be_executed(self):
        modes = {entry.filename: entry.external_attr >> 16 for entry in self.archive.infolist()}
        for name, mode in modes.items():
            self.assertEqual(mode & 0o777, 0o755 if name.endswith(("bin/aqt", ".so")) else 0o644, name)


if __name__ == "__main__":
    unittest.main()
