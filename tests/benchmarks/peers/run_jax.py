#!/usr/bin/env python3
"""JAX on XLA (PyPI: jax), and with aqtp also AQT ("jax-aqt"), which has the same arithmetic as ours."""
import functools
import os

import harness

os.environ["JAX_PLATFORMS"] = "cpu"


def compiled(f, *args):
    import jax
    g = jax.jit(f)
    return lambda: jax.block_until_ready(g(*args))


def step_of(dot):
    """Forward and both gradients."""
    import jax

    def step(x, w, g):
        out, vjp = jax.vjp(dot, x, w)
        return out, *vjp(g)
    return step


def quantized_rows(x, axis):
    import jax.numpy as jnp
    scale = jnp.max(jnp.abs(x), axis=axis, keepdims=True) / 127.0
    return jnp.clip(jnp.round(x / scale), -127, 127).astype(jnp.int8), scale


AQT = {
    "int8": {"fwd_bits": 8, "bwd_bits": 8, "use_stochastic_rounding": False},
    "int8_noise": {"fwd_bits": 8, "bwd_bits": 8, "use_stochastic_rounding": True},
    "fp8": {"fwd_bits": "e4m3", "bwd_bits": "e5m2", "use_stochastic_rounding": False},
}


def quantized_dot(aqt_config, name, key):
    """AQT's dot_general."""
    return aqt_config.set_context(aqt_config.fully_quantized(**AQT[name]), key, 0)


def products(h, shape, aqt_config):
    import jax
    import jax.numpy as jnp
    from jax import lax
    who, batch_m_k_n = f"jax-{jax.__version__}", harness.parse_product(shape)
    batch, m, k, n = batch_m_k_n
    lead, b = ((), ()) if batch == 1 else ((batch,), (0,))
    dims = (((len(b) + 1,), (len(b),)), (b, b))
    key = jax.random.PRNGKey(0)
    x, w, g = (jax.random.normal(key, (*lead, *size)) for size in ((m, k), (k, n), (m, n)))
    dot = lambda x, w, dtype=None: lax.dot_general(x, w, dims, preferred_element_type=dtype)
    h.row("product", shape, "f32", who, lambda: compiled(dot, x, w))
    for dtype, name, out in ((jnp.bfloat16, "bf16", jnp.float32), (jnp.int8, "s8", jnp.int32)):
        h.row("product", shape, name, who, lambda dtype=dtype, out=out: compiled(
            functools.partial(dot, dtype=out), (x * 40).astype(dtype), (w * 40).astype(dtype)))
    h.row("fp8", shape, "e4m3", who, lambda: compiled(functools.partial(dot, dtype=jnp.float32),
                                                     x.astype(jnp.float8_e4m3fn), w.astype(jnp.float8_e4m3fn)))

    def dynamic(x, qw, sw):
        qx, sx = quantized_rows(x, x.ndim - 1)
        return dot(qx, qw, jnp.int32).astype(jnp.float32) * sx * sw

    h.row("dynamic", shape, "int8", who, lambda: compiled(dynamic, x, *quantized_rows(w, w.ndim - 2)))
    h.row("step", shape, "f32", who, lambda: compiled(step_of(dot), x, w, g))
    if aqt_config is None:
        return
    for name in AQT:
        def quantized(x, w, name=name):
            return quantized_dot(aqt_config, name, jax.random.PRNGKey(1))(x, w, dims)
        h.row("step", shape, name, who + "-aqt", lambda quantized=quantized: compiled(step_of(quantized), x, w, g))


def elementwise(h, shape):
    """The programs of elementwise_programs.h."""
    import jax
    import jax.numpy as jnp
    rows, columns = harness.parse_sizes(shape)
    normal = lambda number, *size: jax.random.normal(jax.random.PRNGKey(number), size)
    chain = lambda x: jnp.maximum(x * 1.5 + 0.25 - 1, 0) * 0.5 + 3

    def norm(x, gain, bias):
        centered = x - x.sum(-1, keepdims=True) / columns
        variance = (centered * centered).sum(-1, keepdims=True) / columns
        return centered / (variance + 1e-5) * gain + bias

    def adam(p, m, v, g):
        m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
        return p - m / (v + 1e-8) * 0.001, m, v

    matrices = [normal(i, rows, columns) for i in range(4)]
    half = jnp.concatenate(matrices[:2]).astype(jnp.bfloat16)
    def update():
        """Runs in place, as optimizers do: allocating three outputs would take longer than the update."""
        step = jax.jit(adam, donate_argnums=(0, 1, 2))
        state, g = [jnp.copy(matrices[0]), jnp.copy(matrices[1]), jnp.abs(matrices[2])], matrices[3]

        def run():
            state[:] = step(*state, g)
            jax.block_until_ready(state)
        return run

    who = f"jax-{jax.__version__}"
    for name, program, args in (("chain", chain, matrices[:1]), ("chain_bf16", chain, [half]),
                                ("softmax", jax.nn.softmax, matrices[:1]),
                                ("norm", norm, [matrices[0], normal(4, columns), normal(5, columns)])):
        h.row("elementwise", shape, name, who, lambda program=program, args=args: compiled(program, *args))
    h.row("elementwise", shape, "adam", who, update)


