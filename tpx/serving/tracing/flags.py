"""Tracing as the command line says it: --trace-config, and the older flags that it replaces."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tpx.errors import UsageError
from tpx.serving.tracing.settings import LEVELS, Level, TraceSetting

_FORM = "--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'"
_NO_OPENTELEMETRY = (
    "this version of tpx writes trace files only: use mode=triton with triton,file=PATH, or leave tracing off"
)
_LEVEL_WORDS: dict[str, tuple[Level, ...]] = {
    "false": (),
    "off": (),
    "true": ("TIMESTAMPS",),
    "on": ("TIMESTAMPS",),
    "min": ("TIMESTAMPS",),
    "max": ("TIMESTAMPS",),
    "timestamps": ("TIMESTAMPS",),
    "tensors": ("TENSORS",),
}
_FIELDS = {
    "rate": "trace_rate",
    "count": "trace_count",
    "file": "trace_file",
    "log-frequency": "log_frequency",
}
_SETTINGS = ("level", "rate", "count", "mode", "file", "log-frequency")

Levels = tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class TraceFlag:
    """One --trace-config, read."""

    setting: Literal["level", "rate", "count", "mode", "file", "log-frequency"]
    value: Levels | int | str


def trace_flag(text: str) -> TraceFlag:
    """Read the value of one --trace-config. Raises ValueError."""
    mode, comma, pair = text.partition(",") if "," in text.partition("=")[0] else ("", "", text)
    name, equals, value = pair.partition("=")
    if (comma and not mode) or not (name and equals and value):
        raise ValueError(_FORM)
    if comma:
        _check_mode(mode)
    if name not in _SETTINGS or (name in ("file", "log-frequency")) != bool(comma):
        raise ValueError(
            f"unknown setting '{pair}': expected level=, rate=, count=, mode=, triton,file= or "
            "triton,log-frequency="
        )
    if name == "mode":
        _check_mode(value)
        return TraceFlag("mode", value)
    if name == "level":
        return TraceFlag("level", level_words(value))
    if name == "file":
        return TraceFlag("file", value)
    if name == "rate":
        return TraceFlag("rate", _number(value, 1))
    if name == "count":
        return TraceFlag("count", _number(value, -1))
    return TraceFlag("log-frequency", _number(value, 0))


def level_words(text: str) -> Levels:
    """One word for levels, in any case. Raises ValueError."""
    levels = _LEVEL_WORDS.get(text.lower())
    if levels is None:
        raise ValueError(f"invalid value for trace level option: {text}")
    return levels


def start_setting(flags: Sequence[TraceFlag], older: TraceSetting) -> TraceSetting:
    """What the server starts with; --trace-config says more than the older flags. Raises UsageError."""
    setting = older
    levels = [flag.value for flag in flags if flag.setting == "level"]
    if levels:
        named = {level for value in levels if isinstance(value, tuple) for level in value}
        on = () not in levels
        setting = replace(setting, trace_level=tuple(level for level in LEVELS if on and level in named))
    for flag in flags:
        field = _FIELDS.get(flag.setting)
        if field is not None:
            setting = replace(setting, **{field: flag.value})  # type: ignore[arg-type]
    if setting.trace_level and not setting.trace_file:
        raise UsageError("tracing needs a file to write to: --trace-config triton,file=PATH")
    directory = Path(setting.trace_file).parent
    if setting.trace_file and not directory.is_dir():
        raise UsageError(f"--trace-config triton,file={setting.trace_file}: no directory '{directory}'")
    return setting


def _check_mode(mode: str) -> None:
    if mode.lower() == "opentelemetry":
        raise ValueError(_NO_OPENTELEMETRY)
    if mode.lower() != "triton":
        raise ValueError(
            f'invalid value for trace mode option: {mode}. Available options are "triton" and "opentelemetry"'
        )


def _number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("expected an integer") from None
    if not least <= value < 2**31:
        raise ValueError(f"expected at least {least} and less than 2^31")
    return value
