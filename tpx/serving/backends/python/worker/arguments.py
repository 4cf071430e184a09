"""Argument checks of pb_utils: what Triton's C++ signatures refuse raises TypeError here too."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, TypeVar

E = TypeVar("E", bound=enum.IntEnum)


def text(value: object, argument: str) -> str:
    """Return a str; bytes are decoded. Raises TypeError."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode()
    raise wrong(value, argument, "a str")


def integer(value: Any, argument: str, least: int, most: int) -> int:
    """Return an integer-like value as int. Raises TypeError, also if it is out of range."""
    if not hasattr(type(value), "__index__"):
        raise wrong(value, argument, "an int")
    number = int(value.__index__())
    if not least <= number <= most:
        raise TypeError(f"{argument} must be from {least} to {most}, got {number}")
    return number


def real(value: Any, argument: str) -> float:
    """Return a number as float. Raises TypeError."""
    if not (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        raise wrong(value, argument, "a number")
    return float(value)


def flag(value: object, argument: str) -> bool:
    """Return a bool, or a number as one. Raises TypeError."""
    if not hasattr(type(value), "__bool__") or value is None:
        raise wrong(value, argument, "a bool")
    return bool(value)


def member(value: object, argument: str, kind: type[E]) -> E:
    """Return a member of an enumeration. Raises TypeError, also for its bare number."""
    if not isinstance(value, kind):
        raise wrong(value, argument, f"a {kind.__name__}")
    return value


def sequence(value: Any, argument: str) -> list[Any]:
    """Return a sequence other than text, or an array, as a list. Raises TypeError."""
    if type(value) is list:  # the common case: the check below costs ten times as much
        return value.copy()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return list(value)
    if hasattr(value, "__array__"):
        return list(value)
    raise wrong(value, argument, "a list")


def texts(value: object, argument: str) -> list[str]:
    """Return a sequence of text as a list. Raises TypeError."""
    return [text(item, f"each of {argument}") for item in sequence(value, argument)]


def wrong(value: object, argument: str, wanted: str) -> TypeError:
    """Return the error for an argument of the wrong type."""
    return TypeError(f"{argument} must be {wanted}, got {type(value).__name__}")
