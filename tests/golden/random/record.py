"""Records results of aqtp 0.9.0 for random configurations.

  record.py --seed=N --cases=N --out=DIR [--features=NAME,NAME] [--dtypes=NAME,NAME]
            [--cache=DIR]

NAME is one of FEATURES, or a feature of edges.py. The script writes manifest.json and a file of tensors for each family to
DIR, in the format of //tests/golden_check. A seed gives the same draws for any number of cases. Cases that the original
refuses are listed in `unsupported`, with error and inputs: the library should refuse them, too.

Needs aqtp 0.9.0, jax 0.10.2, flax and ml_dtypes, and runs op by op, without jit.
"""

import argparse
import collections
import functools
import hashlib
import importlib.metadata
import json
import os
import struct
import sys
import time
import traceback

import jax
import numpy as np

import draw as draw_lib
import edges
import exactness
import original
import serving
from case import EXACT, INFO, Case, NanWatch, Redraw, check_sums, has_noise, nonfinite, product_bounds
from case import sum_is_exact, takes_nan_by_sign

FEATURES = {'dot_general': 48, 'quantize': 20, 'numerics_direct': 5, 'calibrate_stateful': 4, 'einsum': 5,
            'aqt_einsum': 2, 'conv_general': 8, 'ragged_dot': 4, 'tiled_dot_general': 4, 'qat_convert_serve': 6,
            'ptq_calibrate_convert_serve': 4, 'dot_general_serve': 6}
FAMILIES = {'dot_general': 'dot_general', 'dot_general_sr': 'dot_general', 'local_aqt': 'dot_general',
            'quantize': 'quantizers', 'quantize_tiled': 'quantizers', 'quantize_sr': 'quantizers',
            'calibrate': 'quantizers', 'numerics_direct': 'quantizers', 'calibrate_stateful': 'quantizers',
            'qat_convert_serve': 'serving', 'ptq_calibrate_convert_serve': 'serving',
            'dot_general_serve': 'serving'}
STORED = {'bool': 'BOOL', 'int2': 'I8', 'int4': 'I8', 'int8': 'I8', 'int32': 'I32', 'uint32': 'U32',
          'float8_e4m3fn': 'F8_E4M3', 'float8_e5m2': 'F8_E5M2', 'float16': 'F16', 'bfloat16': 'BF16', 'float32': 'F32'}


# ---- features


