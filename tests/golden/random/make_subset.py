"""Keeps the most telling cases of random recordings.

  make_subset.py --out=DIR --checker=PATH [--cases=N] [--refused=N] RECORDING...

Takes N cases in sequence. Each is the case that covers the most new features per byte: values of configuration fields
alone and in pairs, operand dtypes, kinds of data and of tolerance. Of the refused cases it takes the same number for each
error. Tensors and entries are copied unchanged. Cases that fail in the checker (//tests:golden_check), or that it accepts
although the original refuses them, are left out and named: they are open work.
"""

import argparse
import collections
import heapq
import itertools
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'aqt'))
import make_subset as subset  # pylint: disable=g-import-not-at-top

# Fields whose values are considered in pairs.
TELLING = re.compile(r'(type|bits|dtype|preserve_zero|round|clip|kind|po2_scale|scale_dtype|dequant_mode|calibration_mode|'
                     r'use_fwd_quant|mid_alpha|accumulator_dtype|radix|stochastic_rounding|calibration_axes)=')


def shown_by(case):
  shown = subset.shown_by(case)
  telling = sorted(s for s in shown if TELLING.search(s) or ' data ' in s or ': input ' in s and 'rank' not in s)
  # Pairs within a pass, and of each field with the data and the dtypes.
  part = lambda s: re.search(r'(fwd|dlhs|drhs)', s)
  for a, b in itertools.combinations(telling, 2):
    pa, pb = part(a), part(b)
    if pa is None or pb is None or pa.group() == pb.group():
      shown.add(f'{a} & {b}')
  return shown


def choose(cases, sizes, count):
  """The names of `count` cases, greedily. The gain of a case only shrinks, so an old value is an upper bound."""
  shown = {case['name']: shown_by(case) for case in cases}
  worth = lambda name: len(shown[name] - seen) / sizes[name]**.7
  chosen, seen = set(), set()
  heap = [(-worth(name), name) for name in shown]
  heapq.heapify(heap)
  while heap and len(chosen) < count:
    _, name = heapq.heappop(heap)
    now = (-worth(name), name)
    if heap and now > heap[0]:
      heapq.heappush(heap, now)
      continue
    chosen.add(name)
    seen |= shown[name]
  return chosen


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--out', required=True)
  parser.add_argument('--checker', required=True)
  parser.add_argument('--cases', type=int, default=200)
  parser.add_argument('--refused', type=int, default=2, help='of each error')
  parser.add_argument('recordings', nargs='+')
  args = parser.parse_args()
  cases, refused, tensors, manifest = [], [], {}, None
  for directory in args.recordings:
    manifest, of_directory = subset.load(directory)
    run = subprocess.run([args.checker, f'--golden_dir={directory}', '--verbose'], stdout=subprocess.PIPE, text=True,
                         check=False)
    if run.returncode not in (0, 1):
      raise SystemExit(f'{args.checker} ended with {run.returncode}')
    open_work = set(re.findall(r'^(?:FAILED|ACCEPTED|NOT SUPPORTED) ([^:]+):', run.stdout, re.M))
    if open_work:
      print(f'{directory}: left out', ', '.join(sorted(open_work)))
    cases += [case for case in manifest['cases'] if case['name'] not in open_work]
    refused += [case for case in manifest['unsupported'] if case['case'] not in open_work]
    tensors.update(of_directory)
  sizes = {case['name']: len(subset.json.dumps(case)) + sum(
      len(tensors[key][1]) + len(key) + 60 for key in subset.keys_of(case)) for case in cases}
  chosen = choose(cases, sizes, args.cases)
  cases = [case for case in cases if case['name'] in chosen]
  for case in cases:
    case['config'].pop('observed', None)
  errors = collections.Counter()
  kept = []
  for case in sorted(refused, key=lambda c: len(subset.json.dumps(c))):
    error = re.sub(r'[0-9]+', 'N', case['error'])[:60]
    errors[error] += 1
    if errors[error] <= args.refused:
      kept.append(case)
  families = {}
  for name in sorted({case['family'] for case in cases}):
    part = {key: tensors[key] for case in cases + kept if case['family'] == name for key in subset.keys_of(case)}
    file = name + '.safetensors'
    families[name] = {'file': file, 'cases': sum(case['family'] == name for case in cases), 'tensors': len(part),
                      'sha256': subset.write_safetensors(os.path.join(args.out, file), part)}
  manifest.update(families=families, case_count=len(cases), seed=[os.path.basename(d) for d in args.recordings],
                  unsupported=[case for case in kept if case['family'] in families], cases=cases)
  subset.write_manifest(os.path.join(args.out, 'manifest.json'), manifest)
  print({name: facts['cases'] for name, facts in families.items()}, len(manifest['unsupported']), 'refused')


if __name__ == '__main__':
  main()
