"""Metric families and Prometheus text format (version 0.0.4)."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

Kind = Literal["counter", "gauge", "summary", "histogram"]

Line = tuple[str, float]
"""Rest of the series name, such as `_sum{model="m"}`, and the value."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with its series at one moment."""

    name: str
    kind: Kind
    help: str
    lines: Iterable[Line] = ()
    optional: bool = False
    """True to omit the family while it has no series."""


def single(name: str, text: str, value: float, kind: Kind = "gauge") -> Family:
    """Return a family with one series that has no labels."""
    return Family(name=name, kind=kind, help=text, lines=(("", value),))


def render(families: Iterable[Family]) -> Iterator[str]:
    """Render the page line by line; a family without series still has HELP and TYPE."""
    for family in families:
        name = family.name
        head = f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
        if not family.optional:
            yield head
            head = ""
        for rest, value in family.lines:
            yield f"{head}{name}{rest} {number(value)}\n"
            head = ""


def labels(pairs: Mapping[str, str]) -> str:
    """Return `a="1",b="2"`, sorted by name as in Triton.

    Characters that Prometheus does not allow in names become underscores; names that collide are
    numbered.
    """
    written: dict[str, str] = {}
    for name, value in sorted(pairs.items()):
        # of leading underscores one is kept: two are reserved by Prometheus
        allowed = first = re.sub(r"^_+", "_", re.sub(r"[^0-9A-Za-z_]", "_", name))
        nth = 1
        while allowed in written:
            nth += 1
            allowed = f"{first}{nth}"
        written[allowed] = value
    return ",".join(f'{name}="{escape(value)}"' for name, value in written.items())


def number(value: float) -> str:
    """Format a value; integers keep every digit."""
    if isinstance(value, int):
        return str(value)
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def bound(value: float) -> str:
    """Format a bucket's bound as prometheus-cpp does: 100, not 100.0."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def escape(value: str) -> str:
    """Escape a label value."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class MetricsProbe(Protocol):
    """Measurement of the machine, sampled periodically by one thread."""

    def sample(self) -> Sequence[Family]:
        """Measure now."""

    def close(self) -> None: ...
