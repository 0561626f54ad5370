"""Trains one model with two configurations and compares the losses."""

import sys
import time

import jax
import numpy as np
import optax


def train(name, make_model, config, batches, steps, seed):
    """The losses of `steps` steps, computed operation by operation, and the shortest time of a jitted step in seconds."""
    model = make_model(config)
    optimizer = optax.sgd(0.05)
    key = jax.random.PRNGKey(seed)
    params = model.init({"params": key}, batches(0)[0])
    state = optimizer.init(params)

    def gradients(params, x, y, key):
        def loss(params):
            logits = model.apply(params, x, rngs={"params": key})
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        return jax.value_and_grad(loss)(params)

    jitted = jax.jit(gradients)
    losses, best = [], float("inf")
    for step in range(steps):
        x, y = batches(step)
        step_key = jax.random.fold_in(key, step)
        loss, grads = gradients(params, x, y, step_key)
        jax.block_until_ready(jitted(params, x, y, step_key))
        start = time.perf_counter()
        jax.block_until_ready(jitted(params, x, y, step_key))
        best = min(best, time.perf_counter() - start)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(np.asarray(loss))
        print(f"{name}: step {step + 1} of {steps}", file=sys.stderr, flush=True)
    return losses, best


def report(make_model, configs, batches, steps, seed):
    """Trains with each of the two configurations; returns the exit code, 1 if a loss differs."""
    (names, runs) = zip(*((name, train(name, make_model, config, batches, steps, seed)) for name, config in configs))
    print(f"jax {jax.__version__}")
    print(f"| step | {' | '.join(names)} | equal bits |")
    print("|---|---|---|---|")
    different = 0
    for step, (a, b) in enumerate(zip(*(losses for losses, _ in runs))):
        equal = a.tobytes() == b.tobytes()
        different += not equal
        if step < 3 or step == steps - 1 or not equal:
            print(f"| {step} | {a:.9g} | {b:.9g} | {'yes' if equal else 'NO'} |")
    times = [best * 1e3 for _, best in runs]
    print(f"\nLoss and gradients, jitted, shortest of {steps} steps: {names[0]} {times[0]:.2f} ms, {names[1]} {times[1]:.2f} ms, "
          f"{times[0] / times[1]:.1f} times as fast.")
    return 1 if different else 0