def draw_quantize(d, inputs):
  shape = d.pick([(6, 6), (2, 4, 4), (1, 6), (6,)], [8, 2, .7, .4])
  dtype, kind = d.operand_dtype(), d.kind()
  inputs['x'] = d.data(kind, shape, dtype)
  numerics = d.numerics(len(shape), none=.03, noise=.2)
  axes = 'per_tensor' if d.chance(.2) else sorted(d.subset(range(len(shape)))) if d.chance(.4) else [len(shape) - 1]
  if axes != 'per_tensor' and d.chance(.1):
    axes = [a - len(shape) for a in axes]
  shared = range(len(shape)) if axes == 'per_tensor' else [a % len(shape) for a in axes]
  calibration = None if numerics['type'] == 'none' else d.calibration(shape, list(shared), '', inputs)
  config = {'numerics': numerics, 'calibration': calibration, 'calibration_axes': axes, 'scale_stop_grad': True}
  tiling = None
  if d.chance(.08) and axes != 'per_tensor' and 'bound' not in inputs and 'bias' not in inputs:
    axis = int(d.rng.integers(len(shape)))
    count = int(d.pick([c for c in (1, 2, 3, 4) if shape[axis] % c == 0]))
    tiling = {'axis': axis, 'tile_count': count} if d.chance(.5) else {'axis': axis, 'tile_size': shape[axis] // count}
    if numerics.get('noise'):
      numerics['noise'].pop('noise_sharing_axes', None)
    config['tile_axis'] = axis
    config.update({k: v for k, v in tiling.items() if k != 'axis'})
  else:
    inputs['g'] = d.data(d.pick(['normal', 'special', 'subnormal'], [6, 3, 1]), shape, dtype)
  return config, f'data={kind} dtype={dtype}', tiling


def run_quantize(case, key, tiling):
  with original.Calls() as calls:
    got = original.quantize(case.config, case.inputs, key, tiling)
  if tiling is not None:
    case.config['tiled_shape'] = list(got['qvalue'].shape)
  calibration = case.config['calibration'] or {}
  tol, given = EXACT, False
  dtype = case.inputs['x'].dtype
  if calibration.get('kind') == 'absmean':
    if not (calibration['p'] == 1 and all(sum_is_exact(*s) for s in calls.sums)):
      # p-th powers, their sum, the quotient and the root are each rounded.
      value = 12 * 2.0**(1 - exactness.digits(dtype))
      if dtype != np.float32 and calibration['p'] != 1:
        value *= max(calibration['p'], 1 / calibration['p'])
      tol, given = {'kind': 'rtol', 'value': value, 'atol': 0.0, 'po2': calibration['po2_scale']}, True
      for x, _ in calls.sums:  # near the ends of the range, a rounding error is large
        x = np.abs(exactness.as_f64(x))
        if nonfinite(x) or ((x > 0) & (x < 1e-30)).any() or (x > 1e30).any() or (
            dtype == np.float16 and (((x > 0) & (x < 1e-3)).any() or x.sum() > 6e4)):
          raise Redraw
  elif calibration.get('kind') == 'snr':
    try:
      check_sums(calls, case.config, dtype)
    except Redraw:
      candidates = calibration['auto_clip_search_config'] + [1.0]
      if nonfinite(got['scale']):
        raise
      ratio = max(candidates) / min(candidates)
      tol = {'kind': 'rtol', 'value': 2 * ratio - 1, 'atol': 0.0, 'near_tie': True}
      given = True
  scaled_nan = takes_nan_by_sign(case.config['numerics']) and nonfinite(case.inputs['x'])
  if scaled_nan:
    case.notes += '; a NaN becomes a value by its sign bit'
  for name, value in got.items():
    t = tol if name == 'scale' else {**EXACT, 'given': ['scale']} if given and name in ('qvalue', 'dequant', 'grad_x_scaled') else EXACT
    if scaled_nan and name in ('qvalue', 'dequant'):
      t = INFO
    case.expect(name, value, t)


def draw_numerics(d, inputs):
  shape = (6, 6)
  dtype, kind = d.operand_dtype(), d.pick(['normal', 'ties', 'special', 'subnormal', 'huge', 'wide'], [3, 3, 3, 1, 1, 1])
  x = d.data(kind, shape, dtype)
  numerics = d.numerics(len(shape), none=0, noise=.25)
  inputs['x'], inputs['g'] = x, d.data(d.pick(['normal', 'special']), shape, dtype)
  return numerics, f'data={kind} dtype={dtype}; no scaling'


def run_numerics(case, key):
  if takes_nan_by_sign(case.config) and nonfinite(case.inputs['x']):
    raise Redraw
  for name, value in original.numerics(case.config, case.inputs, key).items():
    case.expect(name, value)


def draw_stateful(d, inputs):
  kind = d.pick(['mean_of_absmax', 'weighted_stats', 'delayed_scaling'])
  shape = d.pick([(6, 6), (2, 4, 4)], [3, 1])
  dtype = 'float32' if kind == 'weighted_stats' else d.operand_dtype()
  steps = [d.pick(['train', 'calibrate', 'serve', 'convert'], [2, 3, 1, 1]) for _ in range(5)]
  if kind == 'mean_of_absmax':
    steps[0] = 'calibrate'
  inputs['x'] = np.stack([d.data(d.pick(['normal', 'dyadic', 'zero_row'] + (
      ['special', 'huge', 'subnormal'] if kind != 'weighted_stats' else [])), shape, dtype) for _ in steps])
  calibration = {'kind': kind, 'po2_scale': d.chance(.3) if kind != 'weighted_stats' else False,
                 'scale_dtype': d.dtype() if d.chance(.3) and kind != 'weighted_stats' else None}
  if kind == 'delayed_scaling':
    calibration['amax_history_length'] = int(d.rng.integers(1, 5))
  elif kind == 'weighted_stats':
    some = lambda values: float(d.pick(values))
    calibration.update(
        l1_dev_coeff=some([0, 1, 1.5]), lp_dev_coeff=some([0, 1, 2]), max_dev_coeff=some([0, .5, 1]),
        const_bound_coeff=some([0, .1, 2]), update_count_prior=some([0, 1, 3]), max_dev_prior=some([0, 3]),
        mean_prior=some([0, 1]), l1_dev_prior=some([0, .5]), lp_dev_prior=some([0, .25]),
        lp_order=int(d.pick([1, 2, 3, 4])), safe_divide=d.chance(.5), filter_zeros=d.chance(.6),
        ema_update_count=int(d.pick([1, 2, 4, 10, 100])))
  axes = 'per_tensor' if d.chance(.2) else sorted(d.subset(range(len(shape)))) or [0]
  numerics = d.numerics(len(shape), none=0, noise=0)
  return {'numerics': numerics, 'calibration': calibration, 'calibration_axes': axes, 'steps': steps}, f'dtype={dtype}'


def run_stateful(case, key):
  del key
  tol = EXACT
  if case.config['calibration']['kind'] == 'weighted_stats':
    tol = {'kind': 'rtol', 'value': 1e-5, 'atol': 1e-6}
  got = original.stateful(case.config, case.inputs)
  if tol is not EXACT and any(nonfinite(v) for v in got.values()):
    raise Redraw  # a rounding error may determine whether a divisor is zero
  for name, value in got.items():
    case.expect(name, value, tol)


def draw_operands(d, lhs_shape, rhs_shape, inputs):
  """Data of both operands; returns the dtype and a note."""
  dtype, kinds = d.operand_dtype(), (d.kind(), d.kind())
  inputs['lhs'], inputs['rhs'] = d.data(kinds[0], lhs_shape, dtype), d.data(kinds[1], rhs_shape, dtype)
  return dtype, f'data={"/".join(kinds)} dtype={dtype}'


def draw_g(d, shape, dtype, inputs):
  inputs['g'] = d.data(d.pick(['normal', 'dyadic', 'special', 'tiny', 'zero_row', 'huge'], [4, 4, 1.5, .5, .5, .5]), shape, dtype)


def draw_dot_general(d, inputs):
  lhs_shape, rhs_shape, dims, _ = d.pick(draw_lib.DOTS, [dot[-1] for dot in draw_lib.DOTS])
  dtype, notes = draw_operands(d, lhs_shape, rhs_shape, inputs)
  config, g_shape = d.dot_general(lhs_shape, rhs_shape, dims, inputs)
  draw_g(d, g_shape, dtype, inputs)
  lca, rca, lba, rba = dims
  config['dimension_numbers'] = {'lhs_contracting': lca, 'rhs_contracting': rca, 'lhs_batch': lba, 'rhs_batch': rba}
  return config, notes


def expect_pass(case, prefix, entry, raw, nan_passed):
  """The quantization of both operands, and whether the sign bit of a NaN determines later results."""
  hidden = False
  for side in ('lhs', 'rhs'):
    qt = entry[side]
    if not qt.scale:
      continue
    scale, = qt.scale
    by_sign = nan_passed and takes_nan_by_sign(raw[side]['numerics'])
    case.expect(f'{prefix}{side}.scale', scale)
    case.expect(f'{prefix}{side}.qvalue', qt.qvalue, INFO if by_sign else EXACT)
    if qt.bias:
      case.expect(f'{prefix}{side}.bias', qt.bias[0])
    hidden |= by_sign
  return hidden


def run_dot_general(case, key):
  d = case.config['dimension_numbers']
  dims = ((tuple(d['lhs_contracting']), tuple(d['rhs_contracting'])), (tuple(d['lhs_batch']), tuple(d['rhs_batch'])))
  with original.Calls() as calls, NanWatch() as watch:
    out, gradients = original.dot_general(case.config, case.inputs, dims, key)
    failure = None
    if case.inputs.get('g') is not None:
      try:
        dlhs, drhs = gradients(case.inputs['g'])
      except Redraw:
        raise
      except Exception as error:  # pylint: disable=broad-except
        failure = error
  check_sums(calls, case.config, case.inputs['lhs'].dtype)
  observed, results = {}, {'fwd': ('out', out)}
  if case.inputs.get('g') is not None and failure is None:
    results.update(dlhs=('dlhs', dlhs), drhs=('drhs', drhs))
  for (name, (result, value)), entry in zip(results.items(), calls.products):
    raw = case.config[name]
    hidden = expect_pass(case, name + '.', entry, raw, watch.passed)
    lhs, rhs = np.asarray(entry['dg_lhs']), np.asarray(entry['dg_rhs'])
    s, t = exactness.dot(lhs, rhs, entry['dims'], original.dtype_of(raw['dg_accumulator_dtype']))
    error, doubt = exactness.rounded(s, t, entry['accum'])
    for side in ('lhs', 'rhs'):
      case.expect(f'{name}.dg_{side}', entry['dg_' + side], INFO if hidden else EXACT)
    case.expect(f'{name}.accum', entry['accum'],
                INFO if hidden else exactness.tolerance(error, doubt, t) if s is not None else EXACT)
    dequantized = entry['out'].dequant()
    error, doubt = exactness.scaled(error, doubt, entry['accum'], entry['out'].scale, dequantized)
    if raw['local_aqt'] is not None and len(entry['dims'][0][0]):
      parts = np.asarray(dequantized)
      total = exactness.Sum(np.moveaxis(exactness.flush(parts), 0, -1))
      local = parts.shape[0] > 2
      summed = np.where(total.error > 0, total.error, 0) if local else 0
      error, doubt = error.sum(0) + summed, doubt.any(0) | total.doubt
      step = exactness.as_f64(np.abs(value)).max(initial=0) * 2.0**(1 - exactness.digits(value.dtype))
      if np.any(error) and np.isfinite(step):
        error = error + step
      if nonfinite(parts) and np.any(error):
        doubt = np.ones_like(doubt)
    case.expect(result, value, INFO if hidden else exactness.tolerance(error, doubt, value.dtype))
    if hidden:
      case.notes += f'; {name}: a NaN becomes a value by its sign bit'
    observed[name] = {'dg_in_dtype': [str(lhs.dtype), str(rhs.dtype)], 'accum_dtype': str(entry['accum'].dtype),
                      'order_independent': bool(s is None or not (s.error.any() or s.doubt.any()))}
  case.config['observed'] = observed
  if any(case.config[p][side] is not None for p in ('fwd', 'dlhs', 'drhs') for side in ('lhs_mid_alpha', 'rhs_mid_alpha')):
    mark_powers(case, dims, key, list(results))
  if failure is not None:
    del case.inputs['g']
    return failure
  return None


def units(a, b):
  """The largest distance of a and b in units of their dtype: 0 for equal values and two NaNs, huge for different signs."""
  a, b = np.asarray(a), np.asarray(b)
  kind = {2: np.int16, 4: np.int32}[a.dtype.itemsize]
  equal = (a == b) | (np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32)))
  return int(np.where(equal, 0, np.abs(a.view(kind).astype(np.int64) - b.view(kind).astype(np.int64))).max(initial=0))


