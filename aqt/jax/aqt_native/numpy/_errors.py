"""The exceptions of this package."""

from __future__ import annotations


class AqtError(Exception):
    """An error of the library. `code` is its number in aqt/c_api.h."""

    code = 2

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.code)


class CancelledError(AqtError):
    """The work was stopped, because a progress function asked for it."""

    code = 1


class InvalidArgumentError(AqtError, ValueError):
    """A configuration, an option or an array that does not fit."""

    code = 3


class MissingError(AqtError, FileNotFoundError):
    """A file or folder does not exist."""

    code = 5


class ExistsError(AqtError, FileExistsError):
    """An output exists already."""

    code = 6


class NotPermittedError(AqtError, PermissionError):
    """A file cannot be read or written."""

    code = 7


class ResourceExhaustedError(AqtError, MemoryError):
    """Too little memory, too few threads, or a full disk."""

    code = 8


class FailedPreconditionError(AqtError, ValueError):
    """Something that the call needs is missing, such as a key."""

    code = 9


class NotSupportedError(AqtError, NotImplementedError):
    """Legal, but not implemented."""

    code = 12


class DataLossError(AqtError, ValueError):
    """A damaged file, or values that cannot be quantized."""

    code = 15


_TYPES: dict[int, type[AqtError]] = {
    cls.code: cls for cls in (CancelledError, InvalidArgumentError, MissingError, ExistsError, NotPermittedError,
                              ResourceExhaustedError, FailedPreconditionError, NotSupportedError, DataLossError)}


def make_error(code: int, message: str) -> AqtError:
    """The exception for a code."""
    return _TYPES.get(code, AqtError)(message, code)
