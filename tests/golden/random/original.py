"""Runs aqtp 0.9.0 op by op: builds its objects from the JSON of a configuration and records their results."""

import functools

import jax

# aqtp 0.9.0 names a symbol that this jax has renamed.
jax._src.core.mutable_array = jax._src.core.new_ref  # pylint: disable=protected-access

# pylint: disable=g-import-not-at-top
import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from aqt.jax.v2 import aqt_conv_general
from aqt.jax.v2 import aqt_dot_general as adg
from aqt.jax.v2 import aqt_quantizer
from aqt.jax.v2 import aqt_ragged_dot
from aqt.jax.v2 import calibration as cal
from aqt.jax.v2 import config as aqt_config
from aqt.jax.v2 import stochastic_rounding
from aqt.jax.v2 import tiled_dot_general
from aqt.jax.v2 import utils
from aqt.jax.v2.flax import aqt_flax
from aqt.jax.v2.flax import aqt_flax_calibration
from aqt.jax.v2.flax import delayed_scaling_calibration
from aqt.jax.v2.numerics import fp8_numerics
from aqt.jax.v2.numerics import fp_numerics
from aqt.jax.v2.numerics import int_numerics
from aqt.jax.v2.numerics import no_numerics
from aqt.jax.v2.numerics import numerics as numerics_lib

DTYPES = {name: getattr(jnp, name) for name in (
    'float32', 'bfloat16', 'float16', 'int32', 'int8', 'int4', 'int2', 'float8_e4m3fn', 'float8_e5m2')}


def dtype_of(name):
  return None if name is None else DTYPES[name]


@utils.flax_slots_kw_only_dataclass
class UnitNumerics(numerics_lib.AqtNumerics):
  """The numerics of mid scales, whose bound is the maximum itself."""

  def get_quant_bound(self):
    return 1.0

  def get_dtype(self):
    return None

  def vjp_fwd(self, x, context):
    return x, ()

  def vjp_bwd(self, res, grad):
    return grad


def make_numerics(json):
  """The original's object; derived fields are added to `json`."""
  if json['type'] == 'none':
    return no_numerics.NoNumerics()
  if json['type'] == 'int':
    noise = None
    if json['noise'] is not None:
      noise = {'jax.uniform': stochastic_rounding.JaxUniform,
               'custom-1': stochastic_rounding.RandomCenteredUniform}[json['noise']['kind']]()
      if 'noise_sharing_axes' in json['noise']:
        noise = functools.partial(noise, noise_sharing_axes=tuple(json['noise']['noise_sharing_axes']))
    result = int_numerics.IntSymmetric(
        noise_fn=noise, dtype=dtype_of(json['container_dtype']),
        **{k: json[k] for k in ('bits', 'preserve_zero', 'preserve_max_val', 'clip', 'clip_gradient', 'round')})
    json['fwd_clip_bound'] = float(result._get_fwd_clip_bound())  # pylint: disable=protected-access
  elif json['type'] == 'fp8':
    result = fp8_numerics.Fp8Numerics(
        dtype=dtype_of(json['dtype']),
        **{k: json[k] for k in ('exponent_bits', 'mantissa_bits', 'stochastic_rounding')})
  else:
    result = fp_numerics.FpNumerics(
        cfg=fp_numerics.FpNumericsConfig(**json['cfg']),
        **{k: json[k] for k in ('stochastic_rounding', 'clip_gradient')})
  json['quant_bound'] = float(result.get_quant_bound())
  return result


