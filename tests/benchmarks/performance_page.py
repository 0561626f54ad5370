#!/usr/bin/env python3
"""Writes docs/performance.md, docs/performance.svg and docs/speed.svg from docs/performance.json, which compare.py measured.

usage: tests/benchmarks/performance_page.py          writes the page and the pictures
       tests/benchmarks/performance_page.py --check  fails if a written file differs from what it would write
"""
import dataclasses
import json
import math
import pathlib
import re
import sys
from typing import Callable, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA, PAGE, PICTURE = "docs/performance.json", "docs/performance.md", "docs/performance.svg"
SPEED = "docs/speed.svg"  # the README's picture


def sizes(shape):
    """(batch, m, k, n), or None for the shape of a convolution."""
    if "-" in shape:
        return None
    numbers = [int(size) for size in shape.split("x")]
    return (1, *numbers) if len(numbers) == 3 else tuple(numbers)


def any_shape(_):
    return True


def m_between(low, high):
    """Products, not batches of them, with low <= m <= high; of a useful size."""
    def chosen(shape):
        batch, m, k, n = sizes(shape)
        return batch == 1 and low <= m <= high and min(k, n) >= 128
    return chosen


def batched(shape):
    return sizes(shape)[0] > 1


def small(shape):
    return sizes(shape)[0] == 1 and 16 <= min(sizes(shape)[1:]) and max(sizes(shape)[1:]) < 256


def large_steps(shape):
    return min(sizes(shape)[1:]) >= 512


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Ours against the best of some peers' rows, on some shapes."""
    title: str
    ours: str  # class/dtype
    peers: tuple  # of (class/dtype, times): `times` of these do the work of one of ours
    shapes: Callable = any_shape
    who: str = ""  # a regular expression: only peers whose names it matches


F32, F32_STEP = (("product/f32", 1), ("packed/f32", 1)), (("step/f32", 1), ("product/f32", 3))
MANY, ONE, FEW = m_between(128, 1 << 30), m_between(1, 1), m_between(2, 16)
COMPARISONS = (
    Comparison("s8 product, weights packed, M >= 128", "packed/s8", (("packed/s8", 1), ("product/s8", 1)), MANY),
    Comparison("s8 product, weights packed, few rows", "packed/s8", (("packed/s8", 1), ("product/s8", 1)), m_between(1, 16)),
    Comparison("dynamic int8, M >= 128", "dynamic/int8", (("dynamic/int8", 1),), MANY),
    Comparison("dynamic int8, few rows", "dynamic/int8", (("dynamic/int8", 1),), m_between(1, 16)),
    Comparison("dynamic int8 against f32, M >= 128", "dynamic/int8", F32, MANY),
    Comparison("dynamic int8 against f32, batch of small products", "dynamic/int8", F32, batched),
    Comparison("dynamic int8, small", "dynamic/int8", (("dynamic/int8", 1), *F32), small),
    Comparison("training step, int8 against f32", "step/int8", F32_STEP, large_steps),
    Comparison("training step, int8 with AQT's noise against f32", "step/int8_noise", F32_STEP, large_steps),
    Comparison("training step, int8 with fast noise against f32", "step/int8_fast", F32_STEP, large_steps),
    Comparison("training step, fp8 against f32", "step/fp8", F32_STEP, large_steps),
    Comparison("training step, int8 against AQT on JAX", "step/int8", (("step/int8", 1),), large_steps, "-aqt$"),
    Comparison("training step, int8 with AQT's noise against AQT on JAX", "step/int8_noise", (("step/int8_noise", 1),),
               large_steps, "-aqt$"),
    Comparison("8-bit weights, float activations, M = 1", "weights_only/w8", (("weights_only/w8", 1), *F32), ONE),
    Comparison("8-bit weights, float activations, M = 8", "weights_only/w8", (("weights_only/w8", 1), *F32), FEW),
    Comparison("8-bit weights, float activations, M >= 128, against f32", "weights_only/w8", F32, MANY),
    Comparison("4-bit weights in groups of 128, float activations, M = 1", "weights_only/w4_g128",
               (("weights_only/w4_g128", 1), *F32), ONE),
    Comparison("4-bit weights in groups of 128, float activations, M = 8", "weights_only/w4_g128",
               (("weights_only/w4_g128", 1), *F32), FEW),
    Comparison("4-bit weights in groups of 128, float activations, M >= 128, against f32", "weights_only/w4_g128", F32, MANY),
    Comparison("4-bit weights, int8 activations, M = 1", "dynamic/int4", (("dynamic/int4", 1), ("dynamic/int4_g128", 1)), ONE),
    Comparison("4-bit weights, int8 activations, M = 8", "dynamic/int4", (("dynamic/int4", 1), ("dynamic/int4_g128", 1)), FEW),
    Comparison("4-bit weights in groups of 128, int8 activations, M = 1", "dynamic/int4_g128", (("dynamic/int4_g128", 1),), ONE),
    Comparison("4-bit weights in groups of 128, int8 activations, M = 8", "dynamic/int4_g128", (("dynamic/int4_g128", 1),), FEW),
    Comparison("fp8 forward against f32", "fp8/e4m3", (*F32, ("fp8/e4m3", 1)), MANY),
    Comparison("bf16 product", "product/bf16", (("product/bf16", 1),), MANY),
    Comparison("bf16 product, weights packed", "packed/bf16", (("packed/bf16", 1), ("product/bf16", 1)), MANY),
    Comparison("f32 product", "product/f32", (("product/f32", 1),), MANY),
    Comparison("f32 product, weights packed", "packed/f32", F32, MANY),
    Comparison("f32 gradients", "gradients/f32", (("gradients/f32", 1), ("product/f32", 2)), large_steps),
    Comparison("convolution, int8 against f32", "conv/int8", (("conv/f32", 1),)),
    Comparison("convolution, int8", "conv/int8", (("conv/int8", 1),)),
    Comparison("convolution, f32", "conv/f32", (("conv/f32", 1),)),
    Comparison("convolution, f32 gradients", "conv_gradients/f32", (("conv_gradients/f32", 1),)),
    *(Comparison(f"{name} of 16 MiB", f"elementwise/{program}", ((f"elementwise/{program}", 1),))
      for name, program in (("chain of 6 operations", "chain"), ("the same in bf16", "chain_bf16"), ("softmax", "softmax"),
                            ("norm", "norm"), ("update of Adam", "adam"))),
    *(Comparison(f"step of a transformer, {dtype} against f32", f"transformer/{dtype}", (("transformer/f32", 1),))
      for dtype in ("f32", "bf16", "int8", "int8_noise", "int8_fast", "fp8", "bf16_fp8")),
    Comparison("step of the digits model, f32", "digits/f32", (("digits/f32", 1),)),
    *(Comparison(f"step of the digits model, {dtype} against AQT on JAX", f"digits/{dtype}", ((f"digits/{dtype}", 1),), who="-aqt$")
      for dtype in ("int8", "int8_noise")),
)


