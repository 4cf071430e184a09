"""Trace settings, changes to them, and the names used for both."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from tpx.errors import InvalidRequest, Unsupported

Level = Literal["TIMESTAMPS", "TENSORS"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
Mode = Literal["triton", "opentelemetry"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)

_UINT32_MAX = 2**32 - 1
_INT32_MAX = 2**31 - 1

SettingName = Literal["trace_level", "trace_rate", "trace_count", "log_frequency"]
NAMES: Final[tuple[SettingName, ...]] = get_args(SettingName)
"""Settings that can be changed while the server runs."""


class SpanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Collector and queue of mode opentelemetry; cannot be changed."""

    url: str = "http://localhost:4318/v1/traces"
    resource: tuple[tuple[str, str], ...] = ()
    """Resource attributes of every span."""
    bsp_max_queue_size: int = 2048
    """Maximum queued spans; more are dropped."""
    bsp_schedule_delay: int = 5000
    """Milliseconds between two exports, unless a batch fills up earlier."""
    bsp_max_export_batch_size: int = 512

    def as_texts(self) -> dict[str, list[str]]:
        """Return the fields of the protocol's responses, in Triton's order."""
        resource = [f"{key}={value}" for key, value in self.resource]
        return {
            "url": [self.url],
            **({"resource": resource} if resource else {}),
            "bsp_schedule_delay": [str(self.bsp_schedule_delay)],
            "bsp_max_export_batch_size": [str(self.bsp_max_export_batch_size)],
            "bsp_max_queue_size": [str(self.bsp_max_queue_size)],
        }


class TraceSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A complete trace setting."""

    trace_level: tuple[Level, ...] = ()
    """Levels; without one nothing is traced."""
    trace_rate: int = 1000
    """One of this many requests is traced."""
    trace_count: int = -1
    """Remaining traces; -1 = unlimited."""
    log_frequency: int = 0
    """Traces per numbered file; 0 = all in one file."""
    trace_file: str = ""
    trace_mode: Mode = "triton"
    spans: SpanSettings = SpanSettings()

    @property
    def exports(self) -> bool:
        """Return whether traces become spans; callers can then request one regardless of rate and count."""
        return self.trace_mode == "opentelemetry"

    @property
    def fault(self) -> str:
        """Return why nothing can be traced, "" if tracing is possible."""
        if not self.trace_level:
            return "tracing is disabled"
        if self.exports:
            return "mode opentelemetry has no level TENSORS" if "TENSORS" in self.trace_level else ""
        if not self.trace_rate:
            return "sample rate must be non-zero"
        return "" if self.trace_file else "trace file name is not given"

    @property
    def fixed(self) -> dict[str, list[str]]:
        """Return the settings that clients see but cannot change."""
        return {"trace_mode": [self.trace_mode], **(self.spans.as_texts() if self.exports else {})}

    def as_texts(self) -> dict[str, list[str]]:
        """Return the fields of the protocol's responses, in Triton's order."""
        texts: dict[str, list[str]] = {
            "trace_level": list(self.trace_level) or ["OFF"],
            "trace_rate": [str(self.trace_rate)],
            "trace_count": [str(self.trace_count)],
        }
        if not self.exports:
            texts |= {"log_frequency": [str(self.log_frequency)], "trace_file": [self.trace_file]}
        return texts | self.fixed


TraceValues = Mapping[SettingName, tuple[Level, ...] | int]
"""Explicit values of a setting; the others are inherited."""
TraceUpdate = Mapping[SettingName, tuple[Level, ...] | int | None]
"""A change of explicit values; None inherits a value again."""


def parse_update(
    given: Mapping[str, Sequence[str] | None], fixed: Mapping[str, Sequence[str]], *, got: str = "got: "
) -> TraceUpdate:
    """Parse a client's change. `got` introduces a count that is too small.

    Raises InvalidRequest, and Unsupported for the file and for changes of `fixed` values.
    """
    update: dict[SettingName, tuple[Level, ...] | int | None] = {}
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
            update[name] = None
        elif name == "trace_level":
            if texts:
                update[name] = parse_levels(texts)
        else:
            if len(texts) != 1:
                raise InvalidRequest(f"expect only 1 value for '{name}'")
            update[name] = _parse_whole_number(name, texts[0], got)
    return update


def parse_levels(texts: Sequence[str]) -> tuple[Level, ...]:
    """Parse levels in order, none for OFF. Raises InvalidRequest."""
    for text in texts:
        if text != "OFF" and text not in LEVELS:
            raise InvalidRequest(f"unknown trace level '{text}', expected OFF, TIMESTAMPS or TENSORS")
    if "OFF" in texts and len(texts) > 1:
        raise InvalidRequest("Expect only one trace level 'OFF' is specified")
    return tuple(level for level in LEVELS if level in texts)


def _parse_whole_number(name: str, text: str, got: str) -> int:
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