def make_calibration(json, inputs):
  """A factory of calibrators."""
  value = lambda v: jnp.asarray(inputs[v[6:]]) if isinstance(v, str) else v
  fields = {k: v for k, v in json.items() if k not in ('kind', 'scale_dtype')}
  for k in ('bound', 'bias'):
    if k in fields:
      fields[k] = value(fields[k])
  cls = {'absmax': cal.AbsMaxCalibration, 'absmean': cal.AbsMeanCalibration, 'constant': cal.ConstantCalibration,
         'snr': cal.SnrBasedAutoCalibration,
         'mean_of_absmax': functools.partial(aqt_flax_calibration.MeanOfAbsMaxCalibration, quant_collection='stats'),
         'weighted_stats': functools.partial(aqt_flax_calibration.WeightedStatsCalibration, quant_collection='stats'),
         'delayed_scaling': delayed_scaling_calibration.DelayedScalingCalibration}[json['kind']]
  return functools.partial(cls, **fields)


def make_quantizer(json, inputs, shared_axes=None, key=None):
  calibration = json['calibration']
  return aqt_quantizer.Quantizer(
      numerics=make_numerics(json['numerics']), calib_shared_axes=shared_axes, scale_stop_grad=json['scale_stop_grad'],
      scale_dtype=dtype_of(calibration['scale_dtype']) if calibration else None,
      calibration=make_calibration(calibration, inputs) if calibration else None,
      context=utils.Context(key=key, train_step=None))


def make_raw(json, inputs, name='aqt'):
  """A DotGeneralRaw."""
  sides = {side: adg.Tensor(use_fwd_quant=json[side]['use_fwd_quant'],
                            dequant_mode=adg.DequantMode[json[side]['dequant_mode'].upper()],
                            calibration_mode=adg.CalibrationMode[json[side]['calibration_mode'].upper()])
           for side in ('lhs', 'rhs')}
  quantizers = {side: make_quantizer(json[side], inputs, json[side]['calibration_axes']) for side in ('lhs', 'rhs')}
  for side in ('lhs', 'rhs'):
    quantizers[side + '_mid'] = aqt_quantizer.quantizer_make(None, initialize_calibration=False)
    if json[side + '_mid_alpha'] is not None:
      quantizers[side + '_mid'].numerics = UnitNumerics()
      quantizers[side + '_mid'].calibration = cal.AbsMaxCalibration
  dg_quantizer = adg.DefaultDotGeneralQuantizer(
      **quantizers, lhs_mid_alpha=json['lhs_mid_alpha'], rhs_mid_alpha=json['rhs_mid_alpha'])
  local = json['local_aqt']
  return adg.DotGeneralRaw(
      **sides, dg_quantizer=dg_quantizer, dg_accumulator_dtype=dtype_of(json['dg_accumulator_dtype']),
      local_aqt=None if local is None else adg.LocalAqt(**local), jax_scope_name=name)


def make_dot_general(json, inputs):
  return adg.DotGeneral(**{name: make_raw(json[name], inputs, name) for name in ('fwd', 'dlhs', 'drhs')})


class Calls:
  """Records the operands of quantized products and of calibrations' sums while it is active."""

  def __init__(self):
    self.products = []  # of _qtensor_dot_general
    self.sums = []  # (array, axes) in the calibrations

  def __enter__(self):
    self.saved = adg._qtensor_dot_general, cal.jnp, jax.lax.conv_general_dilated, jax.lax.ragged_dot  # pylint: disable=protected-access
    calls = self

    class Jnp:
      """jax.numpy with a recorded sum."""

      def __getattr__(self, name):
        return getattr(jnp, name)

      def sum(self, x, axis, keepdims):
        calls.sums.append((x, axis))
        return jnp.sum(x, axis=axis, keepdims=keepdims)

    def product(lhs_qt, rhs_qt, dims, cfg, dequant_dtype):
      entry = {'lhs': lhs_qt, 'rhs': rhs_qt, 'dims': dims}
      inner = cfg.dot_general

      def observed(lhs, rhs, **kwargs):
        out = inner(lhs, rhs, **kwargs)
        entry.update(dg_lhs=lhs, dg_rhs=rhs, accum=out)
        return out

      cfg.dot_general = observed
      try:
        entry['out'] = calls.saved[0](lhs_qt, rhs_qt, dims, cfg, dequant_dtype)
      finally:
        cfg.dot_general = inner
      calls.products.append(entry)
      return entry['out']

    adg._qtensor_dot_general, cal.jnp = product, Jnp()  # pylint: disable=protected-access
    return self

  def __exit__(self, *unused):
    adg._qtensor_dot_general, cal.jnp = self.saved[:2]  # pylint: disable=protected-access


