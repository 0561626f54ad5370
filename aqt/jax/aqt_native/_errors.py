"""The exceptions of this package."""


class NotSupportedError(NotImplementedError, ValueError):
    """A configuration or a call that this library refuses. The message names what it is, and what to do instead."""
