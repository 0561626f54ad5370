"""The conversion of checkpoints."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from ctypes import c_char_p
from typing import Any

from aqt_native.numpy import _arrays, _library

_Path = str | os.PathLike[str]
_OnProgress = Callable[[int, int, str], Any]


class _Watch:
    """The caller's progress function. What it raises ends the conversion, and is raised again afterwards."""

    def __init__(self, progress: _OnProgress | None) -> None:
        self._progress = progress
        self.raised: BaseException | None = None
        self.function = _library.Progress(self._report)

    def _report(self, _: Any, done: int, total: int, tensor: bytes) -> int:
        try:
            if self.raised is not None:
                return 1
            return int(self._progress is not None and bool(self._progress(done, total, tensor.decode(errors="replace"))))
        except BaseException as error:  # pylint: disable=broad-exception-caught
            self.raised = error
            return 1


def _path(value: _Path | None, what: str) -> bytes | None:
    return None if value is None else _library.encoded(os.fspath(value), what)


def _run(function: str, source: _Path, output: _Path, dtype: list[int], watch: _Watch, jobs: int,
         options: _library.ConvertOptions) -> dict[str, Any]:
    options.struct_size = ctypes.sizeof(_library.ConvertOptions)
    options.jobs = jobs
    options.progress = watch.function
    report: list[str] = []
    errors: list[BaseException] = []
    go, finished = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        try:
            if watch.raised is None:
                report.append(_library.text(function, _path(source, "source"), _path(output, "output"), *dtype,
                                            ctypes.byref(options)))
        except BaseException as error:  # pylint: disable=broad-exception-caught
            errors.append(error)
        finally:
            finished.set()

    # Only the main thread receives interrupts, and only while it runs Python: so the work is on another one. An interrupt may
    # come anywhere here; it is not known whether one in start() comes before the thread exists.
    try:
        threading.Thread(target=work, name="aqt_native", daemon=True).start()
        go.set()
        finished.wait()
    except BaseException as error:  # pylint: disable=broad-exception-caught
        watch.raised = error  # the next report of progress ends the work
        if not go.is_set():
            go.set()  # the thread, if there is one, does nothing
            raise
    while not finished.is_set():
        try:
            finished.wait()
        except BaseException as error:  # pylint: disable=broad-exception-caught
            watch.raised = error
    if watch.raised is not None:
        raise watch.raised
    if errors:
        raise errors[0]
    found: dict[str, Any] = json.loads(report[0])
    return found


def convert(source: _Path, output: _Path, *, preset: str | None = None, config: _Path | None = None,
            scheme_from: _Path | None = None, calibration: _Path | None = None, jobs: int = 1, force: bool = False,
            allow_requantize: bool = False, strict: bool = False, rules: str | None = None,
            non_finite: str | None = None, experts: str | None = None, exclude: Sequence[str] = (),
            max_shard_bytes: int = 0, progress: _OnProgress | None = None) -> dict[str, Any]:
    """Converts a checkpoint, a file or a folder, as `aqt convert` does, and returns the report of its --json.

    Give one of `preset`, `config` (a textproto of aqt.config.Convert, or a path object of a file with one) and
    `scheme_from` (a config.json, or a folder with one). The other arguments are those of the command.

    progress(done, total, tensor) is called with bytes, on other threads, one call at a time. If it returns True,
    CancelledError is raised; what it raises is raised here. Ctrl-C ends the work, too. Unless the work was done just then,
    there is no new output.
    """
    text = pathlib.Path(config).read_text(encoding="utf-8") if isinstance(config, os.PathLike) else config
    watch = _Watch(progress)
    patterns = [_library.encoded(pattern, "exclude") for pattern in exclude]
    options = _library.ConvertOptions(
        preset=_library.encoded(preset, "preset"), config=_library.encoded(text, "config"),
        scheme_from=_path(scheme_from, "scheme_from"), calibration=_path(calibration, "calibration"), force=int(force),
        allow_requantize=int(allow_requantize), strict=int(strict), rules=_library.encoded(rules, "rules"),
        non_finite=_library.encoded(non_finite, "non_finite"), experts=_library.encoded(experts, "experts"),
        exclude=(c_char_p * len(patterns))(*patterns), num_exclude=len(patterns), max_shard_bytes=max_shard_bytes)
    return _run("convert", source, output, [], watch, jobs, options)


def dequantize(source: _Path, output: _Path, *, dtype: Any = "float32", jobs: int = 1, force: bool = False,
               experts: str | None = None, exclude: Sequence[str] = (), max_shard_bytes: int = 0,
               progress: _OnProgress | None = None) -> dict[str, Any]:
    """Writes the weights of a quantized checkpoint as floats, as `aqt dequantize` does, and returns its report.

    dtype: float32, bfloat16 or float16. The other arguments are those of `convert`.
    """
    watch = _Watch(progress)
    patterns = [_library.encoded(pattern, "exclude") for pattern in exclude]
    options = _library.ConvertOptions(
        force=int(force), experts=_library.encoded(experts, "experts"),
        exclude=(c_char_p * len(patterns))(*patterns), num_exclude=len(patterns), max_shard_bytes=max_shard_bytes)
    number = _arrays.number_of(_arrays.to_dtype(dtype), "dtype")
    return _run("dequantize", source, output, [number], watch, jobs, options)
