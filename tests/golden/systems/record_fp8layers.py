"""Records training steps of the FP8 layers for Flax on data of a seed.

  PYTHONPATH=ATEX/experimental/xla-fp8-layers record_fp8layers.py --seed=N --out=DIR [--groups=NAME,NAME] [--exact]

Writes fp8layers.json and fp8layers.safetensors to DIR, in the format of //tests/golden_check: cases dense, mlp and
transformer, which run op by op. With --exact the classifiers have only three steps, whose losses must be equal (up to the
last bits of f32), and the numbers of the layer without a bias must be equal.

Needs NVIDIA atex 00c372b, jax 0.10.2, flax 0.12.8 and optax 0.2.8.
"""

import argparse
import json
import os
import struct

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from fp8layers.flax import DenseGeneral

STORED = {'float32': 'F32', 'bfloat16': 'BF16', 'int32': 'I32'}
DTYPES = {None: None, 'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
METAS = [f'{t}_{part}' for t in ('input', 'kernel', 'output_grad') for part in ('amax_history', 'scale')]


def fresh(length=16):
  return {name: np.ones(1, np.float32) if name.endswith('scale') else np.zeros(length, np.float32) for name in METAS}


def f32(x):
  return np.asarray(x, np.float32)


# ---- one layer

DENSE = {
    'f32_none': (None, True, None, 'adam'),
    'bf16': ('bfloat16', True, None, 'sgd'),
    'f32_relu': ('float32', True, 'relu', 'sgd'),
    'nobias_gelu_bf16': ('bfloat16', False, 'gelu_tanh', 'sgd'),
}
ACTIVATIONS = {None: None, 'relu': jax.nn.relu, 'gelu_tanh': lambda v: jax.nn.gelu(v, approximate=True)}


def dense(rng, name, exact):
  dtype, use_bias, activation, optimizer = DENSE[name]
  rate, steps, length = .1, 5, 3
  params = {'kernel': f32(rng.standard_normal((8, 5)) * .35)}
  if use_bias:
    params['bias'] = f32(rng.standard_normal(5) * .3)
  inputs = {'params': params, 'fp8_params': fresh(length),
            'x': f32(rng.standard_normal((steps, 6, 8)) * 10.0**rng.uniform(-1, 1.3, (steps, 1, 1))),
            'dy': f32(rng.standard_normal((steps, 6, 5)) * .5)}
  layer = DenseGeneral(features=5, amax_history_length=length, dtype=DTYPES[dtype], use_bias=use_bias,
                       activation=ACTIVATIONS[activation])
  params, metas = jax.tree.map(jnp.asarray, (params, inputs['fp8_params']))
  tx = optax.adam(rate) if optimizer == 'adam' else optax.sgd(rate)
  state, expected = tx.init(params), {}
  for n in range(steps):
    dy = jnp.asarray(inputs['dy'][n])

    def loss(p, m, x):
      y = layer.apply({'params': p, 'fp8_params': m}, x)
      return jnp.sum(y * dy.astype(y.dtype)), y

    (_, y), (dparams, metas, dx) = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(
        params, metas, jnp.asarray(inputs['x'][n]))
    updates, state = tx.update(dparams, state, params)
    params = optax.apply_updates(params, updates)
    expected[f'step{n}'] = {'y': y, 'dx': dx, 'dparams': dparams, 'params': params, 'fp8_params': metas}
  config = {'features': 5, 'in': 8, 'amax_history_length': length, 'dtype': dtype, 'use_bias': use_bias,
            'activation': activation, 'optimizer': optimizer, 'lr': rate, 'loss': 'sum(y*dy)'}
  tolerance = {'atol': .06, 'rtol': .03} if dtype == 'bfloat16' else {'atol': 2e-5, 'rtol': 2e-5}
  if exact and not use_bias:  # a sum over rows, such as the gradient of a bias, has its own order
    tolerance = {'atol': 0, 'rtol': 0}
  return 'dense.train_steps', config, inputs, expected, tolerance


# ---- a classifier

MLP = {'fp8_f32': ('float32', True), 'fp8_bf16': ('bfloat16', True), 'plain_f32': ('float32', False)}


def layer_of(fp8, features, dtype):
  return DenseGeneral(features=features, dtype=dtype) if fp8 else nn.Dense(features, dtype=dtype)


def kernel(rng, rows, columns):
  return f32(rng.standard_normal((rows, columns)) / np.sqrt(rows))


def mlp(rng, name, exact):
  dtype, fp8 = MLP[name]
  sizes, steps, batch = [20, 16, 16, 10], 60, 16
  centers = rng.standard_normal((10, 20))
  labels = rng.integers(0, 10, (steps, batch)).astype(np.int32)
  params = {f'dense{i + 1}': {'kernel': kernel(rng, a, b), 'bias': np.zeros(b, np.float32)}
            for i, (a, b) in enumerate(zip(sizes, sizes[1:]))}
  inputs = {'params': params, 'x': f32(centers[labels] + .7 * rng.standard_normal((steps, batch, 20))), 'labels': labels}
  metas = {layer: fresh() for layer in params} if fp8 else {}
  params, metas = jax.tree.map(jnp.asarray, (params, metas))

  def loss(p, m, x, y):
    for i, features in enumerate(sizes[1:], 1):
      variables = {'params': p[f'dense{i}'], **({'fp8_params': m[f'dense{i}']} if fp8 else {})}
      x = layer_of(fp8, features, DTYPES[dtype]).apply(variables, x)
      x = jax.nn.relu(x) if i + 1 < len(sizes) else x
    return optax.softmax_cross_entropy_with_integer_labels(x, y).mean()

  tx = optax.adam(.01)
  state, losses, first = tx.init(params), [], None
  for n in range(steps):
    value, (gradients, new) = jax.value_and_grad(loss, argnums=(0, 1))(
        params, metas, jnp.asarray(inputs['x'][n]), jnp.asarray(labels[n]))
    updates, state = tx.update(gradients, state, params)
    params, metas = optax.apply_updates(params, updates), new
    first = first or new
    losses.append(np.float32(value))
  expected = {'loss': np.array(losses)}
  of_loss = {'atol': .15 if dtype == 'bfloat16' else .03 if fp8 else .001, 'rtol': .02, 'final_mean_rtol': .15,
             'final_mean_last': 10}
  tolerance = {'atol': 0, 'rtol': 0, 'loss': of_loss}
  if fp8:
    expected.update(fp8_params_after_step0=first, fp8_scales_final={
        layer: {k: v for k, v in m.items() if k.endswith('scale')} for layer, m in metas.items()})
    tolerance.update(fp8_params_after_step0={'atol': .001, 'rtol': .02}, fp8_scales_final={'atol': 0, 'rtol': 1.0})
  config = {'layers': sizes, 'optimizer': 'adam lr=0.01', 'steps': steps, 'batch': batch, 'dtype': dtype, 'fp8': fp8}
  if exact:  # short enough that rounding errors do not grow
    for key in ('x', 'labels'):
      inputs[key] = inputs[key][:3]
    config['steps'], expected = 3, {'loss': expected['loss'][:3]} | (
        {'fp8_params_after_step0': first} if fp8 else {})
    tolerance = {'atol': 0, 'rtol': 1e-6}
  return 'train.mlp', config, inputs, expected, tolerance


# ---- a block of a transformer


def transformer(rng, name, exact):
  del exact
  fp8 = name == 'fp8'
  seq, batch, hidden, ffn, heads, epsilon = 3, 2, 16, 32, 4, .001
  size = hidden // heads
  params = {'ln1': {'scale': np.ones(hidden, np.float32)}, 'ln2': {'scale': np.ones(hidden, np.float32)}}
  layers = {'qkv_projection': (hidden, 3 * hidden), 'projection': (hidden, hidden), 'wi': (hidden, ffn),
            'wo': (ffn, hidden)}
  for layer, (a, b) in layers.items():
    params[layer] = {'kernel': kernel(rng, a, b), 'bias': np.zeros(b, np.float32)}
  inputs = {'params': params, 'x': f32(rng.uniform(-1, 1, (seq, batch, hidden))),
            'target': f32(rng.uniform(-1, 1, (seq, batch, hidden)))}
  metas = {layer: fresh() for layer in layers} if fp8 else {}

  def model(p, m, x, target):
    def apply(layer, v):
      variables = {'params': p[layer], **({'fp8_params': m[layer]} if fp8 else {})}
      return layer_of(fp8, layers[layer][1], jnp.float32).apply(variables, v)

    norm = lambda v, s: v * jax.lax.rsqrt(jnp.mean(v * v, -1, keepdims=True) + epsilon) * s
    qkv = jnp.reshape(apply('qkv_projection', norm(x, p['ln1']['scale'])), (seq, batch, heads, 3 * size))
    q, k, v = (jnp.reshape(part, (seq, batch * heads, size)) for part in jnp.split(qkv, 3, axis=-1))
    scores = jnp.matmul(jnp.transpose(q, (1, 0, 2)), jnp.transpose(k, (1, 2, 0))) / np.sqrt(size).astype(np.float32)
    context = jnp.matmul(jax.nn.softmax(scores, axis=-1), jnp.transpose(v, (1, 0, 2)))
    context = jnp.transpose(jnp.reshape(context, (batch, heads, seq, size)), (2, 0, 1, 3))
    r = x + apply('projection', jnp.reshape(context, (seq, batch, hidden)))
    y = apply('wo', jax.nn.gelu(apply('wi', norm(r, p['ln2']['scale'])), approximate=True)) + r
    return jnp.mean(jnp.square(y - target)), y

  arguments = jax.tree.map(jnp.asarray, (params, metas, inputs['x'], inputs['target']))
  (loss, y), (dparams, new) = jax.value_and_grad(model, argnums=(0, 1), has_aux=True)(*arguments)
  expected = {'y': y, 'loss': loss, 'dparams': dparams}
  tolerance = {'atol': .002, 'rtol': .02}
  if fp8:
    flips = {'max_flips_fraction': .02, 'flip_step': 'one_fp8_step'}
    expected['new_fp8_params'] = new
    tolerance.update(new_fp8_params={'atol': 1e-5, 'rtol': .02, **flips}, **flips)
  config = {'seq': seq, 'batch': batch, 'hidden': hidden, 'ffn': ffn, 'heads': heads, 'layernorm_eps': epsilon,
            'loss': 'mean((y-target)^2)', 'gelu': 'tanh', 'layernorm': 'rms without mean and bias'}
  return 'train.transformer', config, inputs, expected, tolerance


GROUPS = {'dense': (dense, DENSE), 'mlp': (mlp, MLP), 'transformer': (transformer, ['fp8', 'plain'])}


# ---- files


def entry(value, key, tensors):
  if isinstance(value, dict):
    return {'kind': 'dict', 'items': {k: entry(v, f'{key}.{k}', tensors) for k, v in value.items()}}
  tensors[key] = np.asarray(value)
  return {'kind': 'array', 'tensor': key}


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--seed', type=int, required=True)
  parser.add_argument('--out', required=True)
  parser.add_argument('--groups', default=','.join(GROUPS))
  parser.add_argument('--exact', action='store_true')
  args = parser.parse_args()
  cases, tensors = [], {}
  for group in args.groups.split(','):
    record, names = GROUPS[group]
    for i, name in enumerate(names):
      rng = np.random.default_rng([args.seed, i])
      feature, config, inputs, expected, tolerance = record(rng, name, args.exact)
      full = f'{group}/{name}_s{args.seed}'
      side = lambda values, part: {k: entry(v, f'{full}/{part}/{k}', tensors) for k, v in values.items()}  # pylint: disable=cell-var-from-loop
      cases.append({'name': full, 'feature': feature, 'config': config, 'inputs': side(inputs, 'in'),
                    'expected': side(expected, 'out'), 'tolerance': tolerance})
  header, data = {}, b''
  for key, value in tensors.items():
    raw = np.ascontiguousarray(value).tobytes()
    header[key] = {'dtype': STORED[str(value.dtype)], 'shape': list(value.shape),
                   'data_offsets': [len(data), len(data) + len(raw)]}
    data += raw
  text = json.dumps(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  os.makedirs(args.out, exist_ok=True)
  with open(os.path.join(args.out, 'fp8layers.safetensors'), 'wb') as f:
    f.write(struct.pack('<Q', len(text)) + text + data)
  head = {'format': 'systems-golden/1', 'area': 'fp8layers', 'tensor_file': 'fp8layers.safetensors',
          'produced_with': {'package': 'fp8layers.flax @ 00c372b', 'jax': jax.__version__}}
  with open(os.path.join(args.out, 'fp8layers.json'), 'w') as f:
    f.write(json.dumps({**head, 'cases': cases}, indent=None) + '\n')


if __name__ == '__main__':
  main()
