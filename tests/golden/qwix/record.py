"""Records contractions of Qwix for tests/e2e/qwix_test.cc. README.md has the command."""

import argparse
import json
import pathlib
import platform
import sys

import jax
import ml_dtypes
import numpy as np
import qwix
import safetensors
from safetensors.numpy import save_file

_ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(_ROOT / "aqt/jax"), str(_ROOT / "aqt/jax/tests")]

from aqt_native import _qwix  # pylint: disable=wrong-import-position
from aqt_native import _errors  # pylint: disable=wrong-import-position
import qwix_cases  # pylint: disable=wrong-import-position

_NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def spec_of(case):
    """What aqt/jax/contraction_spec.h reads."""
    (rule,), (contracting, batch) = _qwix.read_rules([case.rule]), case.dims
    operation = _qwix.Operation(case.weight, (*contracting, *batch), (case.lhs.shape, case.rhs.shape),
                                _NAMES[case.lhs.dtype.name])
    dims = "|".join(",".join(str(axis) for axis in axes) for axes in (*contracting, *batch))
    return f"dims {dims}\ncompat qwix\nconfig\n{_qwix.contraction_text(rule, operation)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--seeds", default="1-200", help="ranges such as 1-100,150-160; refused cases are left out")
    parser.add_argument("--megabytes", type=float, default=0.9, help="largest size of the file; larger cases are left out")
    args = parser.parse_args()
    tensors, notes, size = {}, {}, 0
    ranges = [[int(end) for end in part.split("-")] for part in args.seeds.split(",")]
    for seed in (seed for first, last in ranges for seed in range(first, last + 1)):
        if seed % qwix_cases.SEEDS_PER_SHAPE == 0:
            jax.clear_caches()
        case = qwix_cases.draw(seed)
        try:
            spec = spec_of(case)
            results = qwix_cases.run_qwix(case)
        except _errors.NotSupportedError:
            continue
        except (ValueError, AssertionError, TypeError, NotImplementedError, RuntimeError) as error:
            print(f"seed {seed}: Qwix refuses: {str(error).splitlines()[0][:100] if str(error) else type(error).__name__}", flush=True)
            continue
        own = {"spec": np.frombuffer(spec.encode(), np.uint8), "lhs": case.lhs, "rhs": case.rhs, "g": case.g,
               "key": case.key}
        for name, (result, bound) in zip(("out", "dlhs", "drhs"), results):
            own[name] = result
            if bound is not None:
                own[f"{name}_bound"] = bound.astype(np.float32)
        own = {name: np.ascontiguousarray(np.asarray(x)) for name, x in own.items()}
        bytes_ = sum(x.nbytes for x in own.values())
        if bytes_ > 24_000 or size + bytes_ > args.megabytes * 1e6:
            continue
        size += bytes_
        tensors |= {f"{seed:06}/{name}": x for name, x in own.items()}
        notes[f"{seed:06}"] = case.notes
    # One entry: safetensors writes several in no fixed order.
    versions = {"python": platform.python_version(), "qwix": qwix.__version__, "jax": jax.__version__,
                "numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__, "safetensors": safetensors.__version__}
    save_file(tensors, args.out, metadata={"recording": json.dumps({"cases": list(notes), **versions})})
    for name, text in notes.items():
        print(name, text)


if __name__ == "__main__":
    main()