def mark_powers(case, dims, key, passes):
  """Marks scales that differ with correctly rounded powers: XLA's are sometimes off by one unit."""
  with original.Calls() as calls, original.CorrectPower() as power:
    _, gradients = original.dot_general(case.config, case.inputs, dims, key)
    if len(passes) > 1:
      gradients(case.inputs['g'])
  if not power.differs:
    return
  for name, entry in zip(passes, calls.products):
    off = []
    for side in ('lhs', 'rhs'):
      tensor = f'{name}.{side}.scale'
      if tensor in case.expected and units(case.expected[tensor][0], entry[side].scale[0]):
        off.append(tensor)
        case.expect(tensor, case.expected[tensor][0], {
            'kind': 'units', 'value': units(case.expected[tensor][0], entry[side].scale[0])})
    if not off:
      continue
    case.notes += f"; XLA's pow is off by a unit: {', '.join(off)}"
    follows = lambda n: n == 'out' or n.startswith('fwd.') if name == 'fwd' else n == name or n.startswith(name + '.')
    for tensor, (value, tol) in list(case.expected.items()):
      if tensor in off or tol['kind'] == 'info':
        continue
      if name == 'fwd':  # gradients may reuse the forward quantization
        case.expect(tensor, value, {**tol, 'given': off})
      elif follows(tensor):
        case.expect(tensor, value, INFO)


