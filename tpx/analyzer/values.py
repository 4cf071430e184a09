"""Parse option values that are more than one word, from YAML or from a flag: numbers, maps, objectives,
constraints.

Parsers raise ValueError; `within` adds the key that the error is about.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tpx.analyzer.config_sweep import BadField, integer, stepped
from tpx.analyzer.metrics import metric
from tpx.analyzer.results.goals import Bound, Constraint, WeightedObjective
from tpx.errors import UsageError
from tpx.options import nearest

Flags = Mapping[str, tuple[str, ...]]
"""Another program's options by flag name without dashes; several values repeat the flag."""

Reader = Callable[[Any], Any]
"""Converts a YAML value; raises ValueError."""
LISTED_WEIGHT = 10.0
"""Weight of each objective in a list, Model Analyzer's number; it matters only next to other weights."""

_COMPARISON = re.compile(r"\s*(\w+)\s*(<=|>=)\s*(\S+)\s*")
_RENAMED = {"perf_latency": "perf_latency_p99"}
"""Model Analyzer's deprecated tag, which it accepts and then ignores."""


@contextmanager
def within(*keys: str) -> Iterator[None]:
    """Prefix the keys to the path of any error that the block raises."""
    try:
        yield
    except BadField as exc:
        raise BadField((*keys, *exc.path), exc.message) from exc
    except (ValueError, UsageError) as exc:
        raise BadField(keys, str(exc)) from exc


def from_yaml_text(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a parser of flag text that is YAML, such as `{perf_throughput: 10}`."""

    def parse(text: str) -> object:
        import yaml  # late: most command lines have no such flag

        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as exc:
            raise ValueError(f"not YAML: {' '.join(str(exc).split())}") from exc
        return read(value)

    return parse


def numbers(value: object) -> tuple[int, ...]:
    """Parse `4`, `"1,2,4"`, `[1, 2, 4]`, or `{start: 1, stop: 4, step: 1}`, which includes its stop."""
    if isinstance(value, Mapping):
        return stepped(value)
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return tuple(integer(item) for item in items)


def words(value: Any) -> tuple[str, ...]:
    """Parse `a`, `"a,b"` or `[a, b]`."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return tuple(text.strip() for text in map(scalar_text, items) if text.strip())


_UNITS = {"s": 1, "m": 60, "h": 3600, "": 1}


def seconds(value: object) -> float:
    """Parse `90`, `90s`, `20m` or `1.5h`."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(value))
    if found is None or isinstance(value, bool):
        raise ValueError(f"expected a time as 90s, 20m or 1.5h, got {value!r}")
    return float(found.group(1)) * _UNITS[found.group(2)]


def number(value: Any) -> float:
    """Parse a number, which may be text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, got {value!r}")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"expected a number, got {value!r}") from None


def truth(value: object) -> bool:
    """Return a boolean unchanged; reject everything else."""
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {value!r}")
    return value


def scalar_text(value: object) -> str:
    """Return a single value as a command line would spell it."""
    if isinstance(value, Mapping | list) or value is None:
        raise ValueError(
            f"expected a single value, got {'nothing' if value is None else type(value).__name__}"
        )
    return str(value).lower() if isinstance(value, bool) else str(value)


def mapping(value: object, what: str) -> Mapping[str, object]:
    """Return a mapping with its keys as text."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {what} as `key: value` lines, got {type(value).__name__}")
    return {str(key): item for key, item in value.items()}


def read_fields(value: Any, what: str, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the fields that a map sets; a key without a value sets nothing."""
    found: dict[str, Any] = {}
    for key, item in mapping(value, what).items():
        name = key.replace("-", "_")
        if name not in readers:
            raise ValueError(f"unknown key '{key}'{nearest(key, readers)} (there are: {', '.join(readers)})")
        if item is not None:
            with within(key):
                found[name] = readers[name](item)
    return found


def flags(value: Any) -> Flags:
    """Parse another program's options; a list of values repeats the flag."""
    read = {}
    for key, item in mapping(value, "options").items():
        with within(key):
            items = item if isinstance(item, list) else [item]
            read[key.removeprefix("--").replace("_", "-")] = tuple(scalar_text(each) for each in items)
    return read


def environment(value: object) -> Mapping[str, str]:
    """Parse environment variables; a key without a value is the empty string."""
    read = {}
    for key, item in mapping(value, "variables").items():
        with within(key):
            read[key] = "" if item is None else str(item)
    return read


def read_objectives(value: object) -> tuple[WeightedObjective, ...]:
    """Parse `[perf_throughput, perf_latency_p99]`, or a map from tag to weight."""
    if isinstance(value, Mapping):
        return tuple(_parse_objective(str(tag), weight) for tag, weight in value.items())
    return tuple(_parse_objective(tag, LISTED_WEIGHT) for tag in words(value))


def read_constraints(value: object) -> tuple[Constraint, ...]:
    """Parse `{perf_latency_p99: {max: 10}}`, or `perf_latency_p99<=10,perf_throughput>=100`."""
    if isinstance(value, str):
        return tuple(_parse_comparison(part) for part in value.split(",") if part.strip())
    found = []
    for tag, bounds in mapping(value, "constraints").items():
        with within(tag):
            limits = mapping(bounds, "min or max")
            if not limits or set(limits) - {"min", "max"}:
                raise ValueError(f"expected min or max, got {', '.join(limits) or 'nothing'}")
            found += [
                _build_constraint(tag, "max" if b == "max" else "min", limit) for b, limit in limits.items()
            ]
    return tuple(found)


def _parse_objective(tag: str, weight: object) -> WeightedObjective:
    with within(tag):
        share = number(weight)
        if not share > 0:
            raise ValueError(f"the weight of an objective must be above 0, not {share:g}")
        return WeightedObjective(tag=metric(_RENAMED.get(tag, tag)).tag, weight=share)


def _parse_comparison(text: str) -> Constraint:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise ValueError(f"expected METRIC<=LIMIT or METRIC>=LIMIT, got '{text.strip()}'")
    tag, sign, limit = found.groups()
    with within(tag):
        return _build_constraint(tag, "max" if sign == "<=" else "min", limit)


def _build_constraint(tag: str, bound: Bound, limit: object) -> Constraint:
    measured = metric(_RENAMED.get(tag, tag))
    sensible = "min" if measured.better == "higher" else "max"
    if bound != sensible and measured.unit != "%":  # percentages may be bounded on either side
        raise ValueError(f"a {bound} of {measured.name} is not a valid constraint: use {sensible}")
    return Constraint(tag=measured.tag, bound=bound, limit=number(limit))
