#!/usr/bin/env python3
"""Runs bazelw, .ci/run, bazel/sanitize.sh, bazel/fuzz.sh and consumer_test.sh with a Bazel that only records its arguments."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CACHE = "/tmp/a  b"  # two spaces: missing quotes would lose one


class Scripts(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        self.calls_file = self.dir / "calls"

    def program(self, path, says="", code=0):
        """Writes an executable that records its arguments and the cache in its environment, and prints `says`."""
        path = self.dir / path
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.dir / "says").mkdir(exist_ok=True)
        text = self.dir / "says" / path.name
        text.write_text(says, encoding="utf-8")
        path.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" "BAZELW_DISK_CACHE=${{BAZELW_DISK_CACHE:-}}" "AQT_DISK_CACHE=${{AQT_DISK_CACHE:-}}" --- >>'{self.calls_file}'
[ "$1" = shutdown ] || cat '{text}'
exit {code}
""", encoding="utf-8")
        path.chmod(0o755)

    def copy(self, name):
        (self.dir / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, self.dir / name)
        return self.dir / name

    def run_script(self, path, *args, **environment):
        env = {"PATH": f"{self.dir}/bin:{os.environ['PATH']}", "HOME": str(self.dir), **environment}
        return subprocess.run([str(path), *args], cwd=self.dir, env=env, capture_output=True, text=True, check=False)

    def calls(self):
        return [call.split("\n") for call in self.calls_file.read_text(encoding="utf-8").rstrip("-\n").split("\n---\n")]

    def test_bazelw_takes_a_cache_with_spaces(self):
        self.program("bin/bazel")
        ran = self.run_script(ROOT / "bazelw", "test", "//a b:c", BAZELW_SKIP="1", BAZELW_DISK_CACHE=CACHE)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        [call] = self.calls()
        self.assertEqual(call[0], "test")
        self.assertRegex(call[1], f"^--disk_cache={CACHE}/[0-9]+$")
        self.assertEqual(call[2], "//a b:c")
        self.assertRegex(call[4], f"^AQT_DISK_CACHE={CACHE}/[0-9]+$")

    def test_bazelw_installs_mpi_only_when_asked_and_goes_on_without(self):
        for name, text in [("dpkg-query", 'case "$*" in *openmpi*) ;; *) printf installed ;; esac'),
                           ("id", "echo 0"), ("apt-get", f'echo "$@" >>"{self.dir}/apt"; exit 1')]:
            path = self.dir / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            path.chmod(0o755)
        self.program("bin/bazel")
        ran = self.run_script(ROOT / "bazelw", "test", "//a:b")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertFalse((self.dir / "apt").exists())
        ran = self.run_script(ROOT / "bazelw", "test", "//a:b", BAZELW_MPI="1")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("libopenmpi-dev openmpi-bin", (self.dir / "apt").read_text(encoding="utf-8"))
        self.assertIn("targets that need MPI are skipped", ran.stderr)
        self.assertEqual(len(self.calls()), 2)

    def test_bazelw_asks_for_grpc_only_when_it_is_built(self):
        for name, text in [("dpkg-query", 'case "$*" in *grpc*) ;; *) printf installed ;; esac'), ("id", "echo 1")]:
            path = self.dir / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
            path.chmod(0o755)
        self.program("bin/bazel")
        ran = self.run_script(ROOT / "bazelw", "build", "//a:b")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        for flag in ("--config=grpc", "--define=aqt_grpc=1"):
            ran = self.run_script(ROOT / "bazelw", "build", flag, "//a:b")
            self.assertEqual(ran.returncode, 3)
            self.assertIn("these packages are missing: libgrpc++-dev", ran.stderr)
        self.assertEqual(len(self.calls()), 1)

    def test_consumer_test_takes_a_cache_with_spaces(self):
        expected = (ROOT / "tests/consumer/expected_output.txt").read_text(encoding="utf-8")
        self.program("bin/bazel", says=expected)
        ran = self.run_script(ROOT / "tests/consumer_test/consumer_test.sh", AQT_DISK_CACHE=CACHE, TEST_WORKSPACE="",
                              TEST_SRCDIR=str(ROOT), TEST_TMPDIR=str(self.dir))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        commands = [call for call in self.calls() if "shutdown" not in call]
        self.assertEqual(len(commands), 2)
        for call in commands:
            self.assertIn(f"--disk_cache={CACHE}", call)

    def test_consumer_test_fails_on_another_output(self):
        self.program("bin/bazel", says="something else\n")
        ran = self.run_script(ROOT / "tests/consumer_test/consumer_test.sh", TEST_WORKSPACE="", TEST_SRCDIR=str(ROOT),
                              TEST_TMPDIR=str(self.dir))
        self.assertEqual(ran.returncode, 1)
        self.assertIn("the program printed\nsomething else\n", ran.stdout)

    def test_ci_counts_and_takes_a_cache_with_spaces(self):
        script = self.copy(".ci/run")
        for says, code, last in [("//a:b PASSED in 0.3s\n//a:c (cached) PASSED in 1s\n", 0, "2 passed, 0 failed"),
                                 ("//a:b PASSED in 0.3s\n//a:c FAILED in 1s\n", 3, "1 passed, 1 failed"),
                                 ("ERROR: broken\n", 1, "0 passed, 1 failed")]:
            with self.subTest(says=says):
                self.program("bazelw", says=says, code=code)
                ran = self.run_script(script, BAZELW_DISK_CACHE=CACHE)
                self.assertEqual(ran.returncode, code)
                self.assertEqual(ran.stdout.split("\n")[-2], last)
                self.assertIn(f"BAZELW_DISK_CACHE={CACHE}", self.calls()[0])
        self.program("bazelw")
        self.assertNotEqual(self.run_script(script).returncode, 0)  # nothing ran

    def test_sanitize_sums_up(self):
        script = self.copy("bazel/sanitize.sh")
        self.program("bazelw", says="//a:b PASSED in 0.3s\n//a:c (cached) PASSED in 1s\n")
        ran = self.run_script(script, BAZELW_DISK_CACHE=CACHE)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertRegex(ran.stdout, r"\nasan\+ubsan: 2 passed, 0 failed in \d+ s\ntsan: 2 passed, 0 failed in \d+ s\n$")
        self.assertEqual([[word for word in call if word.startswith("--config")] for call in self.calls()],
                         [["--config=asan", "--config=ubsan"], ["--config=tsan"]])
        for call in self.calls():
            self.assertIn("//...", call)
            self.assertIn("-//tests/consumer_test:consumer_test", call)
            self.assertIn(f"BAZELW_DISK_CACHE={CACHE}", call)

    def test_sanitize_names_failures(self):
        script = self.copy("bazel/sanitize.sh")
        self.program("bazelw", says="//a:b PASSED in 0.3s\n//a:c FAILED in 1s\n//a:d TIMEOUT in 9s\n", code=3)
        ran = self.run_script(script, "tsan", "--", "--jobs=1")
        self.assertEqual(ran.returncode, 3)
        self.assertRegex(ran.stdout, r"\ntsan: //a:c FAILED\ntsan: //a:d TIMEOUT\ntsan: 1 passed, 2 failed in \d+ s\n$")
        [call] = self.calls()
        self.assertIn("--jobs=1", call)
        self.assertEqual(self.run_script(script, "--jobs=1").returncode, 2)  # allowed only after --

    def test_sanitize_fails_when_nothing_ran_or_the_build_broke(self):
        script = self.copy("bazel/sanitize.sh")
        self.program("bazelw")
        self.assertNotEqual(self.run_script(script, "asan").returncode, 0)
        self.program("bazelw", says="ERROR: broken\n", code=1)
        ran = self.run_script(script, "asan")
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stdout, r"asan: 0 passed, 1 failed in \d+ s\n$")

    def test_sanitize_leaves_out_targets_that_exist(self):
        for line in (ROOT / "bazel/sanitize.sh").read_text(encoding="utf-8").split("\n"):
            if line.startswith("//"):
                package, name = line.split()[0][2:].split(":")
                self.assertIn(f'name = "{name}"', (ROOT / package / "BUILD.bazel").read_text(encoding="utf-8"))

    def fuzz(self, says, code, *args):
        """Runs fuzz.sh with targets one_fuzz and two_fuzz that print `says` and exit with `code`."""
        script = self.copy("bazel/fuzz.sh")
        for path, text in [("tests/fuzz/BUILD.bazel", '    name = "one_fuzz",\n    name = "two_fuzz",\n    name = "other",\n'),
                           ("configs/a.proto", "message Abc { optional string defgh = 1; }\n")]:
            (self.dir / path).parent.mkdir(parents=True, exist_ok=True)
            (self.dir / path).write_text(text, encoding="utf-8")
        self.program("bazelw")
        for name in ("one_fuzz", "two_fuzz"):
            self.program(f"bazel-bin/tests/fuzz/{name}", says=says, code=code)
            corpus = self.dir / f"bazel-bin/tests/fuzz/{name}.runfiles/aqt/tests/fuzz/{name}_corpus"
            corpus.mkdir(parents=True, exist_ok=True)
            (corpus / "seed").write_text('schema: 1 "x"\n', encoding="utf-8")
        return self.run_script(script, *args, FUZZ_DIR=str(self.dir / "kept"))

    def test_fuzz_sums_up(self):
        says = "#2 INITED cov: 5 ft: 6\n#9 DONE cov: 17 ft: 20\nDone 9 runs in 3 second(s)\nstat::number_of_executed_units: 9\n"
        ran = self.fuzz(says, 0, "3")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertTrue(ran.stdout.endswith("one_fuzz: 9 executions in 3 s, coverage 17 edges, no finding\n"
                                            "two_fuzz: 9 executions in 3 s, coverage 17 edges, no finding\n"), ran.stdout)
        build, one, two = self.calls()
        self.assertEqual(build[-4:-2], ["//tests/fuzz:one_fuzz", "//tests/fuzz:two_fuzz"])
        for name, call in (("one_fuzz", one), ("two_fuzz", two)):
            self.assertIn("-max_total_time=3", call)
            self.assertEqual([p.name for p in (self.dir / "kept" / name / "seeds").iterdir()], [f"{name}_corpus_seed"])
            self.assertEqual((self.dir / "kept" / name / "words").read_text(encoding="utf-8").split(),
                             ['"Abc"', '"defgh"', '"message"', '"optional"', '"schema"', '"string"'])

    def test_fuzz_names_the_finding(self):
        says = "==1== ERROR: libFuzzer: deadly signal\nartifact_prefix='x'; Test unit written to /kept/crash-1\n" \
               "stat::number_of_executed_units: 4\n"
        ran = self.fuzz(says, 77, "3", "two_fuzz")
        self.assertEqual(ran.returncode, 1)
        self.assertTrue(ran.stdout.endswith("\ntwo_fuzz: after 4 executions a FINDING: /kept/crash-1\n"), ran.stdout)
        self.assertNotIn("one_fuzz", ran.stdout)
        self.assertEqual(self.fuzz("no number of executions\n", 0, "3", "two_fuzz").returncode, 1)
        self.assertEqual(self.fuzz(says, 0, "two_fuzz").returncode, 2)  # no seconds


if __name__ == "__main__":
    unittest.main()