def draw_einsum(d, inputs):
  eqn, lhs_shape, rhs_shape = d.pick(draw_lib.EINSUMS)
  dtype, notes = draw_operands(d, lhs_shape, rhs_shape, inputs)
  lhs, rhs, out = eqn.split('->')[0].split(',') + [eqn.split('->')[1]]
  both = sorted(set(lhs) & set(rhs))
  contracted, batch = [n for n in both if n not in out], [n for n in out if n in both]
  dims = tuple([text.index(n) for n in names] for names in (contracted, batch) for text in (lhs, rhs))
  config, _ = d.dot_general(lhs_shape, rhs_shape, dims, inputs, local=0)
  for raw in config.values():  # the operands may be exchanged: arrays would not fit
    for side in ('lhs', 'rhs'):
      raw[side]['numerics'].pop('noise', None) if raw[side]['numerics'].get('noise') else None
      if raw[side]['numerics']['type'] == 'int':
        raw[side]['numerics']['noise'] = None
      elif 'stochastic_rounding' in raw[side]['numerics']:
        raw[side]['numerics']['stochastic_rounding'] = False
      raw[side]['calibration_axes'] = None
      calibration = raw[side]['calibration']
      if calibration and calibration['kind'] == 'constant':
        for field, value in (('bound', 2.5), ('bias', .5)):
          if isinstance(calibration.get(field), str):
            inputs.pop(calibration[field][6:])
            calibration[field] = value
  config['equation'] = eqn
  sizes = {**dict(zip(lhs, lhs_shape)), **dict(zip(rhs, rhs_shape))}
  draw_g(d, tuple(sizes[n] for n in out), dtype, inputs)
  return config, notes


def run_einsum(case, key):
  del key
  names, values = ['out'], []
  with original.Calls() as calls, NanWatch() as watch:
    if case.feature == 'einsum':
      out, vjp = original.einsum(case.config, case.inputs)
      values = [out]
      fwd = len(calls.products)
      try:
        values += list(vjp(jax.numpy.asarray(case.inputs['g'])))
        names += ['dlhs', 'drhs']
      except Exception as error:  # pylint: disable=broad-except
        failure = error
        del calls.products[fwd:]
      else:
        failure = None
    else:
      case.inputs.pop('g')
      values, failure = [original.aqt_einsum(case.config, case.inputs)], None
  check_sums(calls, case.config, case.inputs['lhs'].dtype)
  swapped = list(case.inputs['lhs'].shape) != case.config.get('dot_general_call', {}).get(
      'lhs_shape', list(case.inputs['lhs'].shape))
  order = ['fwd', 'dlhs', 'drhs']
  entries = calls.products[-len(names):] if case.feature == 'einsum' else calls.products[-1:]
  bounds = {}
  if case.feature == 'einsum':
    for name, entry in zip(order, entries):
      bounds[name] = product_bounds(case.config[name], entry)
  else:
    raw = case.config['fwd']
    bounds['fwd'] = product_bounds(case.config['fwd'], entries[0]) if raw else None
  if swapped and case.feature == 'einsum' and 'dlhs' in bounds:
    bounds['dlhs'], bounds['drhs'] = bounds['drhs'], bounds['dlhs']
  for name, value in zip(names, values):
    error, doubt = bounds['fwd' if name == 'out' else name]
    case.expect(name, value, INFO if watch.passed else exactness.tolerance(error, doubt, value.dtype))
  if failure is not None:
    del case.inputs['g']
  return failure


