"""What is logged: the settings, which clients may change while the server runs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

LogFormat = Literal["default", "ISO8601"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """All of them, in the order of Triton's answers."""

    log_file: str = ""
    """Instead of the console."""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    """1 and more: every request."""
    log_format: LogFormat = "default"


class LogControl:
    """The settings in force. Whoever carries them out watches."""

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
        """Put other settings in force."""
        self.settings = settings
        for watcher in self._watchers:
            watcher(settings)
