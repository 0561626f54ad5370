#!/usr/bin/env python3
"""Measures our benchmarks and other libraries on this machine, alternating between them, and writes one table.

  ./bazelw build //tests/benchmarks:all
  tests/benchmarks/compare.py --python VENV/bin/python --out docs/performance.json
  tests/benchmarks/performance_page.py

Each round starts every benchmark and every runner in peers/ once, pinned to the same CPUs, when the machine is quiet. The time of
a row is the minimum over all rounds. --python is an interpreter with the peers' packages (onnxruntime, onnx, ai-edge-litert,
flatbuffers, mkl, jax, aqtp, torch). A runner whose packages are missing is skipped with a message. Eigen and oneDNN are measured
by our own benchmarks.
"""
import argparse
import datetime
import functools
import json
import os
import pathlib
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import performance_page  # noqa: E402  pylint: disable=wrong-import-position

BENCHMARKS = ("gemm", "dot_general", "train_step", "conv", "elementwise", "model_step")
ROW_ERROR = re.compile(r"[\w]+/[\w-]+/\w+/\d+/[^ ]+: ")  # a program that fails for one row
PEERS = tuple(sorted(path.stem.removeprefix("run_") for path in (HERE / "peers").glob("run_*.py")))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1", help="numbers of threads, for example 1,2")
    parser.add_argument("--filter", default="", help="only rows whose name class/shape/dtype/threads/who matches this regular expression; "
                                                     "peers run the classes and shapes of these rows")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"which of {', '.join(PEERS)}; empty for none")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the peers")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "bazel-bin/tests/benchmarks", help="folder of our benchmarks")
    parser.add_argument("--cpus", default="", help="CPUs to use, for example 0,1; default: the first ones")
    parser.add_argument("--inner", type=int, default=10, help="rounds of each row within one run of a program")
    parser.add_argument("--milliseconds", type=float, default=10, help="duration of each inner round of a row, ours or a peer's")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for a quiet machine before each run")
    parser.add_argument("--limit", type=float, default=1200, help="time limit of one run in seconds")
    parser.add_argument("--add", type=pathlib.Path, action="append", default=[], metavar="EARLIER",
                        help="a file from an earlier run, of the same commit on the same machine: its rounds are included")
    parser.add_argument("--out", type=pathlib.Path, help="the JSON file to write; the table is always printed")
    return parser.parse_args()


# ---- the machine

