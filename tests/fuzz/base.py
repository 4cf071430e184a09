"""What is fuzzed: a function of bytes that fails when a promise is broken, and bytes to begin with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing that takes bytes from strangers."""

    name: str
    seeds: tuple[bytes, ...]
    """Good inputs, and nearly good ones: what is mutated first."""
    run: Callable[[bytes], None]
    """Raises whatever is not an answer to bad input."""
    examples: int = 100
    """How many are tried where time is short."""


def cut(data: bytes) -> Iterator[bytes]:
    """Bytes as a network might bring them: in pieces whose sizes follow from the bytes themselves."""
    at = 0
    while at < len(data):
        size = 1 + data[at] * data[-1] % 97
        yield data[at : at + size]
        at += size