@dataclasses.dataclass(frozen=True)
class Line:
    """One shape of a comparison."""
    shape: str
    us: float
    roof: Optional[float]
    peer: str
    peer_us: float

    @property
    def ratio(self):
        return self.peer_us / self.us


def index(rows):
    """{("class/dtype", shape, threads): {who: row}}"""
    found = {}
    for row in rows:
        cls, shape, dtype, threads, who = row["row"].split("/")
        found.setdefault((f"{cls}/{dtype}", shape, int(threads)), {})[who] = row
    return found


def lines_of(comparison, rows, threads):
    """A Line for each shape that was measured for us and for a peer."""
    found = []
    for (kind, shape, count), by_who in rows.items():
        if kind != comparison.ours or count != threads or "aqt" not in by_who or not comparison.shapes(shape):
            continue
        peers = [(row["us"] * times, who + (f" ({times} products)" if times > 1 else ""))
                 for peer_kind, times in comparison.peers for who, row in rows.get((peer_kind, shape, threads), {}).items()
                 if not who.startswith("aqt") and re.search(comparison.who, who)]
        if peers:
            us, who = min(peers)
            found.append(Line(shape, by_who["aqt"]["us"], by_who["aqt"].get("roof"), who, us))
    return found


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def number(value):
    """Three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}"


def ratio(value):
    """Bold where the peer is faster."""
    return f"**{value:.2f}**" if value < 0.995 else f"{value:.2f}"


def summary(data):
    """[(threads, comparison, lines)] for the comparisons that have lines."""
    rows = index(data["rows"])
    counts = sorted({threads for _, _, threads in rows})
    found = ((threads, comparison, lines_of(comparison, rows, threads)) for threads in counts for comparison in COMPARISONS)
    return [entry for entry in found if entry[2]]


def scaling(data, shape="512x1024x4096"):
    """[(class/dtype, threads, our time on one thread, our time on `threads`)] on a shape that is large enough for threads."""
    rows = index(data["rows"])
    found = []
    for (kind, row_shape, threads), by_who in rows.items():
        alone = rows.get((kind, row_shape, 1), {})
        if row_shape == shape and threads > 1 and "aqt" in by_who and "aqt" in alone:
            found.append((kind, threads, alone["aqt"]["us"], by_who["aqt"]["us"]))
    return sorted(found)


def rounds_of(data):
    """The number of rounds, and the number of rows that were measured again."""
    again = sum(len(row.get("rounds_us", [])) > data["rounds"] for row in data["rows"])
    return f"{data['rounds']}, with more for {again} rows" if again else str(data["rounds"])


def commands_of(data):
    """The commands of the runs, in order. Bars are escaped: a bare one would end the table's cell."""
    return ", then ".join("`" + line.replace("|", "\\|") + "`" for line in data["command"].splitlines())


