#!/usr/bin/env python3
"""Tests the table of compare.py: which rows are measured, how rounds are merged, the text of the page."""
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path[:0] = [str(HERE), str(HERE / "peers")]
import compare  # noqa: E402
import harness  # noqa: E402
import performance_page  # noqa: E402


def data_of(rows):
    return {"machine": {"processor": "p"}, "command": "c", "commit": "x", "date": "d", "rounds": 3, "runs": 8, "disturbed": ["x"],
            "rows": [{"row": name, "us": us, **more} for name, us, more in rows]}


# Made up. At 512 cubed a peer's step takes 24, but three of the best f32 products only 21; at 1024 no peer has a step.
ROWS = [
    ("step/512x512x512/int8/1/aqt", 7.0, {"roof": 0.5}),
    ("step/512x512x512/f32/1/aqt", 1.0, {}),  # ours: not a peer
    ("step/512x512x512/f32/1/one", 24.0, {}),
    ("product/512x512x512/f32/1/two", 7.0, {}),
    ("step/1024x1024x1024/int8/1/aqt", 40.0, {}),
    ("product/1024x1024x1024/f32/1/two", 10.0, {}),
    ("step/37x129x65/int8/1/aqt", 1.0, {}),  # too small for this comparison
    ("step/37x129x65/f32/1/one", 9.0, {}),
    ("step/512x512x512/int8/2/aqt", 7.0, {}),  # no peer with two threads
    ("step/512x512x512/int8/1/jax-1-aqt", 35.0, {}),
]


class Page(unittest.TestCase):
    def test_lines(self):
        comparison = next(c for c in performance_page.COMPARISONS if c.title == "training step, int8 against f32")
        rows = performance_page.index(data_of(ROWS)["rows"])
        self.assertEqual(performance_page.lines_of(comparison, rows, 1), [
            performance_page.Line("512x512x512", 7.0, 0.5, "two (3 products)", 21.0),
            performance_page.Line("1024x1024x1024", 40.0, None, "two (3 products)", 30.0)])
        self.assertEqual(performance_page.lines_of(comparison, rows, 2), [])

    def test_text(self):
        text = performance_page.page(data_of(ROWS))
        # The geometric mean of 3 and 0.75 is 1.5.
        self.assertIn("| 1 | training step, int8 against f32 | 2 | 1.50 | **0.75** | 1024x1024x1024 | two |\n", text)
        self.assertIn("| 1 | training step, int8 against AQT on JAX | 1 | 5.00 | 5.00 | 512x512x512 | jax-1-aqt |\n", text)
        self.assertIn("| 512x512x512 | 7.00 | 50 % | two (3 products) | 21.0 | 3.00 |\n", text)
        self.assertIn("| 1024x1024x1024 | 40.0 |  | two (3 products) | 30.0 | **0.75** |\n", text)
        self.assertIn("| rounds | 3; other processes used the machine during 1 of 8 runs |\n", text)
        self.assertIn("\n| 1 | training step, int8 against f32 | 1024x1024x1024 | two (3 products) | **0.75** |\n", text)
        self.assertNotIn("37x129x65", text)
        again = data_of([(name, us, {**more, "rounds_us": [us] * (3 + i % 2)}) for i, (name, us, more) in enumerate(ROWS)])
        self.assertIn("| rounds | 3, with more for 5 rows; other processes", performance_page.page(again))
        twice = {**data_of(ROWS), "command": "c --filter 'a|b'\nd"}
        self.assertIn("| command | `c --filter 'a\\|b'`, then `d` |\n", performance_page.page(twice))
        self.assertNotIn("2 threads", text)
        self.assertNotIn("weights only", text)

    def test_threads(self):
        rows = [("step/512x1024x4096/int8/1/aqt", 30.0, {}), ("step/512x1024x4096/int8/2/aqt", 20.0, {}),
                ("step/512x1024x4096/int8/2/one", 1.0, {}), ("step/512x512x512/int8/2/aqt", 1.0, {})]
        text = performance_page.page(data_of(rows))
        self.assertIn("\n| `step/int8` | 2 | 30.0 | 20.0 | 1.50 |\n", text)
        self.assertEqual(text.count("| 2 |"), 1)
        self.assertIn("\nNowhere.\n", text)

    def test_picture(self):
        root = xml.etree.ElementTree.fromstring(performance_page.picture(data_of(ROWS)))
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("training step, int8 against f32", texts)
        self.assertIn("1.50", texts)
        bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("height") == "12"]
        self.assertEqual(len(bars), 2)

    def test_speed_picture(self):
        titles = [comparison.title for comparison in performance_page.COMPARISONS]
        self.assertEqual([title for title, _ in performance_page.HEADLINES if title not in titles], [])
        root = xml.etree.ElementTree.fromstring(performance_page.speed_picture(data_of(ROWS)))
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("int8 training step / f32 step", texts)
        self.assertIn("1.50, against two", texts)
        self.assertIn("5.00, against AQT on JAX", texts)
        self.assertNotIn("f32 product", texts)
        slower = performance_page.speed_picture(data_of([("product/512x512x512/f32/1/aqt", 4.0, {}),
                                                         ("product/512x512x512/f32/1/onednn-3", 1.0, {})]))
        self.assertIn("0.25, against oneDNN<", slower)
        self.assertIn('fill="#e45756"', slower)

    def test_every_comparison_has_a_row_of_ours(self):
        sources = "".join((HERE / f"{name}.cc").read_text(encoding="utf-8") for name in (*compare.BENCHMARKS, "elementwise_programs"))
        for comparison in performance_page.COMPARISONS:
            for kind in [comparison.ours, *(kind for kind, _ in comparison.peers)]:
                for word in kind.split("/"):
                    self.assertTrue(f'"{word}"' in sources or word in ("product", "packed", "f32"), kind)


