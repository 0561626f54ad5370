"""from_qwix: contractions that are quantized as Qwix's rules say."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Sequence

import jax
import jax.numpy as jnp

from aqt_native import _dot_general, _qwix
from aqt_native._errors import NotSupportedError
from aqt_native._spec import DimensionNumbers, dtype_name, normalized_dims


@functools.lru_cache(maxsize=1024)
def _config(rule: _qwix.Rule, operation: _qwix.Operation) -> str:
    return _qwix.contraction_text(rule, operation)


class QwixRules:
    """Qwix's rules, read. Made by from_qwix."""

    def __init__(self, rules: Sequence[Any], arithmetic: str = ""):
        self._given = tuple(rules) if isinstance(rules, (list, tuple)) else ()
        self.rules = _qwix.read_rules(rules)
        self.arithmetic = arithmetic
        self._matches = [0] * len(self.rules)

    def rule_for(self, module_path: str, op_name: str = "dot_general") -> _qwix.Rule | None:
        """The first rule that matches, as in Qwix. It counts as used."""
        for i, rule in enumerate(self.rules):
            if rule.matches(module_path, op_name):
                self._matches[i] += 1
                return rule
        return None

    def unused_rules(self) -> tuple[Any, ...]:
        """The rules that no contraction has matched so far, as they were given. Call it after the model has run."""
        return tuple(rule for rule, matches in zip(self._given, self._matches) if matches == 0)

    def dot_general(self, module_path: str = "", *, op_name: str = "dot_general", weight: str = "rhs",
                    key: Any = None) -> QwixDotGeneral:
        """The contraction of a module, with the signature of jax.lax.dot_general.

        Args:
          module_path: the path that the rules' module_path has to match, for example "decoder/mlp/up".
          op_name: "dot_general" or "einsum": what op_names of the rules name.
          weight: which operand is a weight: "lhs", "rhs" or "none". Qwix finds this out from the parameters of a module.
          key: of jax.random.key or PRNGKey, for rules with bwd_stochastic_rounding.
        """
        return QwixDotGeneral(self, module_path, op_name, weight, key)

    @property
    def dot_general_cls(self) -> Any:
        """For the argument dot_general_cls of Flax's linen layers: each layer gets the rule that its path matches.

        The weight is rhs, as in these layers. Rules with bwd_stochastic_rounding need the RNG "stochastic_rounding".
        """
        return functools.partial(_flax_module(), self)

    def to_textproto(self) -> str:
        """The rules as a textproto of aqt.config.Inject, for programs of the C++ library and the `aqt` command.

        Raises:
          NotSupportedError: a field needs the shapes of a contraction, or a module_path is not in RE2's syntax.
        """
        return _qwix.inject_text(self.rules)


@dataclasses.dataclass(frozen=True, eq=False)
class QwixDotGeneral:
    """A contraction that is quantized as the rule for a module says. Made by QwixRules.dot_general."""

    rules: QwixRules
    module_path: str = ""
    op_name: str = "dot_general"
    weight: str = "rhs"
    key: Any = None

    def _identity(self) -> tuple[Any, ...]:
        return id(self.rules), self.module_path, self.op_name, self.weight, id(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QwixDotGeneral) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity()[:-1])

    def set_context(self, key: Any) -> QwixDotGeneral:
        """The same contraction with a random key, which bwd_stochastic_rounding needs: a new object."""
        return dataclasses.replace(self, key=key)

    def __call__(self, lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, precision: Any = None,
                 preferred_element_type: Any = None, out_sharding: None = None) -> jax.Array:
        """lhs x rhs, quantized if a rule with a weight_qtype matches; otherwise jax.lax.dot_general.

        Raises:
          NotSupportedError: the rule cannot be used for these shapes or dtypes; the message names the field.
          ValueError: a tile_size does not divide its axis.
        """
        rule = self.rules.rule_for(self.module_path, self.op_name)
        if rule is None or rule.weight is None:
            return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision=precision,
                                       preferred_element_type=preferred_element_type)
        if out_sharding is not None:
            raise NotSupportedError("aqt_native: out_sharding is not supported; leave it out")
        _dot_general.check_precision(precision)
        if self.op_name == "einsum" and self.weight != "none" and not rule.is_symmetric:
            raise NotSupportedError(
                f"aqt_native: {rule.name} quantizes weights and activations differently, but jax.numpy.einsum may "
                "exchange its operands, so the weight is not known; give both the same qtype and calibration, or use "
                "dot_general")
        lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
        _dot_general.check_operands(lhs, rhs)
        dims = normalized_dims(dimension_numbers, lhs.ndim, rhs.ndim)
        operation = _qwix.Operation(self.weight, dims, (lhs.shape, rhs.shape), dtype_name(lhs.dtype) or "")
        options = _dot_general.Options("qwix", self.rules.arithmetic)
        spec = options.spec(_config(rule, operation), dimension_numbers, lhs.ndim, rhs.ndim)
        # Qwix draws the noise of both gradients with one key.
        return _dot_general.differentiable(spec)(lhs, rhs, [None, None, self.key, None, self.key, None])


def from_qwix(rules: Sequence[Any], *, arithmetic: str = "") -> QwixRules:
    """Contractions that are quantized as Qwix's rules say, with the results of Qwix's QtProvider on a CPU, op by op.

    Args:
      rules: of qwix.QuantizationRule or qwix.QtRule (qwix 0.1.8); the first that matches a contraction decides.
      arithmetic: "" to divide as XLA does on a CPU, or "ieee".

    Raises:
      NotSupportedError: a rule has a field that this library does not have; the message names the rule and the field.
    """
    return QwixRules(rules, arithmetic)


@functools.lru_cache(maxsize=1)
def _flax_module() -> Any:
    from flax import linen as nn  # pylint: disable=import-outside-toplevel

    class QwixDotGeneralModule(nn.Module):
        """QwixDotGeneral of the module that calls it."""

        rules: Any

        @nn.compact
        def __call__(self, lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers, **kwargs: Any) -> jax.Array:
            module_path = "/".join(self.path[:-1])
            rule = self.rules.rule_for(module_path)
            needs_key = rule is not None and rule.noise and self.has_rng("stochastic_rounding")
            key = self.make_rng("stochastic_rounding") if needs_key else None
            return self.rules.dot_general(module_path, key=key)(lhs, rhs, dimension_numbers, **kwargs)

    return QwixDotGeneralModule
