"""What clients may change of the logs, checked as a whole before any of it takes effect."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Literal

from tpx.errors import InvalidRequest, NotReady, Unsupported
from tpx.serving.logs import LOG_FORMATS, LogSettings

LogValue = str | bool | int
Protocol = Literal["HTTP", "GRPC"]

_KINDS: dict[str, type] = {
    "log_info": bool,
    "log_warning": bool,
    "log_error": bool,
    "log_verbose_level": int,
    "log_format": str,
}
_WORDS: dict[tuple[Protocol, type], str] = {
    ("HTTP", bool): "attempt to access JSON non-boolean as boolean",
    ("HTTP", int): "attempt to access JSON non-unsigned-integer as unsigned-integer",
    ("HTTP", str): "attempt to access JSON non-string as string",
    ("GRPC", bool): "expect boolean for '{}'",
    ("GRPC", int): "expect int32 for '{}'",
    ("GRPC", str): "expect string for '{}'",
}
_UINT32_MAX = 2**32 - 1


def refuse_log_file() -> None:
    """Raises Unsupported: where the server writes is not for its clients to say."""
    raise Unsupported("log file location can not be updated through network protocol")


def changed(settings: LogSettings, given: Mapping[str, LogValue | None], protocol: Protocol) -> LogSettings:
    """The settings with these changes. Raises InvalidRequest, NotReady in the protocol's words."""
    for name, value in given.items():
        if name not in _KINDS:
            raise InvalidRequest(
                f"unknown log setting '{name}', expected one of {', '.join(asdict(settings))}"
            )
        kind = _KINDS[name]
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise InvalidRequest(_WORDS[protocol, kind].format(name))
    level = given.get("log_verbose_level")
    if isinstance(level, int) and level > _UINT32_MAX:
        raise InvalidRequest(f"'log_verbose_level' must be at most {_UINT32_MAX}, got {level}")
    wanted = given.get("log_format", "default")
    if wanted not in LOG_FORMATS:
        if protocol == "HTTP":
            raise NotReady(f"invalid argument for --log_format, got: {wanted}")
        raise InvalidRequest(f"invalid argument for log_format, got: {wanted}")
    return replace(settings, **given)  # type: ignore[arg-type]