def draw_conv(d, inputs):
  lhs_shape, rhs_shape, strides, padding, lhs_dilation, rhs_dilation, groups = d.pick(draw_lib.CONVS)
  dtype, notes = draw_operands(d, lhs_shape, rhs_shape, inputs)
  rank = len(lhs_shape)
  axes = (list(range(1, rank)), list(range(rank - 1)))
  raw = d.raw('fwd', (lhs_shape, rhs_shape), ([], [], [], []), inputs)
  for side, shared in zip(('lhs', 'rhs'), axes):
    raw[side]['calibration_axes'] = shared
    calibration = raw[side]['calibration']
    if calibration and calibration['kind'] == 'constant':
      shape = lhs_shape if side == 'lhs' else rhs_shape
      for field in ('bound', 'bias'):
        inputs.pop(f'fwd.{side}.{field}', None)
      raw[side]['calibration'] = d.calibration(shape, shared, f'fwd.{side}.', inputs, bias=.1, only='constant')
  raw['lhs_mid_alpha'] = raw['rhs_mid_alpha'] = None
  raw['dg_accumulator_dtype'] = d.pick([None, 'int32', 'float32'], [3, 3, 1])
  spatial = 'DHW'[-(rank - 2):] if rank > 3 else 'H'
  raw.update(spatial_dimensions=rank - 2, window_strides=strides, padding=padding, lhs_dilation=lhs_dilation,
             rhs_dilation=rhs_dilation, feature_group_count=groups,
             layout=[f'N{spatial}C', f'{spatial}IO', f'N{spatial}C'])
  return raw, notes


def run_conv(case, key):
  with original.Calls() as calls, NanWatch() as watch:
    out, lhs_qt, rhs_qt, record = original.convolution(case.config, case.inputs, key)
  check_sums(calls, case.config, case.inputs['lhs'].dtype)
  for side, qt in (('lhs', lhs_qt), ('rhs', rhs_qt)):
    if qt.scale:
      case.expect(f'{side}.scale', qt.scale[0])
      case.expect(f'{side}.qvalue', qt.qvalue, INFO if watch.passed and takes_nan_by_sign(case.config[side]['numerics']) else EXACT)
  l, r = exactness.flush(record['lhs']), exactness.flush(record['rhs'])
  if nonfinite(l) or nonfinite(r):
    case.notes += '; zeros of the padding meet infinities'
    case.expect('out', out, INFO)
    return
  kwargs = {k: record[k] for k in ('window_strides', 'padding', 'lhs_dilation', 'rhs_dilation', 'dimension_numbers',
                                   'feature_group_count')}
  with np.errstate(all='ignore'):
    up = np.maximum(np.abs(l).max(initial=0), 1e-300), np.maximum(np.abs(r).max(initial=0), 1e-300)
    magnitude = np.asarray(jax.lax.conv_general_dilated(
        lhs=np.float32(np.abs(l) / up[0]), rhs=np.float32(np.abs(r) / up[1]), **kwargs), np.float64) * 1.001 * up[0] * up[1]
  k = int(np.prod(r.shape[:-1]))
  q = exactness.quantum(l).min() + exactness.quantum(r).min()
  accum = np.asarray(record['accum'])
  s = exactness.Sum(np.zeros(accum.shape + (1,)))
  s.total = exactness.as_f64(accum)
  # Partial sums of f16 are f16 numbers.
  digits, low = (11, -14) if accum.dtype == np.float16 else (24, -126)
  exact = (magnitude == 0) | ((q >= low) & (magnitude < 2.0**min(q, 900) * 2.0**digits))
  s.error = np.where(exact, 0, (k + 1) * 2.0**-digits * magnitude + (k + 1) * 2.0**low)
  s.doubt = magnitude > (6e4 if accum.dtype == np.float16 else exactness.F32_MAX / 2)
  error, doubt = exactness.rounded(s, accum.dtype, accum)
  error, doubt = exactness.scaled(error, doubt, accum, list(lhs_qt.scale) + list(rhs_qt.scale), out)
  case.expect('out', out, INFO if watch.passed else exactness.tolerance(error, doubt, out.dtype))


