"""Records results of aqtp 0.9.0 that depend on the order and the rounding of a sum: weight-only products, and einsums with
a letter of one operand only, in rows of 1 to 70 elements.

  record_sums.py --seed=N --cases=N --out=DIR [--cache=DIR]

The files in DIR have record.py's format, for //tests/golden_check. Sums are recorded as exact if their order does not matter:
one nonzero product, or sums of few bits. Letters of one operand are summed before quantization and affect all later results,
so every case with such a letter checks the order of its sum.

The requirements are those of record.py.
"""

import argparse
import json
import time

import jax
import numpy as np

import draw as draw_lib
import exactness
import original
import record
from case import Case, Redraw

EQUATIONS = ['abz,bc->ac', 'azb,bc->ac', 'zab,bc->ac', 'ab,bcz->ac', 'ab,zbc->ac', 'abz,bcy->ac', 'bz,b->', 'az,c->ac',
             'abz,bc->ca', 'gabz,gbc->gac']
# Sums over two axes only in bf16, because compiled code changes the order of others.
TWO_LETTERS = ['abzy,bc->ac', 'zaby,bc->ac', 'ab,zbcy->ac']
DTYPES = ['float32', 'bfloat16', 'float16']
KINDS = {'one': 3, 'exact': 3, 'any': 2}
MAX_ELEMENTS = 4000  # below the size for which XLA calls a library whose order depends on the processor


def integers(d, bits, dequant='output'):
  """A quantized side of a contraction."""
  numerics = {'type': 'int', 'bits': bits, 'preserve_zero': True, 'preserve_max_val': d.chance(.3), 'clip': True,
              'clip_gradient': False, 'round': True, 'noise': None, 'container_dtype': 'int4' if bits == 4 else 'int8'}
  calibration = {'kind': 'absmax', 'po2_scale': d.chance(.2), 'scale_dtype': None, 'clipping_scale': None}
  return {**original._plain(), 'numerics': numerics, 'calibration': calibration, 'dequant_mode': dequant,  # pylint: disable=protected-access
          'use_fake_quant': dequant == 'this_input'}


def config_of(d, sides):
  """Three passes. Only the first quantizes, and only the operands in `sides`."""
  bits = lambda: int(d.pick([2, 3, 4, 8], [2, 1, 2, 4]))
  config = json.loads(json.dumps({name: original.UNQUANTIZED for name in ('fwd', 'dlhs', 'drhs')}))
  for side in sides:
    config['fwd'][side] = integers(d, bits())
  if len(sides) == 2:
    config['fwd']['dg_accumulator_dtype'] = 'int32'
  elif d.chance(.3):
    config['fwd']['dg_accumulator_dtype'] = d.pick(['float32', 'bfloat16'])
  return config


def numbers(d, kind, shape, dtype):
  """Data of a float operand. `exact`: of few bits. Otherwise some elements are far smaller than their neighbours."""
  if kind == 'exact':
    x = d.rng.integers(-12, 13, shape) * 2.0**d.rng.integers(-3, 3)
  else:
    low = 8 if dtype == 'float16' else 30
    x = d.rng.standard_normal(shape) * 2.0**np.where(d.rng.random(shape) < .3, -d.rng.integers(0, low, shape), 0)
  return np.asarray(x, np.float32).astype(draw_lib.FLOATS[dtype])


def extent(d):
  return int(d.pick([d.rng.integers(1, 71), d.rng.integers(1, 6)], [3, 1]))


def draw_product(d, inputs):
  """A product of a float lhs and an rhs of integers."""
  k, m, n = extent(d), int(d.pick([1, 2, 3])), int(d.pick([1, 3, 5]))
  kind, dtype = d.pick(list(KINDS), list(KINDS.values())), d.pick(DTYPES)
  inputs['lhs'] = numbers(d, kind, (m, k), dtype)
  rhs = numbers(d, 'any', (k, n), dtype)
  if kind == 'one':
    rhs = np.where(np.arange(k)[:, None] == d.rng.integers(0, k, n), rhs, 0).astype(rhs.dtype)
  inputs['rhs'] = rhs
  config = config_of(d, ['rhs'])
  config['dimension_numbers'] = {'lhs_contracting': [1], 'rhs_contracting': [0], 'lhs_batch': [], 'rhs_batch': []}
  return 'dot_general', config, f'weight-only, sums={kind} dtype={dtype} k={k}'


def draw_lone(d, inputs):
  """An einsum in which one or two letters are summed before the product."""
  dtype = d.pick(DTYPES)
  eqn = d.pick(EQUATIONS + (TWO_LETTERS if dtype == 'bfloat16' else []))
  sizes = {letter: int(d.pick([1, 2, 3])) for letter in 'abcg'}
  sizes.update(z=extent(d), y=int(d.rng.integers(2, 6)))
  operands = eqn.split('->')[0].split(',')
  shapes = [tuple(sizes[letter] for letter in names) for names in operands]
  if any(np.prod(shape) >= MAX_ELEMENTS for shape in shapes):
    raise Redraw
  for name, shape in zip(('lhs', 'rhs'), shapes):
    inputs[name] = numbers(d, 'any', shape, dtype)
  config = config_of(d, d.pick([['lhs', 'rhs'], ['rhs'], ['lhs'], []], [5, 2, 1, 1]))
  config['equation'] = eqn
  return 'einsum', config, f'lone letter, {eqn} dtype={dtype} z={sizes["z"]}'


def run_lone(case):
  with original.Calls() as calls:
    out, _ = original.einsum(case.config, case.inputs)
  error, doubt = record.product_bounds(case.config['fwd'], calls.products[-1])
  case.expect('out', out, exactness.tolerance(error, doubt, out.dtype))


def record_one(seed, index):
  for attempt in range(20):
    d = draw_lib.Draw([seed, index, attempt], DTYPES)
    inputs = {}
    try:
      feature, config, notes = d.pick([draw_product, draw_lone])(d, inputs)
      case = Case(f'{feature}.s{seed}.{index:04}', feature, config, inputs, notes)
      if feature == 'einsum':
        run_lone(case)
      else:
        record.run_dot_general(case, None)
      return case
    except Redraw:
      continue
  return None


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--seed', type=int, required=True)
  parser.add_argument('--cases', type=int, required=True)
  parser.add_argument('--out', required=True)
  parser.add_argument('--cache')
  args = parser.parse_args()
  if args.cache:
    jax.config.update('jax_compilation_cache_dir', args.cache)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  writer, start = record.Writer(), time.time()
  for index in range(args.cases):
    case = record_one(args.seed, index)
    if case is not None:
      writer.add(case)
    if index % 50 == 49:
      jax.clear_caches()  # as in record.py
  writer.write(args.out, args.seed)
  print(f'{len(writer.cases)} cases in {time.time() - start:.0f} s')


if __name__ == '__main__':
  main()
