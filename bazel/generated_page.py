"""The common part of the scripts that generate a page of docs/ from the tree: write it, or check it with --check."""
import pathlib
import sys


def run(script, documentation, path, text, found, arguments):
    """`text` is what the page at `path` must be, `found` what is wrong with its sources. Returns the exit code."""
    if arguments == ["--check"]:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append(f"{path.relative_to(pathlib.Path(script).resolve().parents[1])} is stale: run bazel/{pathlib.Path(script).name}")
    elif arguments:
        print(documentation, file=sys.stderr)
        return 2
    else:
        path.write_text(text, encoding="utf-8")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0
