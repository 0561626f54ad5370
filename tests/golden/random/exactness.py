"""Results that do not depend on the order of summation, and bounds for the others.

An f32 sum of K products p is the same in any order, with or without fused multiply-add, if every p is a multiple of one
power of two q >= 2^-126 and sum|p| < 2^24 q: all partial sums are then f32 numbers. Otherwise two orders differ by at
most (K + 1) 2^-24 sum|p|, plus 2^-126 for each partial sum that is flushed.
"""

import ml_dtypes
import numpy as np

F32_MAX = float(np.finfo(np.float32).max)


def as_f64(x):
  return np.asarray(x).astype(np.float64)


def flush(x):
  """f64 values of a product's operand. XLA treats subnormal f32 and bf16 numbers as zero."""
  x = np.asarray(x)
  y = as_f64(x)
  if x.dtype in (np.float32, ml_dtypes.bfloat16):
    y = np.where(np.abs(y) < 2.0**-126, np.copysign(0, y), y)
  return y


def _info(dtype):
  try:
    return ml_dtypes.finfo(dtype)
  except ValueError:
    return None


def digits(dtype):
  """2^-digits is half a unit of 1."""
  return _info(dtype).nmant + 1


def product_dtype(lhs, rhs, accumulator):
  """The dtype of a product of operands of these dtypes; without an accumulator, the larger one."""
  if accumulator is not None:
    return np.dtype(accumulator)
  key = lambda d: (1, _info(d).maxexp, _info(d).nmant, np.dtype(d).itemsize) if _info(d) else (0, 0, 0, np.dtype(d).itemsize)
  return max(np.dtype(lhs), np.dtype(rhs), key=key)


def quantum(x):
  """The largest power of two that divides each finite number (inf for 0), as its exponent."""
  m, e = np.frexp(np.where(np.isfinite(x), x, 0))
  n = np.abs(m * 2.0**53).astype(np.int64)
  low = n & -n
  tz = np.where(n == 0, 0, np.log2(np.maximum(low, 1)))
  return np.where(n == 0, np.inf, e - 53 + tz)


class Sum:
  """Bounds of f32 sums of `products` along the last axis: error (0: exact) and doubt (true: inf or NaN depending on the order)."""

  def __init__(self, products):
    finite = np.isfinite(products)
    p = np.where(finite, products, 0)
    k = products.shape[-1]
    total, magnitude = p.sum(-1), np.abs(p).sum(-1)
    q = quantum(p).min(-1) if k else np.full(products.shape[:-1], np.inf)
    with np.errstate(over='ignore', invalid='ignore'):
      exact = (magnitude == 0) | ((q >= -126) & (magnitude < 2.0**np.minimum(q, 900) * 2.0**24))
      # A single nonzero product is rounded once.
      exact |= ((p != 0).sum(-1) == 1) & (magnitude >= 2.0**-126)
      self.error = np.where(exact, 0, (k + 1) * 2.0**-24 * magnitude + (k + 1) * 2.0**-126)
    one_sign = (np.abs(total) == magnitude)
    over = magnitude >= F32_MAX * (1 - 2.0**-24)
    surely = one_sign & (magnitude * (1 - (k + 1) * 2.0**-24) > F32_MAX * (1 + 2.0**-24))
    nonfinite = ~finite.all(-1)
    self.doubt = over & ~surely  # also with infinities: inf - inf or inf + inf
    self.error = np.where(nonfinite | surely, 0, self.error)
    self.total = total


def dot(lhs, rhs, dims, accumulator):
  """The sum of a product of arrays, as passed to the contraction; None for integers."""
  t = product_dtype(lhs.dtype, rhs.dtype, accumulator)
  if _info(t) is None:
    return None, t
  if lhs.dtype != rhs.dtype or (lhs.dtype == np.float16 and t == ml_dtypes.bfloat16):
    with np.errstate(over='ignore', invalid='ignore'):
      lhs, rhs = (np.asarray(x).astype(np.float32).astype(t) for x in (lhs, rhs))
  (lca, rca), (lba, rba) = dims
  def flat(x, ca, ba):
    ra = [a for a in range(x.ndim) if a not in list(ca) + list(ba)]
    y = flush(x).transpose(list(ba) + ra + list(ca))
    size = lambda axes: int(np.prod([x.shape[a] for a in axes], dtype=int))
    return y.reshape(size(ba), size(ra), size(ca)), [x.shape[a] for a in ba], [x.shape[a] for a in ra]
  l, batch, lra = flat(lhs, lca, lba)
  r, _, rra = flat(rhs, rca, rba)
  with np.errstate(invalid='ignore', over='ignore'):
    s = Sum(l[:, :, None, :] * r[:, None, :, :])
  for name in ('error', 'doubt', 'total'):
    setattr(s, name, getattr(s, name).reshape(batch + lra + rra))
  return s, t


