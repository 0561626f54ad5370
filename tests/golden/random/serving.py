"""Cases that are trained or calibrated, converted and served: the frozen tensors, and the results of each mode.

A case is a stack of layers (flax's nn.Dense with the same configuration each, relu between them) or one contraction. The
freezer keeps complete QTensors. Parameters are frozen by value and scale. An activation whose calibration has state is
frozen by its scale; an activation that is calibrated from itself has nothing to freeze.
"""

import copy
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from aqt.jax.v2.flax import aqt_flax
from aqt.jax.v2.utils import QuantMode

import draw as draw_lib
import exactness
import original
from case import EXACT, INFO, NanWatch, Redraw, check_sums, nonfinite, product_bounds

PASSES = ('fwd', 'dlhs', 'drhs')


# ---- the original


class WithKey:
  """While it is active, every layer gets this key unchanged; flax would fold the layer's name into it."""

  def __init__(self, key):
    self.key = key

  def __enter__(self):
    self.saved = aqt_flax.config.set_context
    aqt_flax.config.set_context = lambda cfg, key, **kwargs: self.saved(cfg, self.key, **kwargs)

  def __exit__(self, *unused):
    aqt_flax.config.set_context = self.saved


def has_state(raw, side):
  return bool(raw[side]['calibration']) and raw[side]['calibration']['kind'] == 'mean_of_absmax'


def module_of(config, cfg, mode, params):
  """The module that contracts in a mode; `params` has the sides that are parameters."""
  freeze = aqt_flax.FreezerMode
  sides = {}
  for side in ('lhs', 'rhs'):
    own = mode if side in params or has_state(config['fwd'], side) else 'TRAIN'
    sides[f'{side}_quant_mode'] = QuantMode[own]
    sides[f'{side}_freeze_mode'] = freeze.NONE if own not in ('CONVERT', 'SERVE') else (
        freeze.CALIBRATION_AND_VALUE if side in params else freeze.CALIBRATION)
  return functools.partial(aqt_flax.AqtDotGeneral, cfg, prng_name=None, use_legacy_freezer=False, **sides)


class Layers:
  """The layers of a case, run in a mode."""

  def __init__(self, config, inputs, key):
    self.config, self.key = config, key
    self.params = {f'Dense_{i}': {'kernel': jnp.asarray(inputs[f'kernel{i}']), 'bias': jnp.asarray(inputs[f'bias{i}'])}
                   for i in range(len(config['features']))}
    self.cfg = original.make_dot_general({name: config[name] for name in PASSES}, inputs)
    self.state = {}
    if any(has_state(config['fwd'], side) for side in ('lhs', 'rhs')):
      model = self._model('TRAIN', None)
      with WithKey(key):
        variables = model.init(jax.random.PRNGKey(0), jnp.asarray(inputs['x']))
      self.state = {'stats': jax.tree.map(jnp.zeros_like, variables['stats'])}

  def _model(self, mode, taps):
    dot_general = module_of(self.config, self.cfg, mode, ['rhs'])
    features = self.config['features']

    class Model(nn.Module):

      @nn.compact
      def __call__(self, x):
        for i, n in enumerate(features):
          if taps is not None:
            taps[f'layer_in{i}'] = x
          x = nn.Dense(n, param_dtype=x.dtype, dot_general_cls=dot_general)(x)
          if taps is not None:
            taps[f'layer_out{i}'] = x
          if i + 1 < len(features):
            x = nn.relu(x)
        return x

    return Model()

  def run(self, mode, x, frozen=None):
    """(inputs and outputs of the layers, products, new variables)."""
    taps = {}
    model = self._model(mode, taps)
    variables = {'params': self.params, **self.state, **(frozen or {})}
    with WithKey(self.key), original.Calls() as calls:
      _, new = model.apply(variables, jnp.asarray(x), mutable=['stats', 'aqt'])
    return taps, calls, new


