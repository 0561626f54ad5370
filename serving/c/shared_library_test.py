#!/usr/bin/env python3
"""Tests libaqt.so: its symbols, what it needs of the machine, what loading it does, and calls from several threads."""
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import threading
import unittest

LIBRARY, HEADER = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
del sys.argv[1:3]
NEWEST_GLIBC = (2, 34)  # of the wheel's tag, manylinux_2_34


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# Loads the library in a new process, and prints the number of threads before and after, and the files that are open.
LOAD = """
import ctypes, os, sys
before = len(os.listdir("/proc/self/task"))
library = ctypes.CDLL(sys.argv[1])
print(before, len(os.listdir("/proc/self/task")), *sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in ("0", "1", "2")))
print(len(os.listdir("/proc/self/fd")))
"""

# The parent has used the library, with threads. The child uses it again, with an executor of its own.
FORK = """
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
def use():
    executor = ctypes.c_void_p()
    assert library.aqt_executor_make(2, ctypes.byref(executor), None) == 0
    quantizer = ctypes.c_void_p()
    assert library.aqt_quantizer_make(b"int_symmetric { bits: 8 } abs_max {}", None, ctypes.byref(quantizer), None) == 0
    return executor, quantizer
executor, quantizer = use()
pid = os.fork()
if pid == 0:
    library.aqt_quantizer_free(quantizer)
    own, _ = use()
    library.aqt_executor_free(own)
    os._exit(0)
_, status = os.waitpid(pid, 0)
library.aqt_executor_free(executor)
sys.exit(os.waitstatus_to_exitcode(status))
"""


class SharedLibraryTest(unittest.TestCase):
    def test_exactly_the_functions_of_the_header_leave_it(self):
        declared = set(re.findall(r"^[a-z].*?\b(aqt_\w+)\(", HEADER.read_text(encoding="utf-8"), re.MULTILINE))
        declared -= {"aqt_progress"}  # a type
        exported = {line.split()[-1] for line in run("nm", "-D", "--defined-only", LIBRARY).splitlines()}
        self.assertEqual(exported, declared)

    def test_it_needs_only_libraries_of_glibc_and_gcc(self):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", LIBRARY)))
        self.assertLessEqual(needed, {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"})

    def test_it_runs_with_an_older_glibc(self):
        versions = {tuple(map(int, v.split("."))) for v in re.findall(r"@GLIBC_([0-9.]+)", run("nm", "-D", LIBRARY))}
        self.assertLessEqual(max(versions), NEWEST_GLIBC)

    def test_it_has_a_soname_and_no_relocations_of_code(self):
        dynamic = run("readelf", "-dW", LIBRARY)
        self.assertIn("Library soname: [libaqt.so.1]", dynamic)
        self.assertNotIn("TEXTREL", dynamic)
        self.assertIn("BIND_NOW", dynamic)

    def test_loading_it_starts_no_threads_and_opens_no_files(self):
        lines = subprocess.run([sys.executable, "-c", LOAD, str(LIBRARY)], check=True, capture_output=True, text=True,
                               stdin=subprocess.DEVNULL).stdout.splitlines()
        before, after = lines[0].split()[:2]
        self.assertEqual(before, after)
        self.assertLessEqual(int(lines[1]), 4)  # standard streams, and the folder that is listed

    def test_a_child_can_use_it_after_fork(self):
        subprocess.run([sys.executable, "-c", FORK, str(LIBRARY)], check=True)

    def test_threads_parse_configurations_at_the_same_time(self):
        # Parsing uses thread-local variables of protobuf and Abseil (bazel/shared_tls.py).
        library = ctypes.CDLL(str(LIBRARY))
        failures = []

        def work():
            for bits in range(200):
                quantizer, error = ctypes.c_void_p(), ctypes.c_void_p()
                text = f"int_symmetric {{ bits: {bits % 30} }} abs_max {{}}".encode()
                code = library.aqt_quantizer_make(text, None, ctypes.byref(quantizer), ctypes.byref(error))
                if (code == 0) != (1 <= bits % 30 <= 22):
                    failures.append((bits, code))
                library.aqt_quantizer_free(quantizer)
                library.aqt_error_free(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])


if __name__ == "__main__":
    os.environ.pop("AQT_MAX_TARGET", None)
    unittest.main()
