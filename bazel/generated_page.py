"""What the scripts that generate pages share: they write the page, or check it with --check."""
import pathlib
import sys


def run(script, documentation, path, text, found, arguments):
    """Writes `text` to the page at `path`, or compares it; prints `found`, the errors in its sources. Returns the exit code."""
    if arguments == ["--check"]:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append(f"{path.relative_to(pathlib.Path(script).resolve().parents[1])} is out of date: run bazel/{pathlib.Path(script).name}")
    elif arguments:
        print(documentation, file=sys.stderr)
        return 2
    else:
        path.write_text(text, encoding="utf-8")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0