def busy_seconds():
    """CPU time of all processes since the machine started."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, soft = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(limit):
    """Waits up to `limit` seconds for half a second without load from other processes. Returns whether there was one."""
    end = time.monotonic() + limit
    while True:
        before, start = busy_seconds(), time.monotonic()
        time.sleep(0.5)
        if (busy_seconds() - before) / (time.monotonic() - start) < 0.1:
            return True
        if time.monotonic() > end:
            return False


def first_line(path, default="?"):
    try:
        return pathlib.Path(path).read_text(encoding="ascii").splitlines()[0].strip()
    except (OSError, IndexError):
        return default


def describe_machine(cpus):
    """The description of the machine, for comparisons."""
    with open("/proc/cpuinfo", encoding="ascii") as file:
        info = dict(map(str.strip, line.split(":", 1)) for line in file if ":" in line)
    flags = set(info.get("flags", "").split())
    wanted = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
    caches = []
    for folder in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if first_line(folder / "type") != "Instruction":
            caches.append(f"L{first_line(folder / 'level')} {first_line(folder / 'size')}")
    return {
        "processor": f"{info.get('model name', '?')}, family {info.get('cpu family', '?')}, model {info.get('model', '?')}",
        "instructions": ", ".join(name for name in wanted if name in flags),
        "caches": ", ".join(caches),
        "CPUs": f"{', '.join(map(str, cpus))} of {os.cpu_count()}",
        "system": f"{platform.system()} {platform.release()}",
    }


def command_line(words):
    """The command that repeats the measurement, without the paths of this machine."""
    kept, skip = [], False
    for word in words:
        path = re.match("--(python|bin|out|add)(=|$)", word)
        if not path and not skip:
            kept.append(shlex.quote(word))
        skip = bool(path) and "=" not in word
    return " ".join(["tests/benchmarks/compare.py", *kept])


# ---- running

class Runs:
    """Starts programs in sequence on the same CPUs, and records load from other processes."""

    def __init__(self, args, cpus):
        self.args, self.cpus, self.count, self.disturbed = args, cpus, 0, []

    def start(self, name, command, threads, measured=True):
        """The exit status and the output of a program."""
        cpus = set(self.cpus[:threads])
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads), PYTHONDONTWRITEBYTECODE="1")
        quiet = not measured or wait_until_quiet(self.args.wait)
        own, before, start = children_seconds(), busy_seconds(), time.monotonic()
        try:
            done = subprocess.run(list(map(str, command)), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=self.args.limit, check=False, preexec_fn=lambda: os.sched_setaffinity(0, cpus))
            code, out, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            # Keep what it has printed so far.
            code, out, errors = 0, (late.stdout or b"").decode(), f"stopped after {self.args.limit:g} s"
        taken = time.monotonic() - start
        self.count += measured
        others = max(0.0, busy_seconds() - before - (children_seconds() - own)) / max(taken, 1e-3)
        if measured and (others > 0.1 or not quiet):
            self.disturbed.append(f"{name}: others used {others:.2f} CPUs")
        for line in errors.splitlines():
            if ROW_ERROR.match(line):
                print(f"  {line}", file=sys.stderr)
        if code != 0:
            print(f"  {name}: exit status {code}: {(errors.strip() or 'no message').splitlines()[-1]}", file=sys.stderr)
        if measured:
            print(f"  {name}, {threads} threads: {taken:.0f} s, others {others:.2f} CPUs", file=sys.stderr, flush=True)
        return code, out


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ours(runs, args, name, rows, threads):
    """Times of these rows of a benchmark, [{"row", "us", "roof"}], and the machine's roofs."""
    with tempfile.TemporaryDirectory() as scratch:
        file = pathlib.Path(scratch, "out.json")
        chosen = "^(" + "|".join(re.escape(row) for row in rows) + ")$"
        code, _ = runs.start(name, [args.bin / name, "--threads", threads, "--rounds", args.inner, "--milliseconds",
                                args.milliseconds, "--filter", chosen, "--json", file], threads)
        if code != 0:
            return [], {}
        data = json.loads(file.read_text(encoding="utf-8"))
    found = []
    for run in data["benchmarks"]:
        row = {"row": run["name"], "us": run["real_time"]}
        if "roof" in run:
            row["roof"] = run["roof"]
        found.append(row)
    return found, {key: value for key, value in data["context"].items() if key.startswith(("roof_", "target"))}


def peer(runs, args, name, rows, threads):
    shapes = {}
    for row in rows:
        cls, shape = row.split("/")[:2]
        shapes.setdefault(cls, {})[shape] = None
    # Keep what a runner printed before it failed.
    _, out = runs.start(name, [args.python, HERE / f"peers/run_{name}.py", "--threads", threads, "--milliseconds", args.milliseconds,
                            # The same number of rounds as ours.
                            "--seconds", args.inner * args.milliseconds / 1000,
                            "--rows", json.dumps({cls: list(names) for cls, names in shapes.items()})], threads)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def merge(best, found):
    """Adds `found` to `best`: keeps the best time of each row and the times of all rounds. A found row has one round, or a list."""
    for row in found:
        old = best.get(row["row"])
        times = (old["rounds_us"] if old else []) + row.get("rounds_us", [row["us"]])
        best[row["row"]] = dict(row if old is None or row["us"] < old["us"] else old, rounds_us=times)


