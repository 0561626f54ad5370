"""Reads the BUILD.bazel files of a source tree without Bazel.

A BUILD file is also valid Python: it is executed here with functions that record the rules. Macros are recorded under their
own names, with the arguments from the BUILD file.
"""
import builtins
import dataclasses
import pathlib
import re

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


@dataclasses.dataclass(frozen=True)
class Target:
    """One rule. Lists hold absolute labels; a select() contributes all its branches."""
    label: str  # //aqt/core:array
    rule: str  # cc_library
    deps: tuple
    srcs: tuple
    hdrs: tuple
    testonly: bool

    @property
    def package(self):
        return self.label[2:].split(":")[0]

    @property
    def name(self):
        return self.label.split(":")[1]


def absolute(label, package):
    """":a" and "a" in package p are "//p:a"; "//p" is "//p:p", "@r//p" is "@r//p:p", "@r" is "@r//:r"."""
    if label.startswith(":"):
        return f"//{package}{label}"
    if "//" not in label:
        return f"{label}//:{label[1:]}" if label.startswith("@") else f"//{package}:{label}"
    if ":" in label:
        return label
    return f"{label}:{label.split('/')[-1]}"


def file_of(label):
    """The path of a source file relative to the root, or None for a file of another repository."""
    return label[2:].replace(":", "/", 1).removeprefix("/") if label.startswith("//") else None


class _Recorder(dict):
    """The names that a BUILD file may use. A loaded name is a macro."""

    def __init__(self, root, package):
        super().__init__()
        self.root, self.package, self.targets = root, package, []
        self.testonly = False  # unless a rule says otherwise
        self["package"] = self._package

    def __missing__(self, name):
        if hasattr(builtins, name):  # str, len, True, ...
            raise KeyError(name)
        return self._function(name)

    def _package(self, default_testonly=False, **_):
        self.testonly = bool(default_testonly)

    def _function(self, rule):
        def record(*_, **kwargs):
            if "name" in kwargs:
                lists = {key: tuple(absolute(x, self.package) for x in kwargs.get(key) or ()) for key in ("deps", "srcs", "hdrs")}
                self.targets.append(Target(absolute(kwargs["name"], self.package), rule, **lists,
                                           testonly=bool(kwargs.get("testonly", self.testonly))))
        return record


def _glob(folder):
    def glob(include, exclude=(), **_):
        def matches(patterns):
            return {path.relative_to(folder).as_posix() for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
        return sorted(matches(include) - matches(exclude))
    return glob


def _select(branches, **_):
    return [value for branch in branches.values() for value in branch] if all(
        isinstance(branch, (list, tuple)) for branch in branches.values()) else next(iter(branches.values()))


def read_package(root, package):
    """The targets of root/package/BUILD.bazel, in order."""
    path = pathlib.Path(root, package, "BUILD.bazel")
    names = _Recorder(root, package)
    names["glob"] = _glob(path.parent)
    names["select"] = _select
    names["load"] = lambda bzl, *symbols, **aliases: names.update(
        {symbol: _Value(names._function(symbol)) for symbol in (*symbols, *aliases)})
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)  # pylint: disable=exec-used
    return names.targets


class _Value:
    """A loaded symbol: a macro if it is called, otherwise an empty list (for example of flags)."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    def __add__(self, other):
        return [*other]

    def __radd__(self, other):
        return [*other]

    def __iter__(self):
        return iter(())


def read_tree(root):
    """All targets below `root`, except in folders that .bazelignore names: {label: Target}."""
    root = pathlib.Path(root)
    ignored_file = root / ".bazelignore"
    ignored = ignored_file.read_text(encoding="utf-8").split() if ignored_file.exists() else []
    targets = {}
    for path in sorted(root.rglob("BUILD.bazel")):
        package = "" if path.parent == root else path.parent.relative_to(root).as_posix()
        if package.startswith((".", "bazel-")) or any((package + "/").startswith(prefix + "/") for prefix in ignored):
            continue
        for target in read_package(root, package):
            targets[target.label] = target
    return targets


def includes(root, target):
    """(file, header) for each #include in those sources and headers of the target that are files of the tree."""
    for label in target.srcs + target.hdrs:
        path = file_of(label)
        if path and path.endswith((".h", ".cc")) and (pathlib.Path(root) / path).is_file():
            for header in INCLUDE.findall((pathlib.Path(root) / path).read_text(encoding="utf-8")):
                yield path, header