class Dot:
  """The contraction of a case, run in a mode."""

  def __init__(self, config, inputs, key):
    self.config, self.key = config, key
    numbers = config['dimension_numbers']
    self.dims = tuple(tuple(tuple(numbers[f'{side}_{axes}']) for side in ('lhs', 'rhs'))
                      for axes in ('contracting', 'batch'))
    self.cfg = original.make_dot_general({name: config[name] for name in PASSES}, inputs)
    self.state = {}
    if any(has_state(config['fwd'], side) for side in ('lhs', 'rhs')):
      with WithKey(key):
        variables = self._module('TRAIN').init(
            jax.random.PRNGKey(0), jnp.asarray(inputs['lhs']), jnp.asarray(inputs['rhs']), self.dims, None)
      self.state = {'stats': jax.tree.map(jnp.zeros_like, variables['stats'])}

  def _module(self, mode):
    return module_of(self.config, self.cfg, mode, self.config['params'])()

  def run(self, mode, lhs, rhs, frozen=None):
    """(result, products, new variables)."""
    with WithKey(self.key), original.Calls() as calls:
      out, new = self._module(mode).apply({**self.state, **(frozen or {})}, jnp.asarray(lhs), jnp.asarray(rhs),
                                          self.dims, None, mutable=['stats', 'aqt'])
    return out, calls, new


# ---- drawing

KINDS = ['normal', 'dyadic', 'ties', 'tiny', 'subnormal', 'huge', 'zero_row', 'zeros', 'special', 'wide']
WEIGHTS = [6, 9, 2, 1, 1, 1, 1.5, .3, .7, 1]


def draw_fwd(d, shapes, dims, inputs):
  """A contraction with at least one quantized side and unquantized gradients, and its quantized sides."""
  while True:
    inputs.clear()
    raw = d.raw('fwd', shapes, dims, inputs)
    quantized = [side for side in ('lhs', 'rhs') if raw[side]['numerics']['type'] != 'none']
    if quantized:
      break
  for side in ('lhs', 'rhs'):
    raw[side]['use_fwd_quant'] = False  # has no effect in fwd
  return {'fwd': raw, **{name: copy.deepcopy(original.UNQUANTIZED) for name in ('dlhs', 'drhs')},
          'bitwise_train_equals_serve': False}, quantized


def give_state(d, raw, quantized, inputs):
  """Gives calibrations with state to at least one side."""
  for side in [side for side in quantized if d.chance(.8)] or quantized[:1]:
    for field in ('bound', 'bias'):
      inputs.pop(f'fwd.{side}.{field}', None)
    raw[side]['calibration'] = {'kind': 'mean_of_absmax', 'po2_scale': d.chance(.3),
                                'scale_dtype': d.dtype() if d.chance(.3) else None}


def batches(d, count, shape, dtype):
  """[count, ...]; each batch has its own kind of data."""
  drawn = [d.data(d.pick(KINDS, WEIGHTS), shape, dtype) for _ in range(count)]
  return np.stack(drawn) if drawn else np.zeros((0,) + shape, draw_lib.FLOATS[dtype])


def draw_dot(d, inputs):
  lhs_shape, rhs_shape, dims, _ = d.pick(draw_lib.DOTS, [dot[-1] for dot in draw_lib.DOTS])
  config, quantized = draw_fwd(d, (lhs_shape, rhs_shape), dims, inputs)
  dtype, kinds = d.operand_dtype(), [d.pick(KINDS, WEIGHTS) for _ in range(2)]
  inputs['lhs'], inputs['rhs'] = d.data(kinds[0], lhs_shape, dtype), d.data(kinds[1], rhs_shape, dtype)
  config['dimension_numbers'] = dict(zip(('lhs_contracting', 'rhs_contracting', 'lhs_batch', 'rhs_batch'), dims))
  config['params'] = d.pick([['rhs'], ['lhs'], ['lhs', 'rhs'], []], [4, 4, 2, 1])
  config['calibration_batches'] = 0
  if d.chance(.35) or not config['params']:
    give_state(d, config['fwd'], quantized, inputs)
    config['calibration_batches'] = int(d.pick([1, 2, 3, 5]))
    for side, shape in (('lhs', lhs_shape), ('rhs', rhs_shape)):
      if side not in config['params']:
        inputs[f'calibration_{side}'] = batches(d, config['calibration_batches'], shape, dtype)
  return config, f'data={kinds[0]}/{kinds[1]} dtype={dtype}'


