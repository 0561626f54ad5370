"""Records results of optax: parameters after each of several updates, moments, averages, and rates of schedules.

  record.py --out=optax.safetensors

Everything runs op by op on the CPU (jax.disable_jit), so every operation rounds once. The case names and their options are
those of tests/e2e/optax_test.cc. The gradients are random and stored; they do not depend on the parameters.
"""

import argparse
import json
import platform
import struct

import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS = 12
SCHEDULE_STEPS = np.array(list(range(40)) + [99, 100, 101, 1000, 16777216, 16777217, 2000000000], np.int32)

SCHEDULES = {
    'linear': optax.linear_schedule(0.1, 0.7, 7, 2),
    'polynomial': optax.polynomial_schedule(0.3, 0.01, 2.5, 30, 3),
    'cosine': optax.cosine_decay_schedule(0.3, 30, 0.1),
    'cosine_exponent': optax.cosine_decay_schedule(0.3, 30, 0.0, 1.7),
    'warmup_cosine': optax.warmup_cosine_decay_schedule(0.001, 0.3, 5, 30, 0.01),
    'exponential': optax.exponential_decay(0.3, 7, 0.6, 4),
    'exponential_staircase': optax.exponential_decay(0.3, 7, 0.6, 4, True, 0.05),
    'piecewise_constant': optax.piecewise_constant_schedule(0.3, {5: 0.1, 20: 0.7}),
    'joined': optax.join_schedules([optax.linear_schedule(0., 0.3, 5), optax.exponential_decay(0.3, 7, 0.6)], [10]),
}


def is_kernel(params):
  return {name: name == 'kernel' for name in params}


OPTIMIZERS = {
    'sgd': optax.sgd(0.1, 0.9),
    'sgd_linear': optax.sgd(SCHEDULES['linear'], 0.9),
    'adam': optax.adam(0.001),
    'adam_options': optax.adam(0.1, 0.5, 0.75, 1e-3, 0.01),
    'adamw': optax.adamw(0.01, weight_decay=0.1),
    'adamw_mask': optax.adamw(0.01, weight_decay=0.1, mask=is_kernel),
    'adamw_warmup_cosine': optax.adamw(SCHEDULES['warmup_cosine'], weight_decay=0.1, mask=is_kernel),
    'clip_value': optax.chain(optax.clip(0.75), optax.adam(0.01)),
    'clip_norm': optax.chain(optax.clip_by_global_norm(2.5), optax.sgd(0.1, 0.9)),
    'multi_steps': optax.MultiSteps(optax.sgd(0.1, 0.9), 3),
    'multi_steps_clip': optax.MultiSteps(
        optax.chain(optax.clip(1.0), optax.clip_by_global_norm(1.5), optax.sgd(0.1, 0.9)), 4),
}


def moments(state):
  """The state of Adam in a nest of tuples."""
  if isinstance(state, optax.ScaleByAdamState):
    return state
  if isinstance(state, tuple):
    for part in state:
      if (found := moments(part)) is not None:
        return found
  return None


def write_safetensors(path, tensors, metadata):
  header, data = {'__metadata__': metadata}, b''
  for name, value in tensors.items():
    value = np.ascontiguousarray(value)
    dtype = {'float32': 'F32', 'int32': 'I32'}[value.dtype.name]
    header[name] = {'dtype': dtype, 'shape': list(value.shape), 'data_offsets': [len(data), len(data) + value.nbytes]}
    data += value.tobytes()
  text = json.dumps(header).encode()
  text += b' ' * (-len(text) % 8)
  with open(path, 'wb') as f:
    f.write(struct.pack('<Q', len(text)) + text + data)


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--out', required=True)
  out = parser.parse_args().out
  random = np.random.default_rng(16)
  params = {'bias': random.normal(size=3), 'kernel': random.normal(size=(4, 3))}
  params = {name: value.astype(np.float32) for name, value in params.items()}
  grads = {name: random.normal(size=(STEPS,) + value.shape).astype(np.float32) for name, value in params.items()}
  tensors = {f'params/{name}': value for name, value in params.items()}
  tensors |= {f'gradients/{name}': value for name, value in grads.items()}

  def record(case, values):
    for name in params:
      tensors[f'{case}/{name}'] = np.stack([np.asarray(value[name]) for value in values])

  jax.config.update('jax_platforms', 'cpu')
  with jax.disable_jit():
    for case, optimizer in OPTIMIZERS.items():
      value = {name: jnp.asarray(array) for name, array in params.items()}
      state, trajectory = optimizer.init(value), []
      for step in range(STEPS):
        update, state = optimizer.update({name: jnp.asarray(grads[name][step]) for name in params}, state, value)
        value = optax.apply_updates(value, update)
        trajectory.append(value)
      record(case, trajectory)
      if (adam := moments(state)) is not None:
        record(f'{case}/mu', [adam.mu])
        record(f'{case}/nu', [adam.nu])
    # Averages of the parameters of the case `sgd`.
    average = optax.ema(0.9, debias=True)
    state, averages = average.init(params), []
    polyak, polyaks = {name: jnp.asarray(array) for name, array in params.items()}, []
    for step in range(STEPS):
      new = {name: jnp.asarray(tensors[f'sgd/{name}'][step]) for name in params}
      result, state = average.update(new, state)
      averages.append(result)
      polyak = optax.incremental_update(new, polyak, 1 - 0.9)
      polyaks.append(polyak)
    record('ema_debias', averages)
    record('ema', polyaks)
    tensors['schedules/t'] = SCHEDULE_STEPS
    for case, schedule in SCHEDULES.items():
      rates = [schedule(jnp.asarray(t)) for t in SCHEDULE_STEPS]
      tensors[f'schedules/{case}'] = np.array(rates, np.float32)

  versions = {module.__name__: module.__version__ for module in (optax, jax, np)}
  versions['python'] = platform.python_version()
  write_safetensors(out, tensors, versions)


if __name__ == '__main__':
  main()
