"""Trace settings and their changes, and the words that both come in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from tpx.errors import InvalidRequest, Unsupported

Level = Literal["TIMESTAMPS", "TENSORS"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
Mode = Literal["triton", "opentelemetry"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1

SettingName = Literal["trace_level", "trace_rate", "trace_count", "log_frequency"]
NAMES: Final[tuple[SettingName, ...]] = get_args(SettingName)
"""What can be changed while the server runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSettings:
    """The collector of the mode opentelemetry, and its queue. Cannot be changed."""

    url: str = "http://localhost:4318/v1/traces"
    resource: tuple[tuple[str, str], ...] = ()
    """What every span says of this server."""
    bsp_max_queue_size: int = 2048
    """Spans that wait; more are dropped."""
    bsp_schedule_delay: int = 5000
    """Milliseconds between two exports, unless a batch is full before."""
    bsp_max_export_batch_size: int = 512

    def as_texts(self) -> dict[str, list[str]]:
        """The members of the protocol's answers, in Triton's order."""
        resource = [f"{key}={value}" for key, value in self.resource]
        return {
            "url": [self.url],
            **({"resource": resource} if resource else {}),
            "bsp_schedule_delay": [str(self.bsp_schedule_delay)],
            "bsp_max_export_batch_size": [str(self.bsp_max_export_batch_size)],
            "bsp_max_queue_size": [str(self.bsp_max_queue_size)],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSetting:
    """One complete setting."""

    trace_level: tuple[Level, ...] = ()
    """Nothing is traced without one."""
    trace_rate: int = 1000
    """Every n-th request is traced."""
    trace_count: int = -1
    """Traces still to be taken; -1 has no end."""
    log_frequency: int = 0
    """Traces in one numbered file; 0 puts them all into one file."""
    trace_file: str = ""
    trace_mode: Mode = "triton"
    spans: SpanSettings = SpanSettings()

    @property
    def exports(self) -> bool:
        """True if traces become spans: then callers can have requests traced regardless of rate and count."""
        return self.trace_mode == "opentelemetry"

    @property
    def fault(self) -> str:
        """Why nothing can be traced, "" if it can."""
        if not self.trace_level:
            return "tracing is disabled"
        if self.exports:
            return "mode opentelemetry has no level TENSORS" if "TENSORS" in self.trace_level else ""
        if not self.trace_rate:
            return "sample rate must be non-zero"
        return "" if self.trace_file else "trace file name is not given"

    @property
    def fixed(self) -> dict[str, list[str]]:
        """Settings that clients see and cannot change."""
        return {"trace_mode": [self.trace_mode], **(self.spans.as_texts() if self.exports else {})}

    def as_texts(self) -> dict[str, list[str]]:
        """The members of the protocol's answers, in Triton's order."""
        ours: dict[str, list[str]] = {
            "trace_level": list(self.trace_level) or ["OFF"],
            "trace_rate": [str(self.trace_rate)],
            "trace_count": [str(self.trace_count)],
        }
        if not self.exports:
            ours |= {"log_frequency": [str(self.log_frequency)], "trace_file": [self.trace_file]}
        return ours | self.fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceValues:
    """Some of a setting's values; None where nothing is said."""

    trace_level: tuple[Level, ...] | None = None
    trace_rate: int | None = None
    trace_count: int | None = None
    log_frequency: int | None = None

    @property
    def said(self) -> dict[SettingName, object]:
        """The values that are set."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def over(self, setting: TraceSetting) -> TraceSetting:
        """The setting with these values instead of its own."""
        return replace(setting, **self.said)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceUpdate:
    """A change: new values, and the names of those that fall back to what they were inherited from."""

    values: TraceValues
    cleared: frozenset[SettingName] = frozenset()

    def applied(self, current: TraceValues) -> TraceValues:
        """The values that are specified afterwards."""
        kept = {name: value for name, value in current.said.items() if name not in self.cleared}
        return TraceValues(**{**kept, **self.values.said})  # type: ignore[arg-type]


def parse_update(
    given: Mapping[str, Sequence[str] | None], fixed: Mapping[str, Sequence[str]], *, got: str = "got: "
) -> TraceUpdate:
    """A client's change; None clears. `got` introduces a count that is too small.

    Raises InvalidRequest, and Unsupported for the file and for other values of what is `fixed`.
    """
    values: dict[str, object] = {}
    cleared: set[SettingName] = set()
    if "trace_file" in given:
        raise Unsupported("trace file location can not be updated through network protocol")
    for name, texts in given.items():
        if name in fixed:
            if texts and ",".join(texts) != ",".join(fixed[name]):
                what = name.replace("trace_mode", "trace mode")
                raise Unsupported(f"{what} can not be updated through network protocol")
        elif name not in NAMES:
            raise InvalidRequest(f"unknown trace setting '{name}', expected one of {', '.join(NAMES)}")
        elif texts is None:
            cleared.add(name)
        elif name == "trace_level":
            values[name] = parse_levels(texts)
        else:
            values[name] = _whole_number(name, _only(name, texts), got)
    return TraceUpdate(values=TraceValues(**values), cleared=frozenset(cleared))  # type: ignore[arg-type]


def parse_levels(texts: Sequence[str]) -> tuple[Level, ...] | None:
    """Levels in their order, none for OFF; None where nothing is named. Raises InvalidRequest."""
    for text in texts:
        if text != "OFF" and text not in LEVELS:
            raise InvalidRequest(f"unknown trace level '{text}', expected OFF, TIMESTAMPS or TENSORS")
    if "OFF" in texts and len(texts) > 1:
        raise InvalidRequest("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in LEVELS if level in texts) if texts else None


def _only(name: str, texts: Sequence[str]) -> str:
    if len(texts) != 1:
        raise InvalidRequest(f"expect only 1 value for '{name}'")
    return texts[0]


def _whole_number(name: str, text: str, got: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(f"Unable to parse '{name}', got: {text}")
    low, high = (-1, _INT32_MAX) if name == "trace_count" else (0, _UINT32_MAX)
    value = int(text) if len(text) <= 20 else high + 1
    if name == "trace_count" and value < low:
        raise InvalidRequest(f"Unable to parse 'trace_count'. Expecting value >= -1, {got}{text}")
    if not low <= value <= high:
        raise InvalidRequest(
            f"Unable to parse '{name}', value is out of range [ {low}, {high} ], got: {text}"
        )
    return value
