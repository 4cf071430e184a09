"""Tracing options of the command line: --trace-config, and the older flags that it replaces."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from tpx.errors import UsageError
from tpx.serving.tracing.settings import LEVELS, MODES, Level, Mode, SpanSettings, TraceSetting

_FORM = "--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'"
Levels = tuple[Level, ...]

_LEVEL_WORDS: dict[str, Levels] = {
    **dict.fromkeys(("false", "off"), ()),
    **dict.fromkeys(("true", "on", "min", "max", "timestamps"), ("TIMESTAMPS",)),
    "tensors": ("TENSORS",),
}
_FIELDS = {name: f"trace_{name}" for name in ("mode", "rate", "count", "file")}
_FIELDS["log-frequency"] = "log_frequency"
_SPAN_NUMBERS = {
    name: f"OTEL_{name.upper()}"
    for name in ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")
}
"""Environment variables used if no flag is given."""
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "": ("level", "rate", "count", "mode"),
    "triton": ("file", "log-frequency"),
    "opentelemetry": ("url", "resource", *_SPAN_NUMBERS),
}
_LEAST = {"rate": 0, "count": -1, "log-frequency": 0} | dict.fromkeys(_SPAN_NUMBERS, 1)
_URL_VARIABLES = (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1/traces"))


class TraceFlag(msgspec.Struct, frozen=True):
    """One parsed --trace-config."""

    setting: str
    value: Levels | int | str
    mode: Mode | None = None
    """The mode, for settings that only one mode has."""


def trace_flag(text: str) -> TraceFlag:
    """Parse the value of one --trace-config. Raises ValueError."""
    mode, comma, pair = text.partition(",") if "," in text.partition("=")[0] else ("", "", text)
    name, equals, value = pair.partition("=")
    if (comma and not mode) or not (name and equals and value):
        raise ValueError(_FORM)
    own = _parse_mode(mode) if comma else None
    if name not in _SETTINGS[own or ""]:
        known = [f"{of},{each}=" if of else f"{each}=" for of, names in _SETTINGS.items() for each in names]
        raise ValueError(f"unknown setting '{pair}': expected {', '.join(known[:-1])} or {known[-1]}")
    return TraceFlag(name, _parse_value(name, value), own)


def _parse_value(name: str, text: str) -> Levels | int | str:
    if name in _LEAST:
        return _parse_number(text, _LEAST[name])
    if name == "level":
        return level_words(text)
    if name == "resource" and not all(text.partition("=")[::2]):
        raise ValueError("expected opentelemetry,resource=KEY=VALUE")
    return _parse_mode(text) if name == "mode" else text


def level_words(text: str) -> Levels:
    """Parse a trace level, in any case. Raises ValueError."""
    levels = _LEVEL_WORDS.get(text.lower())
    if levels is None:
        raise ValueError(f"invalid value for trace level option: {text}")
    return levels


def start_setting(
    flags: Sequence[TraceFlag], older: TraceSetting, environment: Mapping[str, str]
) -> TraceSetting:
    """Return the initial setting: --trace-config overrides the older flags and, in mode opentelemetry,
    the environment.

    Raises UsageError.
    """
    setting = older
    levels = [flag.value for flag in flags if flag.setting == "level"]
    if levels:
        named = {level for value in levels if isinstance(value, tuple) for level in value}
        on = () not in levels
        setting = replace(setting, trace_level=tuple(level for level in LEVELS if on and level in named))
    for flag in flags:
        field = _FIELDS.get(flag.setting)
        if field is not None:
            setting = replace(setting, **{field: flag.value})
    for flag in flags:
        if flag.mode not in (None, setting.trace_mode):
            raise UsageError(
                f"--trace-config {flag.mode},{flag.setting}= has no effect: that needs mode={flag.mode}"
            )
    if setting.exports:
        return _apply_span_flags(setting, flags, environment)
    if not setting.trace_rate:
        raise UsageError("--trace-config rate=0 needs mode=opentelemetry: expected at least 1")
    if setting.trace_level and not setting.trace_file:
        raise UsageError("tracing needs a file to write to: --trace-config triton,file=PATH")
    directory = Path(setting.trace_file).parent
    if setting.trace_file and not directory.is_dir():
        raise UsageError(f"--trace-config triton,file={setting.trace_file}: no directory '{directory}'")
    return setting


def _apply_span_flags(
    setting: TraceSetting, flags: Sequence[TraceFlag], environment: Mapping[str, str]
) -> TraceSetting:
    if setting.trace_file:
        raise UsageError("--trace-file has no effect: that needs mode=triton")
    if setting.trace_level and setting.fault:
        raise UsageError(f"{setting.fault}: spans record times only: use --trace-config level=TIMESTAMPS")
    given = {flag.setting: flag.value for flag in flags if flag.mode == "opentelemetry"}
    pairs = [str(flag.value).partition("=") for flag in flags if flag.setting == "resource"]
    spans = SpanSettings(resource=tuple({key: value for key, _, value in pairs}.items()))
    spans = replace(spans, url=str(given.get("url") or _find_url(environment) or spans.url))
    for name, variable in _SPAN_NUMBERS.items():
        number, text = given.get(name), environment.get(variable)
        try:
            number = _parse_number(text, 1) if number is None and text else number
        except ValueError as exc:
            raise UsageError(f"{variable}={text} of the environment: {exc}") from exc
        if number is not None:
            spans = replace(spans, **{name: number})
    if urlsplit(spans.url).scheme not in ("http", "https") or not urlsplit(spans.url).hostname:
        raise UsageError(f"--trace-config opentelemetry,url={spans.url}: expected http://HOST:PORT/v1/traces")
    if spans.bsp_max_export_batch_size > spans.bsp_max_queue_size:
        raise UsageError(
            f"bsp_max_export_batch_size={spans.bsp_max_export_batch_size} is more than "
            f"bsp_max_queue_size={spans.bsp_max_queue_size}: no batch would ever be full"
        )
    return replace(setting, spans=spans)


def _find_url(environment: Mapping[str, str]) -> str:
    for variable, path in _URL_VARIABLES:
        if environment.get(variable):
            return environment[variable].rstrip("/") + path if path else environment[variable]
    return ""


def _parse_mode(text: str) -> Mode:
    for mode in MODES:
        if text.lower() == mode:
            return mode
    options = 'Available options are "triton" and "opentelemetry"'
    raise ValueError(f"invalid value for trace mode option: {text}. {options}")


def _parse_number(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("expected an integer") from None
    if not least <= value < 2**31:
        raise ValueError(f"expected at least {least} and less than 2^31")
    return value
