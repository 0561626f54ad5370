"""Text encoders."""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Sequence
from ctypes import c_char_p, c_size_t
from typing import Any, NamedTuple

import numpy as np

from aqt_native.numpy import _arrays, _library, _options
from aqt_native.numpy._errors import InvalidArgumentError
from aqt_native.numpy._executor import Executor


class Embeddings(NamedTuple):
    """The embeddings of some texts."""

    values: np.ndarray[Any, Any]  # float32 [texts, width]
    tokens: np.ndarray[Any, Any]  # int64 [texts]: those that were read, special ones included
    truncated: np.ndarray[Any, Any]  # int64 [texts]: those that were cut off


class Embedder:
    """From texts to embeddings, from a model's folder (docs/models.md).

    preset says how the model is quantized: one of aqt convert ("w8a8_dynamic"), or one of aqt.config.Inject ("int8_all").
    config is a textproto of aqt.config.Inject instead. Neither: as the folder stores its weights. calibration is a file of
    ranges, for presets of aqt convert with static ones.
    """

    def __init__(self, folder: str | os.PathLike[str], *, preset: str | None = None,
                 config: str | os.PathLike[str] | None = None,
                 calibration: str | os.PathLike[str] | None = None) -> None:
        self._arguments = (os.fspath(folder), preset, config, calibration)
        text = pathlib.Path(config).read_text(encoding="utf-8") if isinstance(config, os.PathLike) else config
        options = _library.EmbedderOptions(ctypes.sizeof(_library.EmbedderOptions), _library.encoded(preset, "preset"),
                                           _library.encoded(text, "config"),
                                           _library.encoded(None if calibration is None else os.fspath(calibration),
                                                            "calibration"))
        self._handle = _library.Handle("embedder", "embedder_open", _library.encoded(os.fspath(folder), "folder"),
                                       ctypes.byref(options))

    @property
    def width(self) -> int:
        """The values of an embedding."""
        return int(_library.ask("embedder_width", self._handle.value))

    @property
    def max_length(self) -> int:
        """The tokens of the longest text that is read in full."""
        return int(_library.ask("embedder_max_length", self._handle.value))

    @property
    def notes(self) -> list[str]:
        """What to know of how the folder was read."""
        return _library.text("embedder_notes", self._handle.value).splitlines()

    def embed(self, texts: Sequence[str], *, executor: Executor | None = None,
              out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """The embeddings, float32 [texts, width]. A text that is too long is cut off: see embed_with_counts."""
        return self.embed_with_counts(texts, executor=executor, out=out).values

    def embed_with_counts(self, texts: Sequence[str], *, executor: Executor | None = None,
                          out: np.ndarray[Any, Any] | None = None) -> Embeddings:
        """The embeddings, and how many tokens of each text were read and cut off."""
        if isinstance(texts, str):
            raise InvalidArgumentError("texts is one str; give a list: embed([text])")
        encoded = []
        for i, one in enumerate(texts):
            if not isinstance(one, str):
                raise TypeError(f"text {i + 1} is {type(one).__name__}, expected str")
            encoded.append(one.encode(errors="surrogateescape"))
        count = len(encoded)
        infos = (_library.TextInfo * count)()
        options = _options.CallOptions(executor=executor)
        result = _arrays.output_ref(out, (count, self.width), np.dtype(np.float32), "out")
        _library.call("embedder_embed", self._handle.value, (c_char_p * count)(*encoded),
                      (c_size_t * count)(*map(len, encoded)), count, options.pointer, result.pointer, infos)
        return Embeddings(result.array, np.array([info.tokens for info in infos], np.int64),
                          np.array([info.truncated for info in infos], np.int64))

    def __reduce__(self) -> tuple[object, ...]:
        return _open, self._arguments

    def __repr__(self) -> str:
        return f"Embedder({self._arguments[0]!r}, width {self.width})"


def _open(folder: str, preset: str | None, config: str | os.PathLike[str] | None,
          calibration: str | os.PathLike[str] | None) -> Embedder:
    return Embedder(folder, preset=preset, config=config, calibration=calibration)
