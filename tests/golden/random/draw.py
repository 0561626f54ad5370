"""Draws configurations and data: JSON objects in the format of the recordings, and numpy arrays.

Every field is drawn independently, so that all combinations occur. Only values that almost always make a configuration
illegal are drawn less often.
"""

import ml_dtypes
import numpy as np

FLOATS = {'float32': np.dtype(np.float32), 'bfloat16': np.dtype(ml_dtypes.bfloat16), 'float16': np.dtype(np.float16)}

# name: (nexp, nmant, has_subnormals)
FP_FORMATS = {
    'e5m0_ocp': (5, 0, True), 'e4m1_ocp': (4, 1, True), 'e3m2_ocp': (3, 2, True), 'e2m3_ocp': (2, 3, True),
    'e1m4_ocp': (1, 4, True), 'e0m5_ocp': (0, 5, True), 'e4m0_ocp': (4, 0, True), 'e3m1_ocp': (3, 1, True),
    'e2m2_ocp': (2, 2, True), 'e1m3_ocp': (1, 3, True), 'e0m4_ocp': (0, 4, True), 'e3m0': (3, 0, False),
    'e3m0_ocp': (3, 0, True), 'e2m1': (2, 1, False), 'e2m1_ocp': (2, 1, True), 'e1m2': (1, 2, False),
    'e1m2_ocp': (1, 2, True), 'e0m3': (0, 3, False), 'e0m3_ocp': (0, 3, True), 'e1m0': (1, 0, False),
}

# lhs shape, rhs shape, (lhs contracting, rhs contracting, lhs batch, rhs batch), weight. The original compiles every
# operation for each shape, so nearly all cases use the same two shapes.
DOTS = [
    ((6, 6), (6, 6), ([1], [0], [], []), 9),
    ((6, 6), (6, 6), ([1], [1], [], []), 2),
    ((6, 6), (6, 6), ([0], [0], [], []), 2),
    ((6, 6), (6, 6), ([0], [1], [], []), 1),
    ((2, 4, 4), (2, 4, 4), ([2], [1], [0], [0]), 2),
    ((2, 4, 4), (4, 2, 4), ([1], [2], [0], [1]), 1),
    ((2, 4, 4), (2, 4, 4), ([0, 1], [0, 1], [], []), 1),
    ((1, 6), (6, 6), ([1], [0], [], []), .3),
    ((4, 8), (8, 5), ([1], [0], [], []), .2),
    ((6,), (6,), ([0], [0], [], []), .2),
    ((6,), (6,), ([], [], [], []), .2),
]

EINSUMS = [
    ('ab,bc->ac', (6, 6), (6, 6)),
    ('bc,ab->ac', (6, 6), (6, 6)),
    ('ab,cb->ca', (6, 6), (6, 6)),
    ('ba,bc->ac', (6, 6), (6, 6)),
    ('bqd,bkd->bqk', (2, 4, 4), (2, 4, 4)),
    ('bqk,bkd->bdq', (2, 4, 4), (2, 4, 4)),
    ('cda,cdb->ab', (2, 4, 4), (2, 4, 4)),
    ('ab,ab->', (6, 6), (6, 6)),
]

# lhs shape, rhs shape, strides, padding, lhs dilation, rhs dilation, feature groups
CONVS = [
    ((2, 6, 2), (3, 2, 4), [1], 'SAME', None, None, 1),
    ((2, 6, 2), (3, 2, 4), [2], 'VALID', None, None, 1),
    ((2, 6, 2), (3, 1, 4), [2], 'SAME', None, [2], 2),
    ((2, 4, 4, 2), (3, 3, 2, 3), [1, 1], 'SAME', None, None, 1),
    ((2, 4, 4, 2), (3, 3, 2, 3), [1, 1], [[2, 1], [0, 2]], [2, 2], None, 1),
    ((2, 4, 4, 2), (3, 3, 2, 3), [2, 1], 'VALID', None, None, 1),
    ((1, 4, 4, 4, 1), (2, 2, 2, 1, 2), [1, 1, 1], 'SAME', None, None, 1),
    ((1, 4, 4, 4, 1), (2, 2, 2, 1, 2), [2, 1, 1], 'VALID', None, [1, 1, 2], 1),
]

# lhs, rhs shape, dimension numbers, lhs (contraction, remaining) and rhs (contraction, remaining) tilings
TILED = [
    ((6, 6), (6, 6), ([1], [0], [], []), ([[1, 2]], []), ([[0, 2]], [])),
    ((6, 6), (6, 6), ([1], [0], [], []), ([], [[0, 2]]), ([], [[1, 3]])),
    ((6, 6), (6, 6), ([1], [1], [], []), ([[1, 3]], [[0, 2]]), ([[1, 3]], [])),
    ((2, 4, 4), (2, 4, 4), ([2], [1], [0], [0]), ([[2, 2]], []), ([[1, 2]], [[2, 2]])),
]