class Transformer:
    """The model of model_step.cc: loss, gradients and update."""

    def __init__(self, shape):
        self.batch, self.length, self.width, self.layers = harness.parse_sizes(shape)
        self.heads, self.vocabulary = self.width // 64, 256

    def parameters(self, key):
        import jax
        import jax.numpy as jnp
        width, keys = self.width, iter(jax.random.split(key, 4 * self.layers + 3))
        normal = lambda *shape: 0.02 * jax.random.normal(next(keys), shape)
        layer = lambda: {"qkv": normal(width, 3 * width), "out": normal(width, width), "up": normal(width, 4 * width),
                         "down": normal(4 * width, width), "norm1": jnp.ones(width), "norm2": jnp.ones(width)}
        return {"bytes": normal(self.vocabulary, width), "positions": normal(self.length, width),
                "logits": normal(width, self.vocabulary), "norm": jnp.ones(width), "layers": [layer() for _ in range(self.layers)]}

    def loss(self, p, tokens, targets):
        import jax
        import jax.numpy as jnp
        norm = lambda x, scale: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
        x, visible = p["bytes"][tokens] + p["positions"], jnp.tril(jnp.ones((self.length, self.length), bool))
        for w in p["layers"]:
            heads = (self.batch, self.length, self.heads, 64)
            query, key, value = (part.reshape(heads) for part in jnp.split(norm(x, w["norm1"]) @ w["qkv"], 3, -1))
            scores = jnp.where(visible, jnp.einsum("bqhf,bkhf->bhqk", query, key) / 8, -1e30)
            x += jnp.einsum("bhqk,bkhf->bqhf", jax.nn.softmax(scores), value).reshape(x.shape) @ w["out"]
            x += jax.nn.gelu(norm(x, w["norm2"]) @ w["up"]) @ w["down"]
        chances = jax.nn.log_softmax(norm(x, p["norm"]) @ p["logits"])
        return -jnp.mean(jnp.take_along_axis(chances, targets[..., None], -1))

    def make_step(self):
        import jax
        import jax.numpy as jnp
        key = jax.random.PRNGKey(0)
        tokens, targets = jax.random.randint(key, (2, self.batch, self.length), 0, self.vocabulary, jnp.int32)

        @functools.partial(jax.jit, donate_argnums=0)
        def step(p):
            loss, gradients = jax.value_and_grad(self.loss)(p, tokens, targets)
            return jax.tree.map(lambda x, g: x - 0.01 * g, p, gradients), loss

        state = [self.parameters(key)]

        def run():
            state[0], loss = step(state[0])
            jax.block_until_ready((state[0], loss))
        return run


class Digits:
    """The model of model_step.cc: loss, gradients and update with momentum."""

    def __init__(self, shape, aqt_config=None, name=""):
        batch, widths = shape.split("x")
        self.batch, self.widths = int(batch), [int(width) for width in widths.split("-")]
        self.aqt_config, self.name = aqt_config, name

    def loss(self, p, x, labels, key):
        import jax
        for i, (kernel, bias) in enumerate(p):
            dot = jax.lax.dot_general
            if self.aqt_config is not None:
                dot = quantized_dot(self.aqt_config, self.name, jax.random.fold_in(key, i))
            x = dot(x if i == 0 else jax.nn.relu(x), kernel, (((1,), (0,)), ((), ()))) + bias
        return -(jax.nn.log_softmax(x) * labels).sum(-1).mean()

    def make_step(self):
        import jax
        import jax.numpy as jnp
        key = jax.random.PRNGKey(0)
        sizes = list(zip(self.widths, self.widths[1:]))
        x, labels = (jax.random.normal(key, (self.batch, width)) for width in (self.widths[0], self.widths[-1]))

        @functools.partial(jax.jit, donate_argnums=(0, 1))
        def step(p, m, number):
            loss, gradients = jax.value_and_grad(self.loss)(p, x, labels, jax.random.fold_in(key, number))
            m = jax.tree.map(lambda g, m: g + 0.9 * m, gradients, m)
            return jax.tree.map(lambda p, m: p - 0.05 * m, p, m), m, loss

        p = [(0.1 * jax.random.normal(key, size), jnp.zeros(size[1])) for size in sizes]
        state = [p, jax.tree.map(jnp.zeros_like, p), 0]

        def run():
            state[0], state[1], loss = step(state[0], state[1], state[2])
            state[2] += 1
            jax.block_until_ready((state[:2], loss))
        return run


def main():
    h = harness.Harness(__doc__)
    # XLA uses one thread per CPU that is available to the process when it starts.
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:h.threads]))
    import jax
    try:
        from aqt.jax.v2 import config as aqt_config
    except ImportError:
        aqt_config = None
    for shape in h.shapes("product", "dynamic", "fp8", "step"):
        products(h, shape, aqt_config)
    for shape in h.shapes("elementwise"):
        elementwise(h, shape)
    for shape in h.shapes("transformer"):
        h.row("transformer", shape, "f32", f"jax-{jax.__version__}", lambda shape=shape: Transformer(shape).make_step())
    for shape in h.shapes("digits"):
        h.row("digits", shape, "f32", f"jax-{jax.__version__}", lambda shape=shape: Digits(shape).make_step())
        for name in ("int8", "int8_noise") if aqt_config else ():
            h.row("digits", shape, name, f"jax-{jax.__version__}-aqt",
                  lambda shape=shape, name=name: Digits(shape, aqt_config, name).make_step())


if __name__ == "__main__":
    main()