def draw(d, inputs, calibrated):
  """Layers: a configuration and notes."""
  dtype = d.operand_dtype()
  shape, features = d.pick([((6, 6), [6]), ((6, 6), [6, 6]), ((6, 6), [6, 6, 6]), ((4, 8), [5]), ((2, 4, 4), [4])],
                           [6, 3, 1, .4, 0 if calibrated else 1])
  config, quantized = draw_fwd(d, (shape, (shape[-1], features[0])), ([len(shape) - 1], [0], [], []), inputs)
  config['features'] = features
  kind, kernel = d.pick(KINDS, WEIGHTS), d.pick(KINDS, WEIGHTS)
  inputs['x'] = d.data(kind, shape, dtype)
  last = shape[-1]
  for i, n in enumerate(features):
    inputs[f'kernel{i}'] = d.data(kernel, (last, n), dtype)
    inputs[f'bias{i}'] = d.data(d.pick(['normal', 'dyadic', 'zeros'], [2, 3, 3]), (n,), dtype)
    last = n
  notes = f'data={kind}/{kernel} dtype={dtype}'
  if not calibrated:
    config.update(activation='relu between layers', frozen='rhs value and scale', train_steps=0,
                  serve_ignores_float_kernel=False)
    return config, notes
  give_state(d, config['fwd'], quantized, inputs)
  config['calibration_batches'] = int(d.pick([0, 1, 2, 3, 5], [.4, 2, 3, 2, 1]))
  inputs['calibration_batches'] = batches(d, config['calibration_batches'], shape, dtype)
  return config, notes


# ---- recording


def layer_bounds(raw, entry, y):
  """(error, doubt) of a layer's output: the product, then the bias."""
  error, doubt = product_bounds(raw, entry)
  if not np.any(error):
    return error, doubt
  info = exactness._info(y.dtype)  # pylint: disable=protected-access
  v = np.abs(exactness.as_f64(y))
  v = np.where(np.isfinite(v), v, 0)
  step = v * 2.0**(1 - exactness.digits(y.dtype)) + float(info.smallest_normal)
  # The bias may cancel the sum, so the error stays that of the product.
  return np.where(error > 0, error + step, 0), doubt | ((error > 0) & (v + error >= float(info.max)))


def tolerances(config, taps, calls):
  """The tolerances of layer_in and layer_out."""
  result, given = {'layer_in0': EXACT}, None
  for i, entry in enumerate(calls.products):
    y = np.asarray(taps[f'layer_out{i}'])
    error, doubt = layer_bounds(config['fwd'], entry, y)
    tol = exactness.tolerance(error, doubt, y.dtype)
    result[f'layer_out{i}'] = tol if given is None or tol == INFO else {**tol, 'given': [given]}
    if i + 1 < len(calls.products):
      if given is None:
        result[f'layer_in{i + 1}'] = tol
      else:  # the values given to the previous layer have no further effect
        result[f'layer_in{i + 1}'] = INFO
      given = None if given is None and tol == EXACT else f'layer_in{i + 1}'
  return result


