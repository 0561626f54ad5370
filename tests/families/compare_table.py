#!/usr/bin/env python3
"""Compares the plans of the converter with the module classes of every family.

    AQT=.../aqt python3 compare_table.py [--only REGEX] [--preset w8a8_dynamic] [--unknown]

The script constructs each family of families.py from its class again, and gives `aqt plan` a checkpoint with its names and
shapes, in bf16 with random values. The modules that the program quantizes, keeps and ignores must follow from the classes. The
families of hand.py are compared with their lists. The exit code is 0 if all agree.

With --unknown, config.json does not name the model. The errors are then the facts that the program takes from its table and
cannot derive from names and shapes; they also set the exit code."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import safetensors.torch
import torch

import agreement
import families
import hand
import record as recorder


def plan(program, folder, preset):
    run = subprocess.run([program, "plan", folder, "--preset", preset, "--json"], capture_output=True, text=True)
    if run.returncode != 0:
        raise ValueError(f"exit code {run.returncode}: {run.stderr.strip()}")
    return json.loads(run.stdout)


def write_folder(folder, record, config):
    """A checkpoint with the tensors of a record, with random values."""
    integers = set(record.get("integers", []))
    tensors = {name: torch.zeros(shape,
                                 dtype=torch.int64) if name in integers else torch.randn(shape).to(torch.bfloat16)
               for name, shape in record["tensors"].items()}
    safetensors.torch.save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)


def compare(program, record, config, inner, preset):
    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, record, config)
        try:
            result = plan(program, folder, preset)
        except ValueError as e:
            if not record["quantized"] and "nothing would be quantized" in str(e):
                return []
            return [str(e)]
    missing = set(record["tensors"]) - {t["name"] for t in result["tensors"]}
    quantized = [t["name"][:-len(".weight")] for t in result["tensors"] if t["scheme"]]
    return [f"{n} is not in the plan" for n in sorted(missing)] + \
        agreement.problems(record, quantized, result["quantization_config"]["ignore"], inner)


def every_family(only):
    """New records, each with a config.json and the names in the model."""
    for family in families.FAMILIES:
        if re.fullmatch(only, family.name):
            yield recorder.record(family)
    for record in hand.HAND:
        if re.fullmatch(only, record["family"]):
            yield recorder.complete(record), record["config"], {}


def without_names(config):
    """The configuration without the model's type and class."""
    return {key: without_names(value) if isinstance(value, dict) else value
            for key, value in config.items() if key not in ("model_type", "architectures", "auto_map")}


def recorded(record):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", record["family"] + ".json")
    with open(path) as f:
        return json.load(f) == record


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=".*")
    parser.add_argument("--preset", default="w8a8_dynamic")
    parser.add_argument("--unknown", action="store_true")
    args = parser.parse_args()
    program = os.environ["AQT"]
    bad = 0
    for record, config, inner in every_family(args.only):
        found = [] if recorded(record) else [f"data/{record['family']}.json is not what record.py makes of it"]
        if args.unknown:
            config = without_names(config)
        found += compare(program, record, config, inner, args.preset)
        bad += bool(found)
        print(f"{'WRONG' if found else 'ok   '} {record['family']}", *found, sep="\n        ")
    sys.exit(f"{bad} families disagree" if bad else 0)


if __name__ == "__main__":
    main()
