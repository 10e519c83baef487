"""The C library, for what Python does not offer of it; imported only when first needed."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def ctypes() -> Any:
    """To import it takes milliseconds, which most commands can do without."""
    import ctypes

    return ctypes


@cache
def _library() -> Any:
    return ctypes().CDLL(None, use_errno=True)


@cache
def function(name: str) -> Any:
    """None where this system does not have it."""
    return getattr(_library(), name, None)


def error_number() -> int:
    """Of the call that failed last in this thread."""
    number: int = ctypes().get_errno()
    return number
