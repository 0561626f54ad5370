"""AQT's quantized contractions in JAX, computed by a native library with AQT's bits.

    import aqt_native
    dot_general = aqt_native.accelerate(aqt_config)     # of AQT's DotGeneral, wherever that goes
    dot_general = aqt_native.from_textproto('schema: 1 base: "fully_quantized_int8"')    # without AQT
    rules = aqt_native.from_qwix(qwix_rules)            # of Qwix's QuantizationRule

docs/jax.md describes the package. Importing it does not import JAX; the first use of a function does.

`aqt_native.numpy` is for NumPy, and needs no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aqt_native._aqtp import accelerate as accelerate
    from aqt_native._dot_general import DotGeneral as DotGeneral
    from aqt_native._dot_general import from_textproto as from_textproto
    from aqt_native._errors import NotSupportedError as NotSupportedError
    from aqt_native._program import Program as Program
    from aqt_native._qwix_rules import QwixDotGeneral as QwixDotGeneral
    from aqt_native._qwix_rules import QwixRules as QwixRules
    from aqt_native._qwix_rules import from_qwix as from_qwix
    from aqt_native._serving import QuantizedArray as QuantizedArray
    from aqt_native._serving import convert as convert
    from aqt_native._to_text import to_textproto as to_textproto

_WHERE = {
    "DotGeneral": "_dot_general",
    "NotSupportedError": "_errors",
    "Program": "_program",
    "QuantizedArray": "_serving",
    "accelerate": "_aqtp",
    "QwixDotGeneral": "_qwix_rules",
    "QwixRules": "_qwix_rules",
    "convert": "_serving",
    "from_qwix": "_qwix_rules",
    "from_textproto": "_dot_general",
    "to_textproto": "_to_text",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name == "numpy":
        return importlib.import_module(f"{__name__}.numpy")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        needs = {"jax": ("JAX 0.4.35 or later", "jax"), "aqt": ("AQT", "aqtp")}.get((error.name or "").split(".")[0])
        if needs is None:
            raise
        needed, package = needs
        raise ModuleNotFoundError(f"aqt_native.{name} needs {needed}: pip install {package}. aqt_native.numpy does without.",
                                  name=error.name) from error


def __dir__() -> list[str]:
    return __all__