RAGGED = [((6, 6), (2, 6, 6), ([3, 3], [0, 6], [4, 2], [2, 2])), ((6, 6), (3, 6, 6), ([1, 2, 3], [0, 6, 0], [1, 0, 1]))]

DATA = ['normal', 'dyadic', 'ties', 'tiny', 'subnormal', 'huge', 'moderate', 'zero_row', 'zeros', 'special', 'wide']
DATA_WEIGHTS = [6, 7, 2, 1.5, 1.5, 1.5, 1, 1.5, .3, 2, 1]


class Draw:
  """A source of random choices."""

  def __init__(self, seed, dtypes=('float32', 'bfloat16', 'float16')):
    self.rng, self.dtypes = np.random.default_rng(seed), dtypes

  def chance(self, p):
    return bool(self.rng.random() < p)

  def pick(self, values, weights=None):
    p = None if weights is None else np.array(weights) / np.sum(weights)
    return values[int(self.rng.choice(len(values), p=p))]

  def subset(self, values):
    return [v for v in values if self.chance(.5)]

  # ---- data

  def data(self, kind, shape, dtype):
    """An array of the given kind; `dtype` is a name."""
    rng, n = self.rng, shape
    normal = rng.standard_normal(n)
    small = np.finfo(np.float16).smallest_subnormal if dtype == 'float16' else np.float64(2.0)**-149
    if kind == 'normal':
      x = normal * 10**rng.uniform(-2, 2)
    elif kind == 'dyadic':  # few bits: sums are exact
      x = rng.integers(-12, 13, n) * 2.0**rng.integers(-3, 3)
    elif kind == 'ties':  # on and between the integers for a bound of 127.5 or 7.5
      x = rng.integers(-15, 16, n) * .5
      if x.size:
        x.flat[0] = 7.5
    elif kind == 'tiny':
      x = normal * (1e-22 if dtype != 'float16' else 1e-4)
    elif kind == 'subnormal':
      low = 1e-39 if dtype != 'float16' else 3e-6
      x = np.where(rng.random(n) < .6, normal * low, normal * low * 1e3)
      x = np.where(rng.random(n) < .1, small, x)
    elif kind == 'huge':
      x = normal * (1e37 if dtype != 'float16' else 2e4)
    elif kind == 'moderate':
      x = normal * 300
    elif kind == 'zero_row':
      x = normal * np.where(rng.random((n[:1] or ()) + (1,) * (len(n) - 1)) < .5, 0, 1)
      x = np.where(rng.random(n) < .1, -0.0, x)
    elif kind == 'zeros':
      x = np.zeros(n)
    elif kind == 'special':
      x = np.where(rng.random(n) < .8, rng.integers(-12, 13, n) * .25, normal)
      x = np.where(rng.random(n) < .08, rng.choice([np.inf, -np.inf, np.nan], n), x)
    else:
      x = normal * 10.0**rng.integers(-4, 5, n)
    with np.errstate(over='ignore', under='ignore'):
      x = np.asarray(x, np.float64).astype(np.float32).astype(FLOATS[dtype])
    if kind == 'huge':
      limit = ml_dtypes.finfo(FLOATS[dtype]).max
      x = np.clip(x.astype(np.float32), -float(limit), float(limit)).astype(FLOATS[dtype])
    return np.asarray(x)

  def kind(self):
    return self.pick(DATA, DATA_WEIGHTS)

  def operand_dtype(self):
    return self.pick(self.dtypes, [{'float32': 5, 'bfloat16': 3, 'float16': 2}[name] for name in self.dtypes])

  def dtype(self):
    return self.pick(['float32', 'bfloat16', 'float16'], [5, 3, 2])

  # ---- numerics

  def noise(self, rank):
    noise = {'kind': self.pick(['jax.uniform', 'custom-1'])}
    if self.chance(.3) and rank > 0:
      noise['noise_sharing_axes'] = [int(self.rng.integers(rank))]
    return noise

  def numerics(self, rank, none=.12, noise=.15):
    kind = self.pick(['none', 'int', 'fp8', 'fp'], [none, .62, .14, .12])
    if kind == 'none':
      return {'type': 'none'}
    if kind == 'int':
      bits = int(self.pick([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 22, 23], [2, 2, 1, 4, 1, 1, 1, 9, 1, 1, 1, .7, .7, .1]))
      preserve_zero = self.chance(.75)
      natural = ('int4' if bits == 4 else 'int8' if 2 <= bits <= 8 else None) if preserve_zero else None
      container = natural if self.chance(.9) else self.pick(
          [None, 'int8', 'int4', 'int2', 'int32', 'float32', 'bfloat16', 'float16'], [3, 2, 1, .3, 1, 1, 1, 1])
      return {'type': 'int', 'bits': bits, 'preserve_zero': preserve_zero, 'preserve_max_val': self.chance(.3),
              'clip': self.chance(.85), 'clip_gradient': self.chance(.4), 'round': self.chance(.88),
              'noise': self.noise(rank) if self.chance(noise) else None, 'container_dtype': container}
    if kind == 'fp8':
      dtype = self.pick(['float8_e4m3fn', 'float8_e5m2', 'bfloat16'], [5, 5, 1])
      wide = dtype == 'float8_e5m2' or (dtype == 'bfloat16' and self.chance(.5))
      return {'type': 'fp8', 'dtype': dtype, 'exponent_bits': 5 if wide else 4, 'mantissa_bits': 2 if wide else 3,
              'stochastic_rounding': self.chance(noise)}
    cfg = {'minexp': 0, 'has_two_nan': False, 'has_naninf': False}
    if self.chance(.12):
      cfg.update(nexp=3, nmant=0, has_subnormals=True, radix=4)
    else:
      nexp, nmant, sub = FP_FORMATS[self.pick(sorted(FP_FORMATS))]
      cfg.update(nexp=nexp, nmant=nmant, has_subnormals=sub, radix=2)
    cfg = {k: cfg[k] for k in ('nexp', 'minexp', 'nmant', 'has_subnormals', 'has_two_nan', 'has_naninf', 'radix')}
    return {'type': 'fp', 'cfg': cfg, 'stochastic_rounding': self.chance(noise), 'clip_gradient': self.chance(.3)}

  # ---- calibrations

  def calibration(self, shape, shared, prefix, inputs, bias=.3, only=None):
    """A calibration for a tensor of this shape (None: unknown) with a scale shared along `shared`; adds arrays to `inputs`."""
    kind = only or self.pick(['absmax', 'absmean', 'constant', 'snr'], [5, 1.3, 2.2, 2])
    result = {'kind': kind, 'po2_scale': self.chance(.25),
              'scale_dtype': self.dtype() if self.chance(.3) else None}
    if kind == 'absmax':
      result['clipping_scale'] = self.pick([None, .3, .75, 1.5, -.5, 0.0], [6, 2, 2, 1, .3, .3])
    elif kind == 'absmean':
      result.update(clipping_scale=self.pick([1.0, 2.0, 3.5]), p=self.pick([1.0, 2.0, 3.0, .5], [4, 2, 1, 1]))
    elif kind == 'snr':
      size = int(self.rng.integers(1, 5))
      result['auto_clip_search_config'] = [
          float(c) for c in self.rng.choice([.2, .3, .5, .6, .75, .8, .9, 1.0, 1.2], size, replace=False)]
    else:
      what = self.pick(['scalar', 'array', '0d'], [4, 4, 1])
      if what == 'scalar' or shape is None:
        result['bound'] = self.pick([1.0, .7, 3.0, 12.5, 100.0])
      else:
        bound = np.abs(self.rng.standard_normal(
            () if what == '0d' else tuple(1 if a in shared else n for a, n in enumerate(shape)))) * 4 + .1
        inputs[prefix + 'bound'] = np.asarray(bound, np.float32).astype(FLOATS[self.dtype()])
        result['bound'] = f'input {prefix}bound'
      if self.chance(bias):
        if self.chance(.5) or shape is None:
          result['bias'] = self.pick([.5, -1.25, .1])
        else:
          whole = self.chance(.5)
          value = self.rng.standard_normal(tuple(n if whole or a in shared else 1 for a, n in enumerate(shape)))
          inputs[prefix + 'bias'] = np.asarray(value, np.float32).astype(FLOATS[self.dtype()])
          result['bias'] = f'input {prefix}bias'
    return result

  # ---- operands and contractions

  def operand(self, rank, contracting, remaining, legal, backward, prefix, inputs, shape, local=False):
    """One side of a contraction; the axes are those of the operand."""
    numerics = self.numerics(rank, none=.2)
    pairs = [('output', 'contracting_axis'), ('this_input', 'contracting_axis'), ('this_input', 'remaining_axis'),
             ('other_input', 'remaining_axis'), ('output', 'remaining_axis'), ('other_input', 'contracting_axis')]
    dequant, mode = self.pick(pairs, [10, 2, 1, 1.2] + ([0, 0] if legal else [2, 2]))
    axes = None
    if self.chance(.2) and not local:
      axes = 'per_tensor' if self.chance(.5) else sorted(
          set(contracting if self.chance(.85) else []) | set(self.subset(range(rank))))
    if numerics['type'] == 'none':
      calibration = None
    else:
      shared = (list(range(rank)) if axes == 'per_tensor' else axes or
                (contracting if mode == 'contracting_axis' else remaining))
      with_bias = .3 if dequant == 'this_input' else .03
      calibration = self.calibration(shape, shared, prefix, inputs, bias=with_bias)
    return {'numerics': numerics, 'calibration': calibration, 'calibration_axes': axes, 'scale_stop_grad': True,
            'use_fwd_quant': self.chance(.008), 'dequant_mode': dequant, 'calibration_mode': mode,
            'use_fake_quant': dequant == 'this_input'}

  def accumulator(self, lhs, rhs):
    ints = all(s['numerics'].get('container_dtype') in ('int8', 'int4') and s['dequant_mode'] != 'this_input'
               for s in (lhs, rhs))
    return self.pick(['int32', None, 'float32', 'bfloat16', 'float16'], [8, 2, 1, .7, .7] if ints else [.07, 5, 2, 1, 1])

  def mid_alphas(self):
    alpha = lambda: self.pick([.3, .5, .7, 1.0, 0.0], [3, 3, 2, 1, .5])
    which = self.pick(['none', 'both', 'lhs', 'rhs'], [91, 7, 1, 1])
    return (alpha() if which in ('both', 'lhs') else None, alpha() if which in ('both', 'rhs') else None)

  def raw(self, name, shapes, dims, inputs, local_aqt=None):
    """A contraction of operands with these shapes (None: unknown) and dimension numbers."""
    lhs_ca, rhs_ca, lhs_ba, rhs_ba = dims
    sides = []
    for i, side in enumerate(('lhs', 'rhs')):
      shape, ca, ba = shapes[i], (lhs_ca, rhs_ca)[i], (lhs_ba, rhs_ba)[i]
      ra = [a for a in range(len(shape)) if a not in list(ca) + list(ba)]
      legal = self.chance(.98) if name == 'fwd' else self.chance(.85)
      sides.append(self.operand(len(shape), list(ca), ra, legal, name != 'fwd', f'{name}.{side}.', inputs, shape,
                                local=local_aqt is not None))
    lhs_alpha, rhs_alpha = self.mid_alphas()
    return {'lhs': sides[0], 'rhs': sides[1], 'dg_accumulator_dtype': self.accumulator(*sides),
            'lhs_mid_alpha': lhs_alpha, 'rhs_mid_alpha': rhs_alpha, 'local_aqt': local_aqt}

  def local_aqt(self, extent_lhs, extent_rhs):
    if self.chance(.6):
      counts = [c for c in (1, 2, 3, 4, 5) if all(e % c == 0 for e in (extent_lhs, extent_rhs) if e)]
      return {'contraction_axis_shard_count': int(self.pick(counts)), 'contraction_axis_shard_size': None,
              'tile_largest_shape': False}
    return {'contraction_axis_shard_count': None, 'contraction_axis_shard_size': int(self.pick([1, 2, 4, 5])),
            'tile_largest_shape': True}

  def dot_general(self, lhs_shape, rhs_shape, dims, inputs, local=.12):
    """The three contractions."""
    lhs_ca, rhs_ca, lhs_ba, rhs_ba = dims
    remaining = lambda shape, ca, ba: [a for a in range(len(shape)) if a not in list(ca) + list(ba)]
    lhs_ra, rhs_ra = remaining(lhs_shape, lhs_ca, lhs_ba), remaining(rhs_shape, rhs_ca, rhs_ba)
    g_shape = tuple([lhs_shape[a] for a in lhs_ba] + [lhs_shape[a] for a in lhs_ra] + [rhs_shape[a] for a in rhs_ra])
    b, m, n = len(lhs_ba), len(lhs_ra), len(rhs_ra)
    g_ba = list(range(b))
    config = {'fwd': self.raw('fwd', (lhs_shape, rhs_shape), dims, inputs)}
    for name, y_shape, y_ra, y_ba, g_ca in (
        ('dlhs', rhs_shape, rhs_ra, rhs_ba, list(range(b + m, b + m + n))),
        ('drhs', lhs_shape, lhs_ra, lhs_ba, list(range(b, b + m)))):
      local_aqt = None
      if self.chance(local):
        first = y_shape[y_ra[0]] if y_ra else 0
        local_aqt = self.local_aqt(first, first)
      config[name] = self.raw(name, (g_shape, y_shape), (g_ca, y_ra, g_ba, y_ba), inputs, local_aqt)
      forward = config['fwd']['rhs' if name == 'dlhs' else 'lhs']
      ok = forward['numerics']['type'] != 'none' and forward['calibration_mode'] == 'contracting_axis'
      config[name]['rhs']['use_fwd_quant'] = self.chance(.35 if ok else .01)
    return config, g_shape