def draw_ragged(d, inputs):
  lhs_shape, rhs_shape, groups = d.pick(draw_lib.RAGGED)
  dtype, notes = draw_operands(d, lhs_shape, rhs_shape, inputs)
  raw = d.raw('fwd', (lhs_shape, rhs_shape), ([1], [0, 1], [], []), inputs)
  raw['lhs_mid_alpha'] = raw['rhs_mid_alpha'] = None
  inputs['group_sizes'] = np.array(d.pick(groups), np.int32)
  del dtype
  return raw, notes


def run_ragged(case, key):
  with original.Calls() as calls, NanWatch() as watch:
    out = original.ragged(case.config, case.inputs, key)
  check_sums(calls, case.config, case.inputs['lhs'].dtype)
  entry, = calls.products
  for side in ('lhs', 'rhs'):
    qt = entry[side]
    if qt.scale:
      case.expect(f'{side}.scale', qt.scale[0])
      case.expect(f'{side}.qvalue', qt.qvalue, INFO if watch.passed and takes_nan_by_sign(case.config[side]['numerics']) else EXACT)
  lhs, rhs, sizes = np.asarray(entry['dg_lhs']), np.asarray(entry['dg_rhs']), case.inputs['group_sizes']
  accumulator = original.dtype_of(case.config['dg_accumulator_dtype'])
  accum = np.asarray(entry['accum'])
  hidden = watch.passed
  if nonfinite(lhs) or nonfinite(rhs):
    case.notes += '; on CPU the original lets a NaN or infinity of one group reach all others'
    hidden = True
  tail = sizes.sum() < lhs.shape[0]
  if tail and any(nonfinite(s) for s in entry['out'].scale):
    case.notes += '; the rows after the last group are 0 times an infinite scale in the original'
    hidden = True
  at, parts = 0, []
  t = None
  for g, size in enumerate(sizes):
    s, t = exactness.dot(lhs[at:at + size], rhs[g], (((1,), (0,)), ((), ())), accumulator)
    parts.append(exactness.rounded(s, t, accum[at:at + size]))
    at += size
  rest = np.zeros(accum[at:].shape)
  error = np.concatenate([p[0] for p in parts] + [rest])
  doubt = np.concatenate([p[1] for p in parts] + [rest > 0])
  case.expect('accum', accum, INFO if hidden else exactness.tolerance(error, doubt, t) if exactness._info(t) else EXACT)
  error, doubt = exactness.scaled(error, doubt, accum, entry['out'].scale, entry['out'].dequant())
  case.expect('out', out, INFO if hidden else exactness.tolerance(error, doubt, out.dtype))


def draw_tiled(d, inputs):
  lhs_shape, rhs_shape, dims, lhs, rhs = d.pick(draw_lib.TILED)
  kinds = [d.pick(['normal', 'dyadic', 'ties']) for _ in range(2)]
  dtype = d.pick(['float32', 'bfloat16'], [3, 1])
  inputs['lhs'], inputs['rhs'] = d.data(kinds[0], lhs_shape, dtype), d.data(kinds[1], rhs_shape, dtype)
  config = None
  if d.chance(.9):
    bits = lambda: d.pick([4, 8])
    n = {side: {'type': 'int', 'bits': bits(), 'preserve_zero': True, 'preserve_max_val': d.chance(.3), 'clip': True,
                'clip_gradient': d.chance(.3), 'round': True, 'noise': None} for side in ('lhs', 'rhs')}
    config = {}
    for name in ('fwd', 'dlhs', 'drhs'):
      raw = json.loads(json.dumps(original.UNQUANTIZED))
      if name == 'fwd' or d.chance(.5):
        for side in ('lhs', 'rhs'):
          if d.chance(.85):
            raw[side]['numerics'] = {**n[side], 'container_dtype': 'int4' if n[side]['bits'] == 4 else 'int8'}
            raw[side]['calibration'] = d.calibration(None, [], '', inputs, bias=0, only=d.pick(['absmax', 'constant']))
        if raw['lhs']['calibration'] and raw['rhs']['calibration']:
          raw['dg_accumulator_dtype'] = 'int32'
      config[name] = raw
  lca, rca, lba, rba = dims
  if dtype == 'float32':
    sizes = [lhs_shape[a] for a in lba] + [n for a, n in enumerate(lhs_shape) if a not in lca + lba] + [
        n for a, n in enumerate(rhs_shape) if a not in rca + rba]
    inputs['g'] = d.data(d.pick(['normal', 'dyadic']), tuple(sizes), dtype)
  tilings = lambda pair: {'contraction_axes': pair[0], 'remaining_axes': pair[1]}
  return {'dot_general': config, 'tiling': {'lhs': tilings(lhs), 'rhs': tilings(rhs)},
          'dimension_numbers': {'lhs_contracting': lca, 'rhs_contracting': rca, 'lhs_batch': lba, 'rhs_batch': rba}}, (
              f'data={"/".join(kinds)} dtype={dtype}')


