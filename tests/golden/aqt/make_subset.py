"""Copies a small subset of recorded AQT cases that still covers every configuration.

  make_subset.py --golden_dir=DIR --out=DIR --checker=PATH

The script handles DIR and its subdirectory ieee, if there is one. From the cases that the checker (//tests:golden_check)
supports, it greedily chooses a subset of few bytes in which each value of each configuration field, each operand dtype, and
each kind of tolerance and of data occurs. Cases above MAX_CASE_BYTES are left out. In ieee, only cases whose numbers differ
from those in DIR are used. Tensors, manifest entries and versions are copied unchanged; the counts and hashes in the manifest
are those of the subset.
"""

import argparse
import collections
import hashlib
import json
import os
import re
import struct
import subprocess

# Larger cases, which are tables of all 16-bit patterns, are left out.
MAX_CASE_BYTES = 100_000

# Fields that follow from others, or that describe the original's run.
IGNORED = {'quant_bound', 'fwd_clip_bound', 'observed', 'jit_forward_differs_in', 'jit_forward_fails_with',
           'max_abs_diff_to_printed', 'float_max_abs_diff_to_printed', 'use_fake_quant', 'final_loss', 'mean_last10',
           'max_deviation_under_small_perturbation', 'max_abs_diff_to_float'}


def read_safetensors(path):
  """{name: (entry of the header, bytes)}"""
  with open(path, 'rb') as f:
    data = f.read()
  size, = struct.unpack('<Q', data[:8])
  header = json.loads(data[8:8 + size])
  header.pop('__metadata__', None)
  begin, end = lambda e: 8 + size + e['data_offsets'][0], lambda e: 8 + size + e['data_offsets'][1]
  return {name: (entry, data[begin(entry):end(entry)]) for name, entry in header.items()}


