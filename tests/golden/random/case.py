"""A case while it is recorded, and the conditions under which it can be checked."""

import numpy as np

import exactness
import original

EXACT = {'kind': 'exact'}
INFO = {'kind': 'info'}


class Redraw(Exception):
  """The case cannot be checked: draw another one."""


def has_noise(config):
  if isinstance(config, dict):
    return bool(config.get('noise')) or bool(config.get('stochastic_rounding')) or any(map(has_noise, config.values()))
  return False


def calibrations(config):
  if isinstance(config, dict):
    if isinstance(config.get('calibration'), dict):
      yield config['calibration']
    for value in config.values():
      yield from calibrations(value)


def takes_nan_by_sign(numerics):
  """Whether a NaN becomes a number with its sign: in small float formats except radix 4 and those without exponents."""
  if numerics['type'] != 'fp':
    return False
  cfg = numerics['cfg']
  return cfg['radix'] == 2 and not (cfg['nexp'] == 0 and cfg['has_subnormals'])


def nonfinite(x):
  x = np.asarray(x)
  return x.dtype.kind in 'fV' and not np.isfinite(x.astype(np.float32)).all()


def check_sums(calls, config, dtype):
  """Redraws unless every sum in a calibration is exact or cannot change the result."""
  kinds = list(calibrations(config))
  if any(c['kind'] == 'absmean' for c in kinds):
    if any(c['kind'] == 'snr' for c in kinds) or any(c['kind'] == 'absmean' and c['p'] != 1 for c in kinds):
      raise Redraw
    for x, axes in calls.sums:
      if not sum_is_exact(x, axes):
        raise Redraw
  elif calls.sums:
    # Searches in sequence. Within one search, all candidates have the same signal.
    pairs, groups = list(zip(calls.sums[::2], calls.sums[1::2])), []
    for pair in pairs:
      if groups and np.array_equal(np.asarray(groups[-1][0][1][0]), np.asarray(pair[1][0]), equal_nan=True):
        groups[-1].append(pair)
      else:
        groups.append([pair])
    for group in groups:
      if not exactness.snr_is_sure(group, np.dtype(dtype)):
        raise Redraw


def sum_is_exact(x, axes):
  x = np.asarray(x)
  if x.dtype == bool:
    return True
  axes = tuple(a % x.ndim for a in axes)
  y = np.moveaxis(exactness.flush(x), axes, range(x.ndim - len(axes), x.ndim))
  s = exactness.Sum(y.reshape(y.shape[:x.ndim - len(axes)] + (-1,)))
  return not s.error.any() and not s.doubt.any()


class Case:
  """One case that will be written into the manifest."""

  def __init__(self, name, feature, config, inputs, notes):
    self.name, self.feature, self.config, self.inputs, self.notes = name, feature, config, inputs, notes
    self.expected = {}  # name: (array, tolerance)

  def expect(self, name, value, tol=None):
    self.expected[name] = (np.asarray(value), dict(tol or EXACT))


class NanWatch:
  """Detects whether a NaN passes through a small float format while it is active."""

  def __enter__(self):
    self.passed, self.saved = False, original.fp_numerics.fp_round
    watch = self

    def fp_round(x, **kwargs):
      watch.passed |= bool(np.isnan(np.asarray(x).astype(np.float32)).any())
      return watch.saved(x, **kwargs)

    original.fp_numerics.fp_round = fp_round
    return self

  def __exit__(self, *unused):
    original.fp_numerics.fp_round = self.saved


def product_bounds(raw, entry):
  """(error, doubt) of a product after scaling; `raw` is its configuration."""
  s, t = exactness.dot(np.asarray(entry['dg_lhs']), np.asarray(entry['dg_rhs']), entry['dims'],
                       original.dtype_of(raw['dg_accumulator_dtype']))
  error, doubt = exactness.rounded(s, t, entry['accum'])
  return exactness.scaled(error, doubt, entry['accum'], entry['out'].scale, entry['out'].dequant())