def correct_power(x, alpha):
  """x ** alpha of arrays of one dtype, correctly rounded."""
  x = np.asarray(x)
  with np.errstate(all='ignore'):
    wide = x.astype(np.float64) ** np.float64(np.float32(alpha).astype(x.dtype))
  return wide.astype(np.float32 if x.dtype != np.float32 else x.dtype).astype(x.dtype)


class CorrectPower:
  """While it is active, mid scales are correctly rounded powers; XLA's own differ in one of 1,700 values."""

  def __enter__(self):
    self.saved, self.differs = adg.DefaultDotGeneralQuantizer.calibrate, False
    outer = self

    def calibrate(quantizer, lhs, rhs, *args):
      alphas = quantizer.lhs_mid_alpha, quantizer.rhs_mid_alpha
      mids = quantizer.lhs_mid, quantizer.rhs_mid

      class Mid:
        """A quantizer whose scale is already the power."""

        def __init__(self, inner, alpha):
          self.inner, self.alpha = inner, alpha

        def calibrate(self, x, calibration_axes):
          qt = self.inner.calibrate(x, calibration_axes=calibration_axes)
          scale = jnp.where(qt.scale[0] == 0, jnp.ones_like(qt.scale[0]), qt.scale[0])
          power = correct_power(scale, self.alpha)
          outer.differs |= not np.array_equal(power, np.asarray(scale**self.alpha), equal_nan=True)
          return qt.replace(scale=[jnp.asarray(power)])

      quantizer.lhs_mid, quantizer.rhs_mid = (m if a is None else Mid(m, a) for m, a in zip(mids, alphas))
      quantizer.lhs_mid_alpha, quantizer.rhs_mid_alpha = (None if a is None else 1.0 for a in alphas)
      try:
        return outer.saved(quantizer, lhs, rhs, *args)
      finally:
        quantizer.lhs_mid, quantizer.rhs_mid = mids
        quantizer.lhs_mid_alpha, quantizer.rhs_mid_alpha = alphas

    adg.DefaultDotGeneralQuantizer.calibrate = calibrate
    return self

  def __exit__(self, *unused):
    adg.DefaultDotGeneralQuantizer.calibrate = self.saved


def dot_general(json, inputs, dims, key=None):
  """(out, function that returns the gradients of g); both may raise the original's errors."""
  cfg = aqt_config.set_context(make_dot_general(json, inputs), key, None)
  lhs, rhs = jnp.asarray(inputs['lhs']), jnp.asarray(inputs['rhs'])
  for x in (lhs, rhs):
    assert x.dtype in (jnp.bfloat16, jnp.float32, jnp.float16), 'AQT is not yet optimized to accept quantized types'
  cfg.assert_config_validity()
  (out, _), res = adg.dg_core_vjp_fwd(lhs, rhs, None, None, dims, cfg)

  def gradients(g):
    dlhs, drhs = adg.dg_core_vjp_bwd(dims, res, (jnp.asarray(g), None))[:2]
    for name, x, dx in (('lhs', lhs, dlhs), ('rhs', rhs, drhs)):
      if (x.shape, x.dtype) != (dx.shape, dx.dtype):
        raise TypeError(f'custom_vjp: the gradient of {name} is {dx.dtype}{dx.shape}, not {x.dtype}{x.shape}')
    return dlhs, drhs

  return out, gradients