def run_tiled(case, key):
  del key
  with original.Calls() as calls:
    out, vjp = original.tiled(case.config, case.inputs)
  check_sums(calls, case.config, case.inputs['lhs'].dtype)
  if calls.products:
    for side in ('lhs', 'rhs'):
      qt = calls.products[0][side]
      if qt.scale:
        case.expect(f'{side}.scale', qt.scale[0])
        case.expect(f'{side}.qvalue', qt.qvalue)
  # A sum over all contracted elements in any grouping, with rounded terms.
  def bound(value, k, parts):
    step = 2.0**(1 - exactness.digits(value.dtype))
    return {'kind': 'rtol', 'value': 4 * step, 'atol': float(4 * (k + 4) * (2.0**-24 if value.dtype == np.float32 else step) * parts)}
  case.expect('out', out, bound(out, 24, np.abs(exactness.as_f64(case.inputs['lhs'])).max() * np.abs(
      exactness.as_f64(case.inputs['rhs'])).max() * 24))
  if 'g' in case.inputs:
    for name, value, y in zip(('dlhs', 'drhs'), vjp(jax.numpy.asarray(case.inputs['g'])), ('rhs', 'lhs')):
      case.expect(name, value, bound(value, 24, 24 * np.abs(exactness.as_f64(case.inputs['g'])).max() * np.abs(
          exactness.as_f64(case.inputs[y])).max()))


DRAW = {'dot_general': draw_dot_general, 'quantize': draw_quantize, 'numerics_direct': draw_numerics,
        'calibrate_stateful': draw_stateful, 'einsum': draw_einsum, 'aqt_einsum': draw_einsum,
        'conv_general': draw_conv, 'ragged_dot': draw_ragged, 'tiled_dot_general': draw_tiled,
        'qat_convert_serve': functools.partial(serving.draw, calibrated=False),
        'ptq_calibrate_convert_serve': functools.partial(serving.draw, calibrated=True),
        'dot_general_serve': serving.draw_dot, 'mean_rows': edges.draw_mean, 'empty': edges.draw_empty,
        'mask': edges.draw_mask, 'ragged_edges': edges.draw_ragged}
RUN = {'dot_general': run_dot_general, 'quantize': run_quantize, 'numerics_direct': run_numerics,
       'calibrate_stateful': run_stateful, 'einsum': run_einsum, 'aqt_einsum': run_einsum, 'conv_general': run_conv,
       'ragged_dot': run_ragged, 'tiled_dot_general': run_tiled, 'qat_convert_serve': serving.run,
       'ptq_calibrate_convert_serve': serving.run, 'dot_general_serve': serving.run_dot, 'mean_rows': edges.run_mean,
       'empty': edges.run_quantizer, 'mask': edges.run_mask, 'ragged_edges': run_ragged}
# The checker's names for them.
KNOWN_AS = {'mean_rows': 'quantize', 'empty': 'quantize', 'mask': 'quantize', 'ragged_edges': 'ragged_dot'}


def describe(error):
  """An error as one line."""
  text = ' '.join(str(error).split())
  if not text:  # an assertion: its condition
    text = ' '.join(traceback.extract_tb(error.__traceback__)[-1].line.split())
  return f'{type(error).__name__}: {text[:200]}'


def record_one(seed, index, features, dtypes):
  """(case or None, refused case or None, error)."""
  for attempt in range(20):
    d = draw_lib.Draw([seed, index, attempt], dtypes)
    base = d.pick(features, [{**FEATURES, **edges.FEATURES}[f] for f in features])
    inputs = {}
    drawn = DRAW[base](d, inputs)
    config, notes, extra = drawn if len(drawn) == 3 else (*drawn, None)
    feature, key = KNOWN_AS.get(base, base), None
    if has_noise(config):
      key = jax.random.PRNGKey(int(d.rng.integers(2**31)))
      if base in ('dot_general', 'quantize'):
        feature = base + '_sr'
      inputs['key'] = np.asarray(key)
    if base == 'dot_general' and any(config[p]['local_aqt'] for p in ('dlhs', 'drhs')):
      feature = 'local_aqt'
    if extra is not None and base == 'quantize':
      feature = 'quantize_tiled'
    name = base if base in KNOWN_AS else feature
    case = Case(f'{name}.s{seed}.{index:04}', feature, config, inputs, notes)
    whole = dict(inputs)
    try:
      failure = RUN[base](case, key, extra) if base == 'quantize' else RUN[base](case, key)
      if failure is None:
        return case, None, None
      # The forward pass runs; the gradients are refused.
      refused = Case(case.name + '.gradients', feature, config, whole, notes)
      return case, refused, describe(failure)
    except Redraw:
      continue
    except Exception as error:  # pylint: disable=broad-except
      case.inputs = whole
      return None, case, describe(error)
  return None, None, None


# ---- files


def stored(x):
  """(entry of the manifest without its key, dtype in the file, bytes)."""
  x = np.asarray(x)
  name = str(x.dtype)
  values = x.astype(np.int8) if name in ('int2', 'int4') else x
  return {'dtype': name, 'shape': list(x.shape)}, STORED[name], np.ascontiguousarray(values).tobytes()


