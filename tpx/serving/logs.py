"""Log settings, which clients may change while the server runs."""

from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

import msgspec
from msgspec.structs import replace

from tpx.errors import InvalidRequest, NotReady, Unsupported

LogFormat = Literal["default", "ISO8601", "json"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)
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


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, in the order of Triton's responses."""

    log_file: str = ""
    """Path of the log file; empty for the console."""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    """Verbosity; 1 or higher logs every request."""
    log_format: LogFormat = "default"


class LogControl:
    """The current settings; watchers apply them."""

    def __init__(self, settings: LogSettings) -> None:
        self.settings = settings
        self._watchers: list[Callable[[LogSettings], None]] = []

    @property
    def verbose(self) -> bool:
        return self.settings.log_verbose_level > 0

    def watch(self, watcher: Callable[[LogSettings], None]) -> None:
        """Call `watcher` with the settings, now and after each change."""
        self._watchers.append(watcher)
        watcher(self.settings)

    def update(self, settings: LogSettings) -> None:
        """Replace the settings."""
        self.settings = settings
        for watcher in self._watchers:
            watcher(settings)

    def change(self, given: Mapping[str, LogValue | None], protocol: Protocol) -> None:
        """Apply a client's changes, all or none.

        Raises Unsupported for the log file, because clients must not choose where the server writes;
        InvalidRequest and NotReady in the words of the protocol.
        """
        if "log_file" in given:
            raise Unsupported("log file location can not be updated through network protocol")
        for name, value in given.items():
            if name not in _KINDS:
                known = ", ".join(self.settings.__struct_fields__)
                raise InvalidRequest(f"unknown log setting '{name}', expected one of {known}")
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
        self.update(replace(self.settings, **given))
