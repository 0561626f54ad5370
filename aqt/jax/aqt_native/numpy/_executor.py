"""Threads for calls."""

from __future__ import annotations

import ctypes
import os
import types
import weakref
from ctypes import c_void_p
from typing import Any

from aqt_native.numpy import _library


def _free(handle: c_void_p, process: int) -> None:
    if os.getpid() == process:  # the threads are not in a child of a fork
        _library.ask("executor_free", handle)


class Executor:
    """A pool of threads, the calling thread included. Calls that are given none use only the calling thread.

    Several calls may use it at a time. It belongs to the process that made it.
    """

    def __init__(self, threads: int) -> None:
        handle = c_void_p()
        _library.call("executor_make", int(threads), ctypes.byref(handle))
        self._handle, self._process = handle, os.getpid()
        self._finalizer = weakref.finalize(self, _free, handle, self._process)

    @property
    def threads(self) -> int:
        """The threads that the system allowed."""
        return int(_library.ask("executor_threads", self.handle()))

    def handle(self) -> Any:
        """For calls."""
        if not self._finalizer.alive:
            raise ValueError("the Executor is closed; make a new one")
        if os.getpid() != self._process:
            raise RuntimeError("the Executor was made before this process was forked, and its threads are not in this "
                               "process; make a new one")
        return self._handle

    def close(self) -> None:
        """Ends the threads. No call may be using them."""
        self._finalizer()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: types.TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("an Executor cannot be pickled: its threads belong to this process; make one in each process")