def together(earlier, later):
    """Merges two runs. The number of rounds is that of the earlier run; rows in both have more."""
    best = {}
    merge(best, earlier["rows"])
    merge(best, later["rows"])
    return {**earlier, "command": f"{earlier['command']}\n{later['command']}", "date": later["date"],
            "minutes": round(earlier["minutes"] + later["minutes"], 1), "runs": earlier["runs"] + later["runs"],
            "disturbed": earlier["disturbed"] + later["disturbed"], "rows": [best[name] for name in sorted(best)]}


def earlier_runs(paths, commit, processor):
    """The contents of these files. Results of another commit or another machine are refused, because they cannot be compared."""
    found = []
    for path in paths:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            origin = data["commit"], data["machine"]["processor"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"--add {path}: expected a file that --out wrote: {error!r}")
        if origin != (commit, processor):
            sys.exit(f"--add {path}: it is from {' on '.join(origin)}, this run is from {commit} on {processor}; measure both with one commit "
                     "on one machine")
        found.append(data)
    return found


def current_commit():
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip()


def save(path, data):
    """One row per line, so that changes are easy to see."""
    text = json.dumps({key: value for key, value in data.items() if key != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row) for row in data["rows"])
    path.write_text(f'{text[:-2]},\n "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def available(runs, args, names):
    """The peers whose packages are installed."""
    found = []
    for name in names:
        if name not in PEERS:
            sys.exit(f"--peers: unknown peer {name}; expected one of {', '.join(PEERS)}")
        if runs.start(name, [args.python, HERE / f"peers/run_{name}.py", "--rows", "{}"], 1, measured=False)[0] != 0:
            print(f"{name}: skipped, {args.python} does not have its packages", file=sys.stderr)
        else:
            found.append(name)
    return found


def main():
    args = arguments()
    counts = [int(count) for count in args.threads.split(",")]
    cpus = [int(cpu) for cpu in args.cpus.split(",")] if args.cpus else sorted(os.sched_getaffinity(0))[:max(counts)]
    if len(cpus) < max(counts):
        sys.exit(f"--threads: {max(counts)} threads, but only {len(cpus)} CPUs")
    for name in BENCHMARKS:
        if not (args.bin / name).exists():
            sys.exit(f"{args.bin / name} is missing: run  ./bazelw build //tests/benchmarks:all")
    earlier = earlier_runs(args.add, current_commit(), describe_machine(cpus)["processor"])
    runs = Runs(args, cpus)
    peers = available(runs, args, [name for name in args.peers.split(",") if name])

    wanted = {}  # (benchmark, threads) -> rows; a row of two benchmarks belongs to the first
    for threads in counts:
        seen = set()
        for name in BENCHMARKS:
            _, listed = runs.start(name, [args.bin / name, "--list", "--threads", threads], threads, measured=False)
            rows = [row for row in listed.split() if re.search(args.filter, row) and row not in seen]
            seen.update(rows)
            wanted[name, threads] = rows

    best, roofs, start = {}, {}, time.monotonic()
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        for threads in counts:
            every_row = [row for (_, count), rows in wanted.items() if count == threads for row in rows]
            for name in BENCHMARKS:
                if wanted[name, threads]:
                    found, context = ours(runs, args, name, wanted[name, threads], threads)
                    merge(best, found)
                    roofs.update(context)
            for name in peers:
                if every_row:
                    merge(best, peer(runs, args, name, every_row, threads))

    data = {
        "machine": {**describe_machine(cpus), **roofs},
        "command": command_line(sys.argv[1:]),
        "commit": current_commit(),
        "date": datetime.date.today().isoformat(),
        "rounds": args.rounds,
        "minutes": round((time.monotonic() - start) / 60, 1),
        "runs": runs.count,
        "disturbed": runs.disturbed,
        "rows": [best[name] for name in sorted(best)],
    }
    data = functools.reduce(together, [*earlier, data])
    if args.out:
        save(args.out, data)
    print(performance_page.page(data))
    for line in runs.disturbed:
        print(f"disturbed: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