def write_safetensors(path, tensors):
  header, offset = {}, 0
  for name, (entry, data) in tensors.items():
    header[name] = {'dtype': entry['dtype'], 'shape': entry['shape'], 'data_offsets': [offset, offset + len(data)]}
    offset += len(data)
  text = json.dumps(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  content = struct.pack('<Q', len(text)) + text + b''.join(data for _, data in tensors.values())
  with open(path, 'wb') as f:
    f.write(content)
  return hashlib.sha256(content).hexdigest()


def write_manifest(path, manifest):
  """One case per line."""
  head = {key: value for key, value in manifest.items() if key not in ('unsupported', 'cases')}
  lines = lambda entries: '[' + ','.join('\n' + json.dumps(e, separators=(',', ':')) for e in entries) + '\n]'
  with open(path, 'w') as f:
    f.write(json.dumps(head)[:-1] + ', "unsupported": ' + lines(manifest['unsupported']) + ', "cases": ' +
            lines(manifest['cases']) + '}\n')


def keys_of(case):
  return [entry['key'] for part in ('inputs', 'expected') for entry in case.get(part, {}).values()]


def leaves(config, path=''):
  if isinstance(config, dict):
    for key, value in config.items():
      if key not in IGNORED:
        yield from leaves(value, f'{path}.{key}')
  else:
    yield f'{path}={json.dumps(config)}'


def numerics(config):
  """The objects that describe numerics."""
  if isinstance(config, dict):
    if 'type' in config:
      yield config
    for value in config.values():
      yield from numerics(value)


def shown_by(case):
  """The features that a case covers."""
  shown = set(leaves(case['config']))
  for name, entry in case['inputs'].items():
    shown.add(f'input {name} {entry["dtype"]}')
    shown.add(f'input {name} rank {len(entry["shape"])}')
  for name, entry in case['expected'].items():
    tol = entry['tol']
    kind = f'{tol["kind"]} {sorted(set(tol) - {"value", "atol"})}'
    shown.add(f'expected {re.sub("[0-9]+", "N", name)} {entry["dtype"]} {kind}')
    shown.update(f'expected {flag}' for flag in ('has_nan', 'has_inf') if entry.get(flag))
  # Switches interact with each other and with the dtype.
  dtypes = sorted({entry['dtype'] for entry in case['inputs'].values()})
  for n in numerics(case['config']):
    shown.add(f'numerics {[n.get(k) for k in ("type", "dtype", "bits", "preserve_zero", "preserve_max_val")]}')
    shown.add(f'numerics {dtypes} {[n.get(k) for k in ("type", "preserve_zero", "clip", "round")]}')
  tiling = case['config'].get('tiling')
  if tiling:
    tiled = [bool(tiling[side][axes]) for side in ('lhs', 'rhs') for axes in ('contraction_axes', 'remaining_axes')]
    shown.add(f'tiled {tiled} {sorted({str(n.get("bits", n["type"])) for n in numerics(case["config"])})}')
  data = re.search(r'data=(\S+)', case.get('notes', ''))
  if data:
    shown.update(f'data {kind}' for kind in data.group(1).split('/'))
  return {f'{case["feature"]}: {s}' for s in shown}


def choose(cases, sizes):
  """Names of cases that together cover all features, chosen greedily by bytes per new feature."""
  left = {case['name']: shown_by(case) for case in cases}
  wanted, chosen = set().union(*left.values()) if left else set(), set()
  while wanted:
    name = max(left, key=lambda n: (len(left[n] & wanted) / sizes[n], n))
    chosen.add(name)
    wanted -= left.pop(name)
  return chosen


def not_supported(checker, directory):
  """Names of the cases that the checker does not support."""
  run = subprocess.run([checker, f'--golden_dir={directory}', '--verbose'], stdout=subprocess.PIPE, text=True,
                       check=False)
  if run.returncode not in (0, 1):
    raise SystemExit(f'{checker} ended with {run.returncode}')
  return set(re.findall(r'^NOT SUPPORTED ([^:]+):', run.stdout, re.M))


def load(directory):
  with open(os.path.join(directory, 'manifest.json')) as f:
    manifest = json.load(f)
  tensors = {}
  for facts in manifest['families'].values():
    tensors.update(read_safetensors(os.path.join(directory, facts['file'])))
  return manifest, tensors


def copy_part(directory, out, checker, base):
  manifest, tensors = load(directory)
  refused = not_supported(checker, directory)
  cases = [case for case in manifest['cases'] if case['name'] not in refused]
  if base is not None:
    cases = [case for case in cases if any(base.get(key) != tensors[key] for key in keys_of(case))]
  sizes = {case['name']: len(json.dumps(case)) + sum(len(tensors[key][1]) + len(key) + 60 for key in keys_of(case))
           for case in cases}
  large = sorted(name for name, size in sizes.items() if size > MAX_CASE_BYTES)
  if large:
    print('left out because of their size:', ', '.join(large))
  chosen = choose([case for case in cases if case['name'] not in large], sizes)
  cases = [case for case in cases if case['name'] in chosen]

  os.makedirs(out, exist_ok=True)
  part = collections.defaultdict(dict)
  for case in cases:
    part[case['family']].update((key, tensors[key]) for key in keys_of(case))
  families = {}
  for name, facts in manifest['families'].items():
    if name not in part:
      continue
    digest = write_safetensors(os.path.join(out, facts['file']), part[name])
    families[name] = {'file': facts['file'], 'cases': sum(case['family'] == name for case in cases),
                      'tensors': len(part[name]), 'sha256': digest}
  manifest.update(families=families, case_count=len(cases), unsupported=[], cases=cases)
  write_manifest(os.path.join(out, 'manifest.json'), manifest)
  print(out, {name: facts['cases'] for name, facts in families.items()})
  return tensors


def main():
  parser = argparse.ArgumentParser()
  for flag in ('--golden_dir', '--out', '--checker'):
    parser.add_argument(flag, required=True)
  args = parser.parse_args()
  base = copy_part(args.golden_dir, args.out, args.checker, None)
  ieee = os.path.join(args.golden_dir, 'ieee')
  if os.path.exists(ieee):
    copy_part(ieee, os.path.join(args.out, 'ieee'), args.checker, base)


if __name__ == '__main__':
  main()