class Merge(unittest.TestCase):
    def test_keeps_the_best(self):
        best = {}
        compare.merge(best, [{"row": "a", "us": 3.0, "roof": 0.1}, {"row": "b", "us": 1.0}])
        compare.merge(best, [{"row": "a", "us": 2.0, "roof": 0.2}])
        compare.merge(best, [{"row": "a", "us": 4.0, "roof": 0.3}])
        self.assertEqual(best, {"a": {"row": "a", "us": 2.0, "roof": 0.2, "rounds_us": [3.0, 2.0, 4.0]},
                                "b": {"row": "b", "us": 1.0, "rounds_us": [1.0]}})


class CommandLine(unittest.TestCase):
    def test_names_no_paths(self):
        words = ["--python", "/a/b", "--rounds", "3", "--out=/c", "--filter", "a|b", "--bin", "/d", "--add", "/e"]
        self.assertEqual(compare.command_line(words), "tests/benchmarks/compare.py --rounds 3 --filter 'a|b'")


class Peers(unittest.TestCase):
    def test_shapes(self):
        self.assertEqual(harness.parse_product("1x4096x11008"), (1, 1, 4096, 11008))
        self.assertEqual(harness.parse_product("16x128x64x128"), (16, 128, 64, 128))
        self.assertEqual(harness.parse_conv("8x28x28x128-3x64"), (8, 28, 28, 128, 3, 64))

    def test_rows(self):
        rows = '{"step": ["1x2x3", "4x5x6"], "product": ["4x5x6", "7x8x9"]}'
        h = harness.Harness("", ["--rows", rows, "--threads", "2", "--filter", "f32"])
        self.assertEqual(h.shapes("product", "step", "conv"), ["4x5x6", "7x8x9", "1x2x3"])
        self.assertEqual(h.name("step", "1x2x3", "f32", "me"), "step/1x2x3/f32/2/me")
        self.assertIsNone(h.name("product", "1x2x3", "f32", "me"))
        self.assertIsNone(h.name("step", "1x2x3", "s8", "me"))
        self.assertLess(harness.best_seconds(lambda: None, 0.001, 0.0001), 0.001)

    def test_a_time_is_a_mean(self):
        # Half of the calls take 4 ms; the best single call takes almost no time.
        pauses = itertools.cycle((0, 0.004))
        self.assertGreater(harness.best_seconds(lambda: time.sleep(next(pauses)), 0.01, 0.02), 0.001)


