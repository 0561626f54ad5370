#!/usr/bin/env python3
"""Builds the wheel aqt-native.

usage: bazel run //serving/python:wheel -- OUT    OUT: the folder for the wheel

Needs no network. The same inputs give the same bytes.
"""
import argparse
import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import zipfile

NEWEST_GLIBC = (2, 34)
TAG = f"py3-none-manylinux_{NEWEST_GLIBC[0]}_{NEWEST_GLIBC[1]}_x86_64"
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}

# Debian's packages whose code is in the binaries. libc6-dev is in a command that is linked statically.
LICENSED = ["libabsl-dev", "libc6-dev", "libcli11-dev", "libhwy-dev", "libprotobuf-dev", "libre2-dev", "libstdc++-12-dev",
            "nlohmann-json3-dev", "zlib1g-dev"]

METADATA = """Metadata-Version: 2.4
Name: aqt-native
Version: {version}
Summary: AQT's quantized contractions and a converter of model checkpoints, for CPUs
License-Expression: Apache-2.0
{licenses}
Requires-Python: >=3.10
Requires-Dist: numpy>=1.24
Provides-Extra: jax
Requires-Dist: jax>=0.4.35; extra == "jax"
Provides-Extra: ml-dtypes
Requires-Dist: ml-dtypes>=0.3; extra == "ml-dtypes"
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

"""


def check_binary(path):
    """Ends the program if a binary needs something that the wheel's tag does not promise."""
    def readelf(flag):
        return subprocess.run(["readelf", "-W", flag, str(path)], check=True, capture_output=True, text=True).stdout
    others = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d"))) - SYSTEM
    if others:
        sys.exit(f"wheel.py: {path.name} needs {', '.join(sorted(others))}, which the wheel does not have")
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_([0-9.]+)", readelf("-V"))}
    if versions and max(versions) > NEWEST_GLIBC:
        sys.exit(f"wheel.py: {path.name} needs glibc {'.'.join(map(str, max(versions)))}, and the tag is {TAG}")


class Wheel:
    """The files of a wheel."""

    def __init__(self, version):
        self.version, self.files = version, {}
        self.info = f"aqt_native-{version}.dist-info"

    def add(self, name, content, mode=0o644):
        if name in self.files:
            sys.exit(f"wheel.py: there are two files {name}")
        self.files[name] = (content, mode)

    def add_package(self, paths):
        """Python files: what follows the first folder aqt_native of a path is its place in the package."""
        for path in paths:
            name = "/".join(path.parts[path.parts.index("aqt_native"):])
            self.add(name, path.read_bytes())

    def write(self, folder):
        """RECORD comes last, and everything else in the order of names."""
        record = io.StringIO()
        rows = csv.writer(record, lineterminator="\n")
        for name in sorted(self.files):
            content = self.files[name][0]
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow([name, f"sha256={digest}", len(content)])
        rows.writerow([f"{self.info}/RECORD", "", ""])
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"aqt_native-{self.version}-{TAG}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            files = [(name, *self.files[name]) for name in sorted(self.files)]
            for name, content, mode in files + [(f"{self.info}/RECORD", record.getvalue().encode(), 0o644)]:
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                entry.external_attr = (0o100000 | mode) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content, compresslevel=9)
        return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    for name in ("library", "command", "header", "version-header", "description", "license", "notice"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--package", type=pathlib.Path, nargs="+", required=True)
    # Bazel gives the flags first, the user OUT last.
    arguments = sys.argv[1:]
    given = parser.parse_args([*arguments[-1:], *arguments[:-1]])
    version = re.search(r'kVersion\[\] = "(.*)"', given.version_header.read_text(encoding="utf-8"))[1]

    wheel = Wheel(version)
    wheel.add_package(given.package)
    for path, name, mode in ((given.library, "libaqt.so", 0o755), (given.command, "bin/aqt", 0o755),
                             (given.header, "include/aqt/c_api.h", 0o644)):
        if mode == 0o755:
            check_binary(path.resolve())
        wheel.add(f"aqt_native/{name}", path.read_bytes(), mode)
    info = wheel.info
    licenses = ["LICENSE", "NOTICE", *(f"debian/{package}" for package in LICENSED)]
    metadata = METADATA.format(version=version, licenses="\n".join(f"License-File: {name}" for name in licenses))
    wheel.add(f"{info}/METADATA", metadata.encode() + given.description.read_bytes())
    wheel.add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: aqt\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode())
    wheel.add(f"{info}/entry_points.txt", b"[console_scripts]\naqt = aqt_native._command:main\n")
    wheel.add(f"{info}/licenses/LICENSE", given.license.read_bytes())
    wheel.add(f"{info}/licenses/NOTICE", given.notice.read_bytes())
    for package in LICENSED:
        path = pathlib.Path("/usr/share/doc") / package / "copyright"
        if not path.exists():
            sys.exit(f"wheel.py: {path} is missing, the licence of code in the binaries; install {package}")
        wheel.add(f"{info}/licenses/debian/{package}", path.read_bytes())
    folder = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", ".")) / given.out
    path = wheel.write(folder)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
