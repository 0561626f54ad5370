"""AQT's own examples, as the installed package aqtp has them, with one line changed: the same losses to the bit.

    pip install scikit-learn
    PYTHONPATH=aqt/jax python aqt/jax/tests/examples_test.py [--steps 14]

The tutorial (examples.ipynb), and flax_e2e_model.py: a CNN with tiled Dense layers and an einsum is trained, calibrated,
trained again, frozen and served. Digits of scikit-learn stand for MNIST. Everything runs operation by operation: jitted,
XLA fuses the operations around a contraction in the two programs in different ways (docs/jax.md).
"""

import argparse
import copy
import json
import pathlib
import sys
import types
import unittest
import warnings

from aqt.jax.v2 import config as aqt_config
from aqt.jax.v2 import examples
import jax
import jax.numpy as jnp
import numpy as np

import aqt_native
import comparing

STEPS = 4


def accelerate(config):
    # The example calibrates with Flax modules, which only AQT can run: fallback leaves these calls to it.
    return aqt_native.accelerate(config, arithmetic=comparing.arithmetic(), fallback=True)


def tutorial(change):
    """What the cells of the notebook print; `change` is applied to the configuration in the one line."""
    notebook = pathlib.Path(list(examples.__path__)[0]) / "examples.ipynb"
    printed = []
    names = {"print": lambda *values: printed.append(values), "change": change}
    changed = 0
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        lines = [line for line in "".join(cell["source"]).splitlines() if not line.startswith("!")]
        for i, line in enumerate(lines):
            if line.startswith("int8_config = "):
                lines[i] = f"int8_config = change({line.removeprefix('int8_config = ')})"
                changed += 1
        exec(compile("\n".join(lines), str(notebook), "exec"), names)  # pylint: disable=exec-used
    assert changed == 1, changed
    return printed


def model_module():
    """flax_e2e_model, with stand-ins for what it only needs to load MNIST and to write logs."""
    for name in ("tensorflow_datasets", "flax.metrics.tensorboard"):
        sys.modules.setdefault(name, types.ModuleType(name))
    from aqt.jax.v2.examples import flax_e2e_model  # pylint: disable=import-outside-toplevel

    if not hasattr(jax.core, "get_aval"):  # AQT asks for it; JAX 0.10 has another name for it
        jax.core.get_aval = jax.typeof
    for name in ("apply_model", "update_model_params_with_grads", "serve"):
        function = getattr(flax_e2e_model, name)
        setattr(flax_e2e_model, name, getattr(function, "__wrapped__", function))  # without jit
    return flax_e2e_model


def digits(steps, batch_size):
    """Digits as MNIST's arrays."""
    from sklearn import datasets  # pylint: disable=import-outside-toplevel

    images, labels = datasets.load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 8, 8), np.ones((3, 3)))
    images = jnp.asarray(np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None] / 16, jnp.float32)
    rows = steps * batch_size
    split = lambda rows: {"image": images[rows], "label": jnp.asarray(labels)[rows]}
    return split(slice(0, rows)), split(slice(1400, None))


class Run:
    """The steps of the example's main."""

    def __init__(self, model, config, data):
        self.model, self.data = model, data
        self.rng = jax.random.key(0)
        self.state = model.create_train_state(jax.random.key(1), aqt_cfg_dg=config)
        self.losses = []

    def train(self):
        self.rng, key = jax.random.split(self.rng)
        self.state, loss, _ = self.model.train_epoch(self.state, self.data[0], 128, key)
        _, test_loss, _, _ = self.model.apply_model(self.state.model, self.data[1]["image"], self.data[1]["label"],
                                                    self.state.cnn_eval.apply)
        self.losses += [loss, test_loss]

    def calibrate(self):
        self.model.update_cfg_with_calibration(self.state.cnn_train.aqt_cfg_dg)
        self.model.update_cfg_with_calibration(self.state.cnn_eval.aqt_cfg_dg)
        self.state = self.model.calibrate(self.state, calibration_steps=2)

    def serve(self, weight_only):
        self.losses.append(self.model.serve(self.state, weight_only=weight_only))


class Examples(unittest.TestCase):

    def same(self, got, want):
        self.assertEqual(*(jax.tree.structure(tree) for tree in (got, want)))
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), got, want)

    def test_the_tutorial(self):
        got, want = tutorial(accelerate), tutorial(lambda config: config)
        self.assertGreaterEqual(len(want), 4)
        for a, b in zip(got, want):
            self.assertEqual(a[0], b[0])
            self.same(a[1:], b[1:])

    def test_training_and_serving(self):
        self.run_model(lambda run: (run.train(), run.serve(True)))

    def test_calibration(self):
        self.run_model(lambda run: (run.calibrate(), run.train(), run.serve(False)))

    def run_model(self, steps):
        model = model_module()
        data = digits(STEPS, 128)
        model.get_datasets = lambda: data
        config = aqt_config.fully_quantized(fwd_bits=8, bwd_bits=8)
        runs = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for change in (lambda c: c, accelerate):  # the one line
                run = Run(model, change(copy.deepcopy(config)), data)
                steps(run)
                runs.append(run)
        aqt, ours = runs
        print("losses:", *(f"{float(loss):.9g}" for loss in ours.losses))
        self.assertEqual([np.asarray(x).tobytes() for x in ours.losses], [np.asarray(x).tobytes() for x in aqt.losses])
        self.same(ours.state.model["params"], aqt.state.model["params"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments, rest = parser.parse_known_args()
    STEPS = arguments.steps
    unittest.main(argv=sys.argv[:1] + rest)
