"""The `aqt` command of the package: the program beside this file."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    """Replaces this process by the program, with the same arguments."""
    program = pathlib.Path(__file__).resolve().parent / "bin" / "aqt"
    try:
        os.execv(program, ["aqt", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"aqt: cannot start {program}: {error.strerror}. Install the package aqt-native again.")


if __name__ == "__main__":
    main()