def page(data):
    """The text of docs/performance.md."""
    machine = data["machine"]
    lines = [
        "# Performance", "",
        "This library against others on one machine. The libraries take turns, and each time is the best over all rounds. A ratio "
        "is the time of the best peer divided by ours: above 1 we are faster; in **bold**, a peer is faster. The page is generated "
        "from `docs/performance.json` by `tests/benchmarks/performance_page.py`; do not edit it. `tests/benchmarks/compare.py` "
        "repeats the measurements.", "",
        "| | |", "|---|---|",
        *(f"| {name} | {value} |" for name, value in machine.items()),
        f"| command | {commands_of(data)} |", f"| commit | {data['commit']} |", f"| date | {data['date']} |",
        f"| rounds | {rounds_of(data)}; other processes used the machine during {len(data['disturbed'])} of {data['runs']} runs |", "",
        "![ratios](performance.svg)", "",
        "Peers do not always compute the same thing. MLAS and PyTorch quantize activations to u8 with one scale for all rows; this "
        "library and XNNPACK quantize to int8 with one scale per row. A PyTorch row whose name ends in bf16 multiplies quantized "
        "weights by bf16 activations. Each library allocates its own packed weights. Our arrays request huge pages from 4 MiB on. "
        "\"(3 products)\" means three times the peer's forward product, where that is faster than the peer's own step.", "",
        "## Summary", "",
        "| threads | | shapes | geometric mean | lowest | at | peers |", "|---|---|---|---|---|---|---|",
    ]
    entries = summary(data)
    for threads, comparison, found in entries:
        worst = min(found, key=lambda line: line.ratio)
        peers = ", ".join(sorted({line.peer.split(" (")[0] for line in found}))
        mean = geomean([line.ratio for line in found])
        lines.append(f"| {threads} | {comparison.title} | {len(found)} | {ratio(mean)} | {ratio(worst.ratio)} | {worst.shape} "
                     f"| {peers} |")
    ahead = [(threads, comparison, line) for threads, comparison, found in entries for line in found if line.ratio < 0.995]
    lines += ["", "## Where a peer is faster", ""]
    lines += ["| threads | | shape | peer | ratio |", "|---|---|---|---|---|"] if ahead else ["Nowhere."]
    lines += [f"| {threads} | {comparison.title} | {line.shape} | {line.peer} | {ratio(line.ratio)} |"
              for threads, comparison, line in sorted(ahead, key=lambda entry: (entry[0], entry[2].ratio))]
    if scaled := scaling(data):
        lines += ["", "## Threads", "", "Our times on 512x1024x4096 with one thread and with several, and the speedup.", "",
                  "| | threads | us, one thread | us | speedup |", "|---|---|---|---|---|"]
        lines += [f"| `{kind}` | {threads} | {number(one)} | {number(more)} | {one / more:.2f} |" for kind, threads, one, more in scaled]
    for threads in sorted({entry[0] for entry in entries}):
        lines += ["", f"## Each shape, {threads} thread{'s' if threads > 1 else ''}"]
        for count, comparison, found in entries:
            if count != threads:
                continue
            lines += ["", f"**{comparison.title}** (`{comparison.ours}`)", "",
                      "| shape | us | share of roof | best peer | us | ratio |", "|---|---|---|---|---|---|"]
            lines += [f"| {x.shape} | {number(x.us)} | {'' if x.roof is None else f'{100 * x.roof:.0f} %'} | {x.peer} "
                      f"| {number(x.peer_us)} | {ratio(x.ratio)} |" for x in found]
    return "\n".join(lines) + "\n"