# A benchmark with two rows of its own and one row that all benchmarks have.
FAKE = """#!{python}
import json, re, sys
flags = dict(zip(sys.argv[1:], sys.argv[2:]))
rows = [f"{{cls}}/512x512x512/f32/{{flags['--threads']}}/aqt" for cls in ("product", "{name}_a", "{name}_b")]
if "--list" in sys.argv:
    print("\\n".join(rows))
else:
    rows = [row for row in rows if re.search(flags["--filter"], row)]
    json.dump({{"context": {{"target": "t", "date": "d"}}, "benchmarks": [{{"name": row, "real_time": 5.0, "roof": 0.5}} for row in rows]}},
              open(flags["--json"], "w"))
"""


def write_benchmarks(folder):
    for name in compare.BENCHMARKS:
        (folder / name).write_text(FAKE.format(python=sys.executable, name=name), encoding="utf-8")
        (folder / name).chmod(0o755)


class Program(unittest.TestCase):
    def test_earlier_rounds_count_too(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            write_benchmarks(folder)

            def run(*words):
                return subprocess.run([sys.executable, HERE / "compare.py", "--bin", folder, "--peers", "", "--wait", "0", *words],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)

            first, both = folder / "first.json", folder / "both.json"
            self.assertEqual(run("--rounds", "1", "--filter", "gemm_[ab]/", "--out", first).returncode, 0)
            self.assertEqual(run("--rounds", "2", "--filter", "gemm_a/", "--add", first, "--out", both).returncode, 0)
            data = json.loads(both.read_text(encoding="utf-8"))
            self.assertEqual({row["row"].split("/")[0]: row["rounds_us"] for row in data["rows"]},
                             {"gemm_a": [5.0, 5.0, 5.0], "gemm_b": [5.0]})
            self.assertEqual(data["rounds"], 1)
            self.assertEqual(data["runs"], 3)
            self.assertEqual([line.count("--") for line in data["command"].splitlines()], [4, 4])
            self.assertNotIn("first.json", data["command"])

            other = json.loads(first.read_text(encoding="utf-8"))
            first.write_text(json.dumps({**other, "commit": "another"}), encoding="utf-8")
            refused = run("--add", first)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(f"--add {first}: it is from another on ", refused.stderr)
            first.write_text("[]", encoding="utf-8")
            self.assertIn(f"--add {first}: expected a file that --out wrote", run("--add", first).stderr)

    def test_all_benchmarks_once(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            write_benchmarks(folder)
            run = subprocess.run(
                [sys.executable, HERE / "compare.py", "--bin", folder, "--peers", "", "--rounds", "1", "--wait", "0",
                 "--filter", "product|_a/", "--out", folder / "out.json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                check=False)
            self.assertEqual(run.returncode, 0, run.stderr)
            data = json.loads((folder / "out.json").read_text(encoding="utf-8"))
            self.assertEqual([row["row"] for row in data["rows"]],
                             sorted(f"{cls}/512x512x512/f32/1/aqt"
                                    for cls in ("product", *(f"{name}_a" for name in compare.BENCHMARKS))))
            self.assertEqual(data["rows"][0]["rounds_us"], [5.0])
            self.assertEqual(data["machine"]["target"], "t")
            self.assertNotIn("date", data["machine"])
            self.assertRegex(run.stdout, r"\| rounds \| 1; other processes used the machine during \d of 6 runs ")

    def test_missing_benchmarks_name_the_remedy(self):
        run = subprocess.run([sys.executable, HERE / "compare.py", "--bin", "/nowhere", "--peers", ""], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stderr, "/nowhere/gemm is missing: run  ./bazelw build //tests/benchmarks:all\n")


if __name__ == "__main__":
    unittest.main()
