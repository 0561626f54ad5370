#!/usr/bin/env python3
"""Compares the structs and functions of the Python package with aqt/c_api.h. Needs neither NumPy nor the library."""
import ctypes
import importlib
import pathlib
import re
import sys
import types
import unittest

HEADER, *FILES = sys.argv[1:]
del sys.argv[1:]

_SCALARS = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "size_t": ctypes.c_size_t,
            "aqt_code": ctypes.c_int32, "aqt_dtype": ctypes.c_int32, "aqt_part": ctypes.c_int32,
            "aqt_side": ctypes.c_int32, "aqt_pass": ctypes.c_int32, "aqt_port": ctypes.c_int32}
_POINTER = ctypes.c_void_p


def bindings():
    """aqt_native.numpy._library, without the packages around it: they import NumPy."""
    file = next(pathlib.Path(path).resolve() for path in FILES if path.endswith("/numpy/_library.py"))
    for name, folder in (("aqt_native", file.parents[1]), ("aqt_native.numpy", file.parent)):
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    return importlib.import_module("aqt_native.numpy._library")


def header():
    return re.sub(r"//[^\n]*|^#[^\n]*(\\\n[^\n]*)*", "", pathlib.Path(HEADER).read_text(encoding="utf-8"), flags=re.M)


def c_type(text, structs):
    """The ctypes type of "const int64_t*"; all pointers are void*."""
    text = text.replace("const", "").strip()
    if "*" in text or text == "aqt_progress":
        return _POINTER
    return None if text == "void" else structs.get(text) or _SCALARS[text]


def c_structs():
    """The structs of the header by name, as ctypes structures."""
    found = {}
    for name, body in re.findall(r"typedef struct (aqt_\w+) \{(.*?)\} \1;", header(), re.S):
        fields = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, member, count = re.fullmatch(r"(.*?)(\w+)(?:\[(\d+)\])?", declaration, re.S).groups()
            field = c_type(kind, found)
            fields.append((member, field * int(count) if count else field))
        found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


def c_functions(structs):
    """(result, arguments) of the functions of the header, by name without aqt_."""
    found = {}
    for result, name, arguments in re.findall(r"^(\w[\w *]*?)\baqt_(\w+)\(([^()]*)\);", header(), re.M):
        kinds = [re.sub(r"\w+(\[\])?$", "", argument.strip()) for argument in arguments.split(",")]
        kinds = [] if arguments.strip() == "void" else kinds
        found[name] = (c_type(result, structs), [c_type(kind, structs) for kind in kinds])
    return found


def plain(kind):
    """The type, with one type for all pointers."""
    is_pointer = kind is not None and isinstance(kind(), (ctypes._Pointer, ctypes._CFuncPtr, ctypes.c_char_p, _POINTER))  # pylint: disable=protected-access
    return _POINTER if is_pointer else kind


class StructsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.python, cls.structs = bindings(), c_structs()
        cls.functions = c_functions(cls.structs)

    def test_python_has_the_structs_of_the_header(self):
        names = {f"aqt{re.sub('([A-Z])', lambda m: '_' + m[0].lower(), name)}": kind for name, kind in
                 vars(self.python).items() if isinstance(kind, type) and issubclass(kind, ctypes.Structure)}
        self.assertGreater(len(names), 8)
        self.assertEqual(sorted(names), sorted(self.structs))
        for name, kind in names.items():
            with self.subTest(name):
                self.assertEqual(self.layout(kind), self.layout(self.structs[name]))
                self.assertEqual(ctypes.sizeof(kind), ctypes.sizeof(self.structs[name]))

    def layout(self, struct):
        """(name, offset, size, type) of each member."""
        members = []
        for name, kind in struct._fields_:  # pylint: disable=protected-access
            place, simple = getattr(struct, name), plain(kind)
            inner = hasattr(simple, "_fields_") or hasattr(simple, "_length_")  # their size stands for them
            members.append((name, place.offset, place.size, None if inner else simple))
        return members

    def test_python_calls_the_functions_of_the_header(self):
        calls = {name: (ctypes.c_int32, [*arguments, _POINTER]) for name, arguments in self.python._CALLS.items()}  # pylint: disable=protected-access
        calls |= {name: (result, arguments) for name, (arguments, result) in self.python._ASKS.items()}  # pylint: disable=protected-access
        self.assertGreater(len(calls), 40)
        for name, (result, arguments) in calls.items():
            with self.subTest(name):
                wanted = self.functions[name]
                self.assertEqual((plain(result), [plain(kind) for kind in arguments]), (wanted[0], wanted[1]))


if __name__ == "__main__":
    unittest.main()