def rounded(s, dtype, value):
  """(error, doubt) of a sum rounded to dtype; `value` is the result."""
  if s is None:
    return np.zeros(np.shape(value)), np.zeros(np.shape(value), bool)
  info = _info(dtype)
  v = np.abs(as_f64(value))
  step = np.where(np.isfinite(v), v, 0) * 2.0**(1 - digits(dtype)) + float(info.smallest_subnormal)
  error = np.where(s.error > 0, s.error + step, 0)
  near = np.abs(np.abs(s.total) - float(info.max)) <= s.error + float(info.max) * 2.0**(1 - digits(dtype))
  return error, s.doubt | ((s.error > 0) & near)


def scaled(error, doubt, accum, scales, value):
  """(error, doubt) after conversion to the dtype of `value` and multiplication by scales."""
  with np.errstate(all='ignore'):
    factor = np.ones(np.shape(accum))
    for scale in scales:
      factor = factor * np.abs(as_f64(scale))
    v = np.abs(as_f64(value))
    info = _info(np.asarray(value).dtype)
    steps = (len(scales) + 1) * 2.0**(1 - digits(info.dtype))
    small = float(info.smallest_normal) * np.maximum(1, factor)
    result = np.where(error > 0, error * factor + np.where(np.isfinite(v), v, 0) * steps + small, 0)
    near = (error > 0) & (v + result >= float(info.max))
    # With an infinite or NaN scale an error selects between infinities, or the result is unknown.
    strange = (error > 0) & ~np.isfinite(result)
  return np.where(np.isfinite(result), result, 0), doubt | near | strange


def tolerance(error, doubt, dtype, steps=2):
  """The tolerance of a tensor."""
  if np.any(doubt):
    return {'kind': 'info'}
  if not np.any(error):
    return {'kind': 'exact'}
  return {'kind': 'rtol', 'value': steps * 2.0**(1 - digits(dtype)), 'atol': float(np.max(error))}


def snr_is_sure(sums, dtype):
  """Whether rounding errors of sums cannot change the winning candidate. `sums`: for each candidate the arrays (terms of
  the noise, of the signal) and the axes summed."""
  def around(x, relative):
    with np.errstate(all='ignore'):
      return [np.asarray(x * f, np.float64).astype(np.float32).astype(dtype).astype(np.float64)
              for f in (1 - relative, 1 + relative)]
  top = None
  for terms in sums:
    bounds = []
    for x, axes in terms:
      x = as_f64(x)
      if not np.isfinite(x).all():
        return False
      total = x.sum(axis=tuple(axes), keepdims=True)
      k = x.size // max(1, total.size)
      if ((total > 0) & (total < k * 2.0**-120)).any() and dtype != np.float16:
        return False
      bounds.append(around(total, (k + 1) * 2.0**-24))
    (nlo, nhi), (slo, shi) = bounds
    with np.errstate(all='ignore'):
      quotients = [slo / nhi, shi / nlo]
      lo, hi = (around(q, 2.0**-23)[i] for i, q in enumerate(quotients))
      lo, hi = around(1 + lo, 2.0**-23)[0], around(1 + hi, 2.0**-23)[1]
      lo, hi = around(np.log(lo), 2.0**-21)[0], around(np.log(hi), 2.0**-21)[1]
    if top is None:
      top = (np.zeros_like(lo), np.zeros_like(lo))
    nan = np.isnan(lo) | np.isnan(hi) | np.isnan(top[0])
    if (np.isnan(lo) != np.isnan(hi)).any():
      return False
    if not (nan | (lo > top[1]) | (hi <= top[0])).all():
      return False
    top = (np.maximum(lo, top[0]), np.maximum(hi, top[1]))
  return True