class Writer:
  """Collects cases, and writes the manifest and the tensors."""

  def __init__(self):
    self.cases, self.unsupported = [], []
    self.tensors = collections.defaultdict(dict)

  def _store(self, family, key, value):
    entry, kind, data = stored(value)
    self.tensors[family][key] = (kind, entry['shape'], data)
    return {'key': key, **entry}

  def add(self, case):
    family = FAMILIES.get(case.feature, 'einsum_conv_ragged')
    result = {'name': case.name, 'family': family, 'feature': case.feature, 'config': case.config, 'inputs': {
        n: self._store(family, f'{case.name}/{n}', v) for n, v in case.inputs.items() if v is not None}, 'expected': {}}
    for name, (value, tol) in case.expected.items():
      entry = self._store(family, f'{case.name}/expected.{name}', value)
      entry['tol'] = tol
      floats = value.astype(np.float32) if value.dtype.kind in 'fV' else np.zeros(0)
      if np.isnan(floats).any():
        entry['has_nan'] = True
      if np.isinf(floats).any():
        entry['has_inf'] = True
      result['expected'][name] = entry
    result['notes'] = case.notes
    self.cases.append(result)

  def refuse(self, case, error):
    family = FAMILIES.get(case.feature, 'einsum_conv_ragged')
    self.unsupported.append({'case': case.name, 'error': error, 'family': family, 'feature': case.feature,
                             'config': case.config, 'inputs': {
                                 n: self._store(family, f'{case.name}/{n}', v) for n, v in case.inputs.items()
                                 if v is not None}, 'notes': case.notes})

  def write(self, out, seed, arithmetic='xla'):
    os.makedirs(out, exist_ok=True)
    families = {}
    for name, tensors in sorted(self.tensors.items()):
      header, offset = {}, 0
      for key, (kind, shape, data) in tensors.items():
        header[key] = {'dtype': kind, 'shape': shape, 'data_offsets': [offset, offset + len(data)]}
        offset += len(data)
      text = json.dumps(header, separators=(',', ':')).encode()
      text += b' ' * (-len(text) % 8)
      content = struct.pack('<Q', len(text)) + text + b''.join(data for _, _, data in tensors.values())
      with open(os.path.join(out, name + '.safetensors'), 'wb') as f:
        f.write(content)
      families[name] = {'file': name + '.safetensors', 'cases': sum(c['family'] == name for c in self.cases),
                        'tensors': len(tensors), 'sha256': hashlib.sha256(content).hexdigest()}
    version = importlib.metadata.version
    head = {'format_version': 1, 'seed': seed, 'arithmetic': arithmetic,
            'versions': {**{p: version(p) for p in ('aqtp', 'jax', 'jaxlib', 'flax', 'numpy', 'ml_dtypes')},
                         'python': sys.version.split()[0]},
            'platform': 'cpu', 'execution': 'op by op (no jit)', 'jax_threefry_partitionable': True,
            'shims': ['jax._src.core.mutable_array = jax._src.core.new_ref'], 'families': families,
            'case_count': len(self.cases)}
    lines = lambda entries: '[\n' + ',\n'.join(json.dumps(e, separators=(',', ':')) for e in entries) + '\n]'
    with open(os.path.join(out, 'manifest.json'), 'w') as f:
      f.write(json.dumps(head)[:-1] + ', "unsupported": ' + lines(self.unsupported) + ', "cases": ' +
              lines(self.cases) + '}\n')


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--seed', type=int, required=True)
  parser.add_argument('--cases', type=int, required=True)
  parser.add_argument('--first', type=int, default=0)
  parser.add_argument('--out', required=True)
  parser.add_argument('--features', default=','.join(FEATURES))
  parser.add_argument('--dtypes', default='float32,bfloat16,float16', help='of the operands')
  parser.add_argument('--cache', help='a folder for compiled operations')
  args = parser.parse_args()
  if args.cache:
    jax.config.update('jax_compilation_cache_dir', args.cache)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
  writer, start = Writer(), time.time()
  errors = collections.Counter()
  for index in range(args.first, args.first + args.cases):
    case, refused, error = record_one(args.seed, index, args.features.split(','), args.dtypes.split(','))
    if case is not None:
      writer.add(case)
    if refused is not None:
      writer.refuse(refused, error)
      errors[error[:90]] += 1
    if index % 25 == 24:
      writer.write(args.out, args.seed)
      jax.clear_caches()  # otherwise a process grows to 3 GB in 300 cases
    if index % 10 == 9:
      print(f'{index + 1}: {len(writer.cases)} cases, {len(writer.unsupported)} refused, {time.time() - start:.0f} s',
            flush=True)
  writer.write(args.out, args.seed)
  for error, count in errors.most_common(25):
    print(count, error)


if __name__ == '__main__':
  main()
