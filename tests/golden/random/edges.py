"""Edge cases: rows whose sums round, empty tensors, masks of other dtypes, groups of unusual sizes.

They are the features mean_rows, empty, mask and ragged_edges of record.py. All are exact.
"""

import jax.numpy as jnp
import numpy as np

import draw as draw_lib
import original
from case import Redraw

FEATURES = {'mean_rows': 6, 'empty': 2, 'mask': 3, 'ragged_edges': 4}


def quantizer(d, shape, axes, inputs, only, numerics=None):
  numerics = numerics or d.numerics(len(shape), none=0, noise=0)
  return {'numerics': numerics, 'calibration': d.calibration(shape, axes, '', inputs, only=only),
          'calibration_axes': axes, 'scale_stop_grad': True}


def expect_all(case, results):
  for name, value in results.items():
    case.expect(name, value)


# ---- the mean of rows


def powers_are_correct(x, p):
  """Whether XLA's powers of the magnitudes are correctly rounded."""
  y = jnp.abs(x)**p
  return np.array_equal(np.asarray(y), original.correct_power(jnp.abs(x), p), equal_nan=True)


def draw_mean(d, inputs):
  dtype = d.pick(['float32', 'bfloat16', 'float16'], [6, 1, 1])
  n = int(d.rng.integers(1, 71)) if d.chance(.9) else int(d.rng.integers(71, 1500))
  rows = int(d.pick([1, 2, 3, 6, 17]))
  if rows * n >= 4096:  # from this size on, XLA's order depends on the machine
    rows = 2
  shape, axes = d.pick([((rows, n), [1]), ((n, rows), [0]), ((n,), [0]), ((2, n, rows), [1])], [5, 3, 1, 1])
  if np.prod(shape) >= 4096:
    shape, axes = (n,), [0]
  kind = d.pick(['normal', 'wide', 'zero_row', 'huge', 'tiny', 'moderate'], [8, 3, 2, 1, 1, 1])
  inputs['x'] = d.data(kind, shape, dtype)
  config = quantizer(d, shape, axes, inputs, 'absmean')
  config['calibration']['p'] = d.pick([1.0, 2.0, 3.0, .5], [6, 2, 1, 1])
  return config, f'data={kind} dtype={dtype}'


def run_mean(case, key):
  x, config = jnp.asarray(case.inputs['x']), case.config
  p, axes = config['calibration']['p'], tuple(config['calibration_axes'])
  total = jnp.sum(jnp.abs(x)**p, axis=axes, keepdims=True)
  count = jnp.maximum(jnp.sum(x != 0.0, axis=axes, keepdims=True), 1)
  if not powers_are_correct(x, p) or not powers_are_correct(total / count, 1 / p):
    raise Redraw
  expect_all(case, original.quantize(config, case.inputs, key))


# ---- tensors without elements


def draw_empty(d, inputs):
  shape, axes = d.pick([((3, 0), [1]), ((3, 0), [0]), ((0, 4), [0]), ((0, 4), [1]), ((2, 0, 3), [1]), ((0,), [0]),
                        ((0, 0), [0, 1])])
  dtype = d.operand_dtype()
  inputs['x'] = d.data('normal', shape, dtype)
  only = d.pick(['absmean', 'constant', 'absmax', 'snr'], [3, 3, 1, 1])
  return quantizer(d, shape, axes, inputs, only), f'data=empty dtype={dtype}'


def run_quantizer(case, key):
  expect_all(case, original.quantize(case.config, case.inputs, key))


# ---- masks


def draw_mask(d, inputs):
  shape, axes = (6, 6), [1]
  dtype, kind = d.operand_dtype(), d.pick(['normal', 'ties', 'dyadic', 'subnormal'], [4, 2, 2, 1])
  inputs['x'] = d.data(kind, shape, dtype)
  config = quantizer(d, shape, axes, inputs, d.pick(['absmax', 'constant']))
  mask = d.rng.integers(0, 2, d.pick([(6, 6), (6, 1), (1, 6)], [4, 1, 1]))
  name = d.pick(['float32', 'bfloat16', 'float16', 'int8', 'int32', 'bool'], [4, 3, 3, 1, 1, 1])
  inputs['mask'] = mask.astype({**draw_lib.FLOATS, 'int8': np.int8, 'int32': np.int32, 'bool': bool}[name])
  return config, f'data={kind} dtype={dtype}; mask {name}'


def run_mask(case, key):
  live = original.make_quantizer(case.config, case.inputs, None, key)
  live.init_calibration()
  x = jnp.asarray(case.inputs['x'])
  qt = live.calibrate(x, calibration_axes=case.config['calibration_axes'])
  qt = qt.replace(sparsity_mask=jnp.asarray(case.inputs['mask']))
  case.expect('scale', qt.scale[0])
  case.expect('scaled', qt.quant(x).qvalue)
  qt, _ = live.calculate_qvalue(x, qt)
  case.expect('qvalue', qt.qvalue)
  case.expect('dequant', qt.dequant())


# ---- groups


def draw_ragged(d, inputs):
  """Groups beyond the last row, rows beyond the last group, empty groups, one group, modes without effect."""
  m, k, n = int(d.rng.integers(1, 9)), int(d.pick([1, 4, 6, 16])), int(d.pick([1, 4, 6]))
  groups = int(d.rng.integers(1, 5))
  dtype = d.operand_dtype()
  kinds = [d.pick(['dyadic', 'ties']) for _ in range(2)]
  inputs['lhs'], inputs['rhs'] = d.data(kinds[0], (m, k), dtype), d.data(kinds[1], (groups, k, n), dtype)
  sizes = d.rng.integers(0, m + 2, groups)
  if d.chance(.3):
    sizes[-1] = max(0, m - int(sizes[:-1].sum()))
  inputs['group_sizes'] = sizes.astype(np.int32)
  raw = d.raw('fwd', ((m, k), (groups, k, n)), ([1], [0, 1], [], []), inputs)
  raw['lhs_mid_alpha'] = raw['rhs_mid_alpha'] = None
  for side in ('lhs', 'rhs'):
    if raw[side]['numerics']['type'] == 'none' or d.chance(.3):
      raw[side].update(numerics={'type': 'none'}, calibration=None)
      for field in ('bound', 'bias'):
        inputs.pop(f'fwd.{side}.{field}', None)
    if d.chance(.4):
      raw[side]['dequant_mode'] = d.pick(['output', 'other_input', 'this_input'])
      raw[side]['use_fake_quant'] = raw[side]['dequant_mode'] == 'this_input'
  # The original applies such a scale along the groups (docs/differences-from-aqt.md).
  if raw['lhs']['calibration'] is not None and raw['lhs']['dequant_mode'] == 'other_input':
    raw['lhs'].update(dequant_mode='output', calibration_mode='contracting_axis')
  return raw, f'data={"/".join(kinds)} dtype={dtype}'