def quantize(json, inputs, key=None, tiling=None):
  """{name: array} of a quantizer."""
  axes = json['calibration_axes']
  quantizer = make_quantizer(json, inputs, 'per_tensor' if axes == 'per_tensor' else None, key)
  quantizer.init_calibration()
  x = jnp.asarray(inputs['x'])
  state = None
  if tiling is not None:
    state = tiled_dot_general.generate_tiling_state(x, [tiled_dot_general.AxisTiling(**tiling)])
  qt, gradient = quantizer.quant(x, calibration_axes=None if axes == 'per_tensor' else axes, tiling_state=state)
  result = {}
  if qt.scale:
    result['scale'], = qt.scale
  for i, bias in enumerate(qt.bias):
    result[f'bias{i}'] = bias
  result.update(qvalue=qt.qvalue, dequant=qt.dequant())
  if gradient is not None and 'g' in inputs:
    result['grad_x_scaled'] = gradient(jnp.asarray(inputs['g']))[0]
  return result


def numerics(json, inputs, key=None):
  live = make_numerics(json)
  y, residual = live.vjp_fwd(jnp.asarray(inputs['x']), utils.Context(key=key, train_step=None))
  return {'y': y, 'grad': live.vjp_bwd(residual, jnp.asarray(inputs['g']))[0]}


def stateful(json, inputs, key=None):
  """Scale and state after each step."""
  del key
  numerics_, calibration = make_numerics(json['numerics']), make_calibration(json['calibration'], inputs)
  module = calibration(dtype=dtype_of(json['calibration']['scale_dtype']))
  kind = json['calibration']['kind']
  axes = json['calibration_axes']
  variables, rows = {}, []
  x = inputs['x']
  axes = list(range(x.ndim - 1)) if axes == 'per_tensor' else axes

  def call(step, batch, variables):
    context = utils.Context(key=None, train_step=None, quant_mode=utils.QuantMode[step.upper()])

    class Model(nn.Module):

      @nn.compact
      def __call__(self, x):
        calibrator = calibration(dtype=dtype_of(json['calibration']['scale_dtype']))
        calibrator.init_calibration()
        return calibrator.get_scale_and_bias_and_sparsity(x, axes, numerics_, context)[0][0]

    collection = 'calibration_stats' if kind == 'delayed_scaling' else 'stats'
    if not variables:
      # MeanOfAbsMax does not update its state in this call; the others would.
      init_context = 'SERVE'
      saved, context.quant_mode = context.quant_mode, utils.QuantMode[init_context]
      variables = Model().init(jax.random.PRNGKey(0), batch)
      context.quant_mode = saved
    scale, new = Model().apply(variables, batch, mutable=[collection])
    return scale, {**variables, **new}

  del module
  for i, step in enumerate(json['steps']):
    scale, variables = call(step, jnp.asarray(x[i]), variables)
    flat = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(variables)[0]:
      flat[path[-1].key if hasattr(path[-1], 'key') else str(path[-1])] = np.asarray(leaf[...])
    rows.append({'scale': np.asarray(scale), **flat})
  result = {}
  if kind == 'mean_of_absmax' and json['steps'][-1] != 'calibrate':
    last = rows.pop()
    result['scale_after_train_step'], result['sum_after_train_step'] = last['scale'], last['sum_of_max']
  if rows:
    result.update({name: np.stack([row[name] for row in rows]) for name in rows[0]})
  return result


def einsum(json, inputs):
  """(out, gradients of g) of jnp.einsum with an injected contraction; its call is added to `json`."""
  cfg = make_dot_general(json, inputs)
  eqn = json['equation']

  def dg(lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, **unused):
    (lca, rca), (lba, rba) = dimension_numbers
    json['dot_general_call'] = {
        'lhs_shape': list(lhs.shape), 'rhs_shape': list(rhs.shape),
        'dimension_numbers': {'lhs_contracting': list(lca), 'rhs_contracting': list(rca), 'lhs_batch': list(lba),
                              'rhs_batch': list(rba)}}
    return cfg(lhs, rhs, dimension_numbers, precision, preferred_element_type)

  return jax.vjp(lambda l, r: adg.einsum(eqn, l, r, dg), jnp.asarray(inputs['lhs']), jnp.asarray(inputs['rhs']))


