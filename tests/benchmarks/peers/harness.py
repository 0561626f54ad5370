"""Code shared by the peers' runners: selection and timing of rows.

A runner measures one library. compare.py starts it with the classes and shapes of our own benchmarks, and reads a line of
JSON for each row: {"row": "class/shape/dtype/threads/who", "us": microseconds of a call}. As in our own benchmarks, the time is
the mean over a round of calls, for the best of several rounds.
"""
import argparse
import json
import re
import sys
import time


def parse_sizes(shape):
    """The numbers of "16x128x512x4"."""
    return tuple(int(size) for size in shape.split("x"))


def parse_product(shape):
    """(batch, m, k, n) of "512x1024x4096" or "16x128x64x128"."""
    sizes = parse_sizes(shape)
    return (1, *sizes) if len(sizes) == 3 else sizes


def parse_conv(shape):
    """(batch, height, width, in, kernel, out) of "8x28x28x128-3x128"."""
    return tuple(int(size) for size in re.split("[x-]", shape))


class Harness:
    """The command line of a runner."""

    def __init__(self, description, argv=None):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--rows", type=json.loads, default={"product": ["256x256x256"], "dynamic": ["256x256x256"]},
                            help='classes and their shapes, for example {"product": ["512x512x512"]}')
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--seconds", type=float, default=0.1, help="time for each row, at least three rounds")
        parser.add_argument("--milliseconds", type=float, default=5, help="approximate duration of a round of at least one call")
        parser.add_argument("--filter", default="", help="a regular expression that the names of rows must match")
        self.args = parser.parse_args(argv)
        self.threads = self.args.threads
        self.filter = re.compile(self.args.filter)

    def shapes(self, *classes):
        """The shapes of these classes, without repetitions."""
        return list(dict.fromkeys(shape for name in classes for shape in self.args.rows.get(name, ())))

    def name(self, cls, shape, dtype, who):
        """The row's name if it is wanted, or None."""
        name = f"{cls}/{shape}/{dtype}/{self.threads}/{who}"
        return name if shape in self.args.rows.get(cls, ()) and self.filter.search(name) else None

    def row(self, cls, shape, dtype, who, make):
        """Times the function that make() returns, if the row is wanted. The row is left out if the library does not support it."""
        name = self.name(cls, shape, dtype, who)
        if name is None:
            return
        try:
            seconds = best_seconds(make(), self.args.seconds, self.args.milliseconds / 1000)
        except Exception as error:  # pylint: disable=broad-except
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
            return
        print(json.dumps({"row": name, "us": round(seconds * 1e6, 3)}), flush=True)


def best_seconds(run, budget, round_seconds):
    """The mean time of a call in the best round. At least three rounds run, and more if the budget permits."""
    run()
    start = time.perf_counter()
    run()
    calls = max(1, round(round_seconds / max(time.perf_counter() - start, 1e-8)))
    best, end, rounds = float("inf"), time.perf_counter() + budget, 0
    while rounds < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            run()
        best, rounds = min(best, (time.perf_counter() - start) / calls), rounds + 1
    return best
