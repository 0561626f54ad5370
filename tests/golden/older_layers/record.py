"""Records results of AQT's older layers (aqt/jax_legacy): softmax, sums, layer norm and embedding.

  record.py --aqt=CHECKOUT --out=older_layers.safetensors

CHECKOUT is a checkout of github.com/google/aqt at 9d1667ebde057f474cf8d2c80d4e52c5670d6c8a. The modules import XLA's cost
estimates from tensorflow, which these functions do not use; an empty module replaces it. Everything runs op by op on the CPU
(jax.disable_jit), so every operation rounds once. This XLA simplifies the rounding (x + c) - c to x in compiled code. Because
lax.reduce in quantized_sum compiles its computation, a loop replaces it. The cases and their options are those of
tests/e2e/older_layers_test.cc, which reads them from the names.
"""

import argparse
import json
import platform
import struct
import sys
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

FORMATS = {'e4m3': (-6, 8, 3), 'e5m2': (-14, 15, 2), 'wide': (-100, 100, 10)}


def write(path, arrays, metadata):
  names = {np.dtype('float32'): 'F32', np.dtype('int32'): 'I32'}
  header, data = {'__metadata__': metadata}, b''
  for name, array in sorted(arrays.items()):
    array = np.ascontiguousarray(array)
    raw = array.tobytes()
    header[name] = {'dtype': names[array.dtype], 'shape': list(array.shape), 'data_offsets': [len(data), len(data) + len(raw)]}
    data += raw
  text = json.dumps(header, sort_keys=True, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  with open(path, 'wb') as file:
    file.write(struct.pack('<Q', len(text)) + text + data)


def numbers(shape, seed, scale=1.0):
  return (np.random.RandomState(seed).standard_normal(shape) * scale).astype(np.float32)


def with_gradient(arrays, case, fn, *args):
  """The value of fn, and the gradients of its sum weighted by fixed numbers."""
  y, backward = jax.vjp(fn, *[jnp.asarray(x) for x in args])
  g = numbers(y.shape, 77)
  arrays[case + '/y'] = np.asarray(y)
  arrays[case + '/g'] = g
  for i, (x, dx) in enumerate(zip(args, backward(jnp.asarray(g)))):
    arrays[f'{case}/x{i}'] = np.asarray(x)
    arrays[f'{case}/dx{i}'] = np.asarray(dx)


def reduce_in_order(x, init_values, computation, dimensions):
  """lax.reduce that adds elements in row-major order."""
  kept = [axis for axis in range(x.ndim) if axis not in dimensions]
  rows = jnp.transpose(x, kept + list(dimensions)).reshape([x.shape[axis] for axis in kept] + [-1])
  result = jnp.broadcast_to(init_values, rows.shape[:-1])
  for i in range(rows.shape[-1]):
    result = computation(result, rows[..., i])
  return result


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--aqt', required=True)
  parser.add_argument('--out', required=True)
  options = parser.parse_args()
  sys.path.insert(0, options.aqt)
  for name in ('tensorflow', 'tensorflow.compiler', 'tensorflow.compiler.xla', 'tensorflow.compiler.xla.service',
               'ml_collections', 'tensorboard'):
    sys.modules[name] = mock.MagicMock()
  from aqt.jax_legacy.jax import flax_attention, flax_layers, fp_cast, quant_config, quantization
  quantization.lax = types.SimpleNamespace(**{**vars(quantization.lax), 'reduce': reduce_in_order})
  context = quant_config.DynamicContext(update_bounds=False, quantize_acts=True)
  precision = {name: quantization.QuantOps.FloatQuant.FloatPrec(*spec) for name, spec in FORMATS.items()}
  precision['none'] = None
  arrays = {}

  edges = np.array([0.0, -0.0, 1.0, -1.0, 2.0**-6, 0.99 * 2.0**-6, 0.9 * 2.0**-6, -(2.0**-6), 448.0, 480.0, 496.0, -480.0, 1e30,
                    np.inf, -np.inf, np.nan, 1.0625, 1.1875, -1.0625, 1e-40, 57344.0, 122880.0, 2.0**-14], np.float32)
  for name, spec in FORMATS.items():
    x = np.concatenate([edges, numbers((200,), 1, 10.0), numbers((200,), 2, 0.02)]).astype(np.float32)
    with_gradient(arrays, f'cast/{name}', lambda x, s=spec: fp_cast.downcast_sat_ftz(x, *s), x)
    with_gradient(arrays, f'sum/{name}', lambda x, n=name: quantization.quantized_sum(
        x, axis=(0, 2), keepdims=False, prec=precision[n]), numbers((6, 4, 7), 3))

  for steps, sums in (('e4m3', 'none'), ('e4m3', 'e4m3'), ('e5m2', 'e4m3'), ('wide', 'wide')):
    hparams = flax_attention.SoftmaxHParams(None, None, flax_attention.SoftmaxQuantHParams(
        prec=precision[steps], reduction_prec=precision[sums]))
    with_gradient(arrays, f'softmax/{steps}/{sums}', lambda x, h=hparams: flax_attention.softmax(
        x, (1,), jnp.float32, h, context), numbers((8, 12), 4, 2.0))

  # exp_slope, exp_low, sum_high, reciprocal_slope, reciprocal_low; 0: none.
  for case in ((1.0, 0, 0, 0, 0), (0.25, 0, 0, 0, 0), (0, -2.0, 0, 0, 0), (0, 0, 3.0, 0, 0), (0, 0, 0, 0.125, 0.0625),
               (0.5, -1.0, 2.5, 0.25, 0.125)):
    exp_slope, exp_low, sum_high, slope, low = case
    reciprocal = flax_attention.ReciprocalHParams(linear_gradient=slope, low_bound=low) if slope else None
    hparams = flax_attention.SoftmaxHParams(flax_attention.ExpHParams(
        sum_high_bound=sum_high, low_bound=exp_low, clip_and_subtract=False, linear_gradient=exp_slope), reciprocal, None)
    with_gradient(arrays, 'approximate/' + '/'.join(map(str, map(float, case))), lambda x, h=hparams: flax_attention.softmax(
        x, (1,), jnp.float32, h, context), numbers((8, 6), 5))

  for steps, sums, n in (('e4m3', 'none', 12), ('e4m3', 'e4m3', 12), ('e5m2', 'wide', 600), ('wide', 'wide', 12)):
    layer = flax_layers.LayerNormAqt(
        hparams=flax_layers.LayerNormAqt.HParams(flax_layers.LayerNormAqt.QuantHParams(precision[steps], precision[sums])),
        dtype=jnp.float32, dynamic_context=context)
    with_gradient(arrays, f'norm/{steps}/{sums}/{n}', lambda x, s, b, l=layer: l.apply({'params': {'scale': s, 'bias': b}}, x),
                  numbers((6, n), 6, 2.0), 1 + numbers((n,), 7, 0.2), numbers((n,), 8, 0.2))

  ids = np.array([[3, 0, 9], [9, 5, 3]], np.int32)
  for bits, half_shift in ((8, False), (4, False), (2, False), (1, False), (4, True), (1, True)):
    layer = flax_layers.EmbedAqt(
        num_embeddings=10, features=7, dtype=jnp.float32, paxis_name=None, train=False, dynamic_context=context,
        hparams=flax_layers.EmbedAqt.HParams(weight_prec=bits, weight_half_shift=half_shift, quant_act=None,
                                             quant_type=quantization.QuantType.FAKE_QUANT))
    with_gradient(arrays, f'embed/{bits}/{int(half_shift)}', lambda t, l=layer: l.apply({'params': {'embedding': t}}, ids),
                  numbers((10, 7), 9, 0.4))
  arrays['embed/ids'] = ids

  versions = {'aqt': '9d1667e', 'jax': jax.__version__, 'numpy': np.__version__, 'python': platform.python_version()}
  write(options.out, arrays, versions)


if __name__ == '__main__':
  with jax.disable_jit():
    main()
