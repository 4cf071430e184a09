"""Logs as Triton writes them, `I1120 12:34:56.123456 1234 server.py:42] "message"`, or as JSON; in UTC."""

import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import TextIO

from tpx.errors import UsageError
from tpx.serving.logs import LogControl, LogFormat, LogSettings

_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E"}
_UNSEEN = {
    code: f"\\u{code:04x}"
    for code in (
        *range(127, 160),  # DEL, C1: a terminal may execute them
        *(0x2028, 0x2029),  # end a line for some readers
        *(
            0x61C,
            0x200E,
            0x200F,
            *range(0x202A, 0x202F),
            *range(0x2066, 0x206A),
        ),  # reverse the direction of text
    )
}
"""Characters that JSON leaves unescaped and that could make a line look like another one."""
_CONTROLS = {code: f"\\x{code:02x}" for code in range(32) if code != 9} | _UNSEEN


def escapes(environment: Mapping[str, str]) -> bool:
    """Return whether messages are logged as JSON strings, so that text from a client cannot imitate a
    log line.
    """
    return environment.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "1") != "0"


class TritonFormatter(logging.Formatter):
    """Triton's two log formats, and JSON.

    A record's `block`, such as a table, follows its line, as does the `traceback` of an exception in a
    model's process.
    """

    def __init__(self, log_format: LogFormat = "default", *, escape: bool = True) -> None:
        super().__init__()
        self.log_format = log_format
        self._escape = escape

    def format(self, record: logging.LogRecord) -> str:
        block = getattr(record, "block", "")
        if self.log_format == "json":
            return self._format_json(record, block)
        if block:
            return f"{self._format_prefix(record)}\n{block}"
        message = record.getMessage()
        if self._escape:
            message = json.dumps(message, ensure_ascii=False).translate(_UNSEEN)
        text = self._format_prefix(record) + message
        # no line of a traceback may look like the start of another record
        lines = self._format_traceback(record).splitlines()
        return text + "".join(f"\n    {line.translate(_CONTROLS)}" for line in lines)

    def _format_traceback(self, record: logging.LogRecord) -> str:
        """Return the traceback of an exception, of this process or of a model's; "" without one."""
        if record.exc_info:
            return self.formatException(record.exc_info)
        return str(getattr(record, "traceback", ""))

    def _format_json(self, record: logging.LogRecord, block: str) -> str:
        """Format a record as one JSON object on one line."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "message": block or record.getMessage(),
            "process": record.process,
            "file": record.filename,
            "line": record.lineno,
        }
        trace = self._format_traceback(record)
        if trace:
            fields["traceback"] = trace
        return json.dumps(fields, ensure_ascii=False).translate(_UNSEEN)

    def _format_prefix(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        letter = _LETTERS.get(record.levelno, "E")
        where = f"{record.process} {record.filename}:{record.lineno}] "
        if self.log_format == "ISO8601":
            return f"{when:%Y-%m-%dT%H:%M:%SZ} {letter} {where}"
        return f"{letter}{when:%m%d %H:%M:%S.%f} {where}"


class _LogFile(logging.FileHandler):
    """A log file. The first write error, such as a full disk, is reported; the server keeps running."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 (logging's name)
        if not self._reported:
            self._reported = True
            print(f"log file '{self.baseFilename}': {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class _Console(logging.StreamHandler[TextIO]):
    """A stream whose first write error (full disk, closed pipe) is reported; the server keeps running."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 (logging's name)
        if not self._reported:
            self._reported = True
            with suppress(OSError):
                print(f"log to {self.stream.name}: {sys.exc_info()[1]}", file=sys.stderr)


def finish() -> None:
    """Flush the streams. Errors are ignored, because the shutdown is orderly without the last lines too.

    Handlers of libraries are left to `logging`: absl's would close the stream that it shares.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LogFile | _Console):
            with suppress(OSError, ValueError):
                handler.flush()
                handler.close()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def configure(control: LogControl) -> None:
    """Apply the log settings of `control`, now and after each change. Raises UsageError.

    INFO goes to stdout, warnings and errors to stderr; with a log file, all of them go there.
    Characters that a stream cannot encode are escaped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    handlers = _make_handlers(control.settings.log_file)
    formatter = TritonFormatter(escape=escapes(os.environ))
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(lambda record: _is_enabled(control.settings, record.levelno))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)

    def apply(settings: LogSettings) -> None:
        formatter.log_format = settings.log_format
        # records below the logger's level cost nothing; debug records of libraries are never enabled
        logging.getLogger("tpx").setLevel(logging.DEBUG if settings.log_verbose_level else logging.INFO)

    control.watch(apply)


def _make_handlers(log_file: str) -> list[logging.Handler]:
    if log_file:
        try:
            return [_LogFile(log_file, encoding="utf-8", errors="backslashreplace")]
        except OSError as exc:
            raise UsageError(f"Failed to open log file '{log_file}': {exc.strerror}") from exc
    out = _Console(sys.stdout)
    out.addFilter(lambda record: record.levelno < logging.WARNING)
    err = _Console(sys.stderr)
    err.setLevel(logging.WARNING)
    return [out, err]


def _is_enabled(settings: LogSettings, level: int) -> bool:
    if level >= logging.ERROR:
        return settings.log_error
    if level >= logging.WARNING:
        return settings.log_warning
    return settings.log_info if level >= logging.INFO else settings.log_verbose_level > 0