def run(case, key):
  """Records a case from draw()."""
  config, inputs = case.config, case.inputs
  calibrated = 'calibration_batches' in config
  dtype = inputs['x'].dtype
  with NanWatch() as watch, original.CorrectPower() as power:
    layers = Layers(config, inputs, key)
    if calibrated:
      for batch in inputs['calibration_batches']:
        taps, calls, new = layers.run('CALIBRATE', batch)
        check_sums(calls, config, dtype)
        if len(config['features']) > 1 and not all(t == EXACT for t in tolerances(config, taps, calls).values()):
          raise Redraw  # the statistics of later layers depend on rounding errors
        layers.state = {'stats': new['stats']}
    train, train_calls, _ = layers.run('TRAIN', inputs['x'])
    _, _, converted = layers.run('CONVERT', inputs['x'])
    frozen = {'aqt': converted['aqt']}
    served, calls, _ = layers.run('SERVE', inputs['x'], frozen)
    zeroed = Layers(config, inputs, key)
    zeroed.state = layers.state
    zeroed.params = jax.tree.map(lambda x: x, layers.params)
    for layer in zeroed.params.values():
      layer['kernel'] = jnp.zeros_like(layer['kernel'])
    without_kernels, _, _ = zeroed.run('SERVE', inputs['x'], frozen)
  if watch.passed or power.differs:
    raise Redraw
  if any(nonfinite(served[f'layer_out{i}']) for i in range(len(config['features']) - 1)):
    raise Redraw  # jax's relu of NaN is NaN, ours is 0
  for c in (train_calls, calls):
    check_sums(c, config, dtype)
  count = len(config['features'])
  last = f'layer_out{count - 1}'
  bits = lambda x: np.asarray(x).tobytes()
  config['bitwise_train_equals_serve'] = bits(train[last]) == bits(served[last])
  if not calibrated:
    config['serve_ignores_float_kernel'] = config['fwd']['rhs']['numerics']['type'] != 'none' and (
        bits(without_kernels[last]) == bits(served[last]))
  tols = tolerances(config, served, calls)
  for i in range(count):
    layer = converted['aqt'][f'Dense_{i}']['AqtDotGeneral_0']
    for side in ('rhs', 'lhs'):
      qt = layer.get('q' + side, {}).get('frozen')
      if qt is None or not qt.scale:
        continue
      name = f'frozen{i}.{side}' if calibrated else f'frozen{i}'
      if qt.qvalue is not None:
        case.expect(f'{name}.qvalue', qt.qvalue)
      case.expect(f'{name}.scale', qt.scale[0])
    for name in (f'layer_in{i}', f'layer_out{i}'):
      case.expect(name, served[name], tols[name])
    if calibrated and layers.state:
      for path, value in jax.tree_util.tree_flatten_with_path(layers.state['stats'][f'Dense_{i}'])[0]:
        case.expect('.'.join(['stats', f'Dense_{i}'] + [p.key for p in path]), value)
  case.expect('served_output', served[last], tols[last])
  case.expect('train_mode_output_with_static_scales' if calibrated else 'train_mode_output', train[last],
              tolerances(config, train, train_calls)[last])


def run_dot(case, key):
  """Records a case from draw_dot()."""
  config, inputs = case.config, case.inputs
  dtype = inputs['lhs'].dtype
  sides = ('lhs', 'rhs')
  with NanWatch() as watch, original.CorrectPower() as power:
    dot = Dot(config, inputs, key)
    for i in range(config['calibration_batches']):
      operands = [inputs[side] if side in config['params'] else inputs[f'calibration_{side}'][i] for side in sides]
      _, calls, new = dot.run('CALIBRATE', *operands)
      check_sums(calls, config, dtype)
      dot.state = {'stats': new['stats']}
    operands = [inputs[side] for side in sides]
    train, train_calls, _ = dot.run('TRAIN', *operands)
    _, _, converted = dot.run('CONVERT', *operands)
    frozen = {'aqt': converted.get('aqt', {})}
    # The frozen tensor is served instead of the parameter.
    zeroed = [np.zeros_like(x) if side in config['params'] and config['fwd'][side]['numerics']['type'] != 'none' else x
              for side, x in zip(sides, operands)]
    mid = config['fwd']['lhs_mid_alpha'] is not None or config['fwd']['rhs_mid_alpha'] is not None
    served, calls, _ = dot.run('SERVE', *(operands if mid else zeroed), frozen)
  if watch.passed or power.differs:
    raise Redraw
  for c in (train_calls, calls):
    check_sums(c, config, dtype)
  config['bitwise_train_equals_serve'] = np.asarray(train).tobytes() == np.asarray(served).tobytes()
  for side in sides:
    qt = frozen['aqt'].get('q' + side, {}).get('frozen')
    if qt is not None and qt.scale:
      if qt.qvalue is not None:
        case.expect(f'frozen.{side}.qvalue', qt.qvalue)
      case.expect(f'frozen.{side}.scale', qt.scale[0])
  # Modules are numbered in the order of the sides.
  stateful = [side for side in sides if has_state(config['fwd'], side)]
  for side, (_, values) in zip(stateful, sorted(dot.state.get('stats', {}).items())):
    for name, value in values.items():
      case.expect(f'stats.{side}.{name}', value)
  for name, out, c in (('served_output', served, calls), ('train_mode_output', train, train_calls)):
    error, doubt = product_bounds(config['fwd'], c.products[-1])
    case.expect(name, out, exactness.tolerance(error, doubt, np.asarray(out).dtype))