def picture(data):
    """The text of docs/performance.svg. Each comparison on one thread has a bar from 1 to the geometric mean and a line from the
    lowest ratio to the highest, on a logarithmic scale."""
    entries = [(comparison.title, [line.ratio for line in found]) for threads, comparison, found in summary(data) if threads == 1]
    left, width, row, top = 500, 420, 20, 40
    values = [value for _, ratios in entries for value in ratios] + [0.5, 2.0]
    low, high = math.log2(min(values)), math.log2(max(values))
    x = lambda value: left + width * (math.log2(value) - low) / (high - low)
    height = top + row * len(entries) + 20
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" height="{height}" font-family="sans-serif" '
           'font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="16">time of the best peer / ours, one thread: geometric mean, lowest to highest</text>']
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        tick = 2.0 ** exponent
        out += [f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 8}" y2="{height - 16}" '
                f'stroke="{"black" if exponent == 0 else "lightgray"}"/>',
                f'<text x="{x(tick):.1f}" y="{top - 12}" text-anchor="middle" font-size="10">{tick:g}</text>']
    for i, (title, ratios) in enumerate(entries):
        y, mean = top + row * i, geomean(ratios)
        begin, end = sorted((x(1), x(mean)))
        out += [f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{title.replace("&", "&amp;").replace(">", "&gt;")}</text>',
                f'<rect x="{begin:.1f}" y="{y + 2}" width="{end - begin:.1f}" height="12" '
                f'fill="{"#4c78a8" if mean >= 1 else "#e45756"}"/>',
                f'<line x1="{x(min(ratios)):.1f}" x2="{x(max(ratios)):.1f}" y1="{y + 8}" y2="{y + 8}" stroke="black"/>',
                f'<text x="{max(end, x(max(ratios))) + 5:.1f}" y="{y + 12}">{mean:.2f}</text>']
    return "\n".join([*out, "</svg>"]) + "\n"


# What the README shows: the title of a comparison, and its label there.
HEADLINES = (
    ("training step, int8 against AQT on JAX", "int8 training step"),
    ("training step, int8 against f32", "int8 training step / f32 step"),
    ("step of a transformer, int8 against f32", "int8 transformer step / f32 step"),
    ("dynamic int8 against f32, M >= 128", "dynamic int8 product / f32 product"),
    ("4-bit weights in groups of 128, float activations, M = 1", "4-bit weights, float activations, 1 row"),
    ("8-bit weights, float activations, M = 1", "8-bit weights, float activations, 1 row"),
    ("convolution, int8", "int8 convolution"),
    ("dynamic int8, M >= 128", "dynamic int8 product, 128 rows and more"),
    ("s8 product, weights packed, M >= 128", "s8 product, 128 rows and more"),
    ("f32 product", "f32 product"),
    ("bf16 product", "bf16 product"),
    ("step of the digits model, f32", "f32 step of a tiny model"),
)
NAMES = (("jax.*-aqt", "AQT on JAX"), ("jax", "JAX"), ("torch", "PyTorch"), ("xnnpack", "XNNPACK"), ("mlas", "MLAS"),
         ("onednn", "oneDNN"), ("mkl", "MKL"), ("eigen", "Eigen"))


def library(peer):
    """The library's own name for a peer of the measurements."""
    return next((name for pattern, name in NAMES if re.match(pattern, peer)), peer.split(" (")[0])


def speed_picture(data):
    """The text of docs/speed.svg: a bar from 0 to the geometric mean for each headline on one thread. Bars below 1 are red."""
    found = {comparison.title: lines for threads, comparison, lines in summary(data) if threads == 1}
    bars = [(label, geomean([line.ratio for line in found[title]]), sorted({library(line.peer) for line in found[title]}))
            for title, label in HEADLINES if title in found]
    left, row, top = 290, 24, 60
    scale = 400 / max([2.0] + [mean for _, mean, _ in bars])
    height = top + row * len(bars) + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 640}" height="{height}" font-family="sans-serif" '
           'font-size="13">', '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="18" font-weight="bold">time of the fastest peer / our time, one thread (above 1: we are faster)</text>',
           f'<text x="{left}" y="35" font-size="11">geometric mean over shapes; {data["machine"]["processor"]}, '
           f'{data["machine"].get("target", "")}; {data["date"]}</text>']
    for i, (label, mean, peers) in enumerate(bars):
        y = top + row * i
        label, peers = (text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for text in (label, ", ".join(peers)))
        out += [f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{label}</text>',
                f'<rect x="{left}" y="{y}" width="{scale * mean:.1f}" height="17" fill="{"#e45756" if mean < 0.995 else "#4c78a8"}"/>',
                f'<text x="{left + scale * max(mean, 1) + 6:.1f}" y="{y + 13}">{mean:.2f}, against {peers}</text>']
    line = f"{left + scale:.1f}"
    out += [f'<line x1="{line}" x2="{line}" y1="{top - 8}" y2="{height - 8}" stroke="black" stroke-dasharray="3 2"/>',
            f'<text x="{line}" y="{top - 11}" text-anchor="middle" font-size="11">1</text>']
    return "\n".join([*out, "</svg>"]) + "\n"


def texts(data):
    """{path: its text}"""
    return {PAGE: page(data), PICTURE: picture(data), SPEED: speed_picture(data)}


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    for path, text in texts(json.loads((ROOT / DATA).read_text(encoding="utf-8"))).items():
        if not sys.argv[1:]:
            (ROOT / path).write_text(text, encoding="utf-8")
        elif not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text:
            stale.append(f"{path} is out of date: run tests/benchmarks/performance_page.py")
    print("\n".join(stale), end="\n" if stale else "")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