def aqt_einsum(json, inputs):
  model = aqt_flax.AqtEinsum(cfg=make_dot_general(json, inputs))
  lhs, rhs = jnp.asarray(inputs['lhs']), jnp.asarray(inputs['rhs'])
  return model.apply({}, json['equation'], lhs, rhs, rngs={'params': jax.random.PRNGKey(0)})


def convolution(json, inputs, key=None):
  """(out, lhs QTensor, rhs QTensor, product)."""
  raw = make_raw(json, inputs)
  if key is not None:
    keys = jax.random.split(key, 2)
    raw.dg_quantizer.set_context(*(utils.Context(key=k, train_step=None) for k in keys))
  raw.dg_quantizer.init_calibration()
  rank = json['spatial_dimensions'] + 2
  spatial = tuple(range(1, rank - 1))
  numbers = jax.lax.ConvDimensionNumbers(
      (0, rank - 1) + spatial, (rank - 1, rank - 2) + tuple(range(rank - 2)), (0, rank - 1) + spatial)
  record = {}
  real = jax.lax.conv_general_dilated

  def observed(**kwargs):
    record.update(kwargs, accum=real(**kwargs))
    return record['accum']

  aqt_conv_general.lax.conv_general_dilated = observed
  try:
    out, (lhs_qt, rhs_qt) = aqt_conv_general.make_conv_general_dilated_with_qt(raw)(
        jnp.asarray(inputs['lhs']), jnp.asarray(inputs['rhs']), tuple(json['window_strides']),
        json['padding'] if isinstance(json['padding'], str) else [tuple(p) for p in json['padding']],
        lhs_dilation=json['lhs_dilation'], rhs_dilation=json['rhs_dilation'], dimension_numbers=numbers,
        feature_group_count=json['feature_group_count'])
  finally:
    aqt_conv_general.lax.conv_general_dilated = real
  return out, lhs_qt, rhs_qt, record


def ragged(json, inputs, key=None):
  whole = {'fwd': json, 'dlhs': UNQUANTIZED, 'drhs': UNQUANTIZED}
  cfg = aqt_config.set_context(make_dot_general(whole, inputs), key, None)
  return aqt_ragged_dot.ragged_dot(
      jnp.asarray(inputs['lhs']), jnp.asarray(inputs['rhs']), jnp.asarray(inputs['group_sizes']), cfg=cfg)


def tiled(json, inputs):
  """(out, vjp) of a tiled contraction."""
  cfg = make_dot_general(json['dot_general'], inputs) if json['dot_general'] else None
  sides = {
      side: tiled_dot_general.TensorTiling(**{
          axes: [tiled_dot_general.AxisTiling(axis=a, tile_count=n) for a, n in json['tiling'][side][axes]]
          for axes in ('contraction_axes', 'remaining_axes')}) for side in ('lhs', 'rhs')}
  d = json['dimension_numbers']
  dims = (d['lhs_contracting'], d['rhs_contracting']), (d['lhs_batch'], d['rhs_batch'])
  dg = cfg if cfg is not None else jax.lax.dot_general
  return jax.vjp(
      lambda l, r: tiled_dot_general.tiled_dot_general(tiled_dot_general.Cfg(**sides), l, r, dims, dot_general=dg),
      jnp.asarray(inputs['lhs']), jnp.asarray(inputs['rhs']))


def _plain(side_axes=None):
  return {'numerics': {'type': 'none'}, 'calibration': None, 'calibration_axes': side_axes, 'scale_stop_grad': True,
          'use_fwd_quant': False, 'dequant_mode': 'output', 'calibration_mode': 'contracting_axis',
          'use_fake_quant': False}


UNQUANTIZED = {'lhs': _plain(), 'rhs': _plain(), 'dg_accumulator_dtype': None, 'lhs_mid_alpha': None,
               'rhs_mid_alpha': None, 'local_aqt': None}
