"""Logs as Triton writes them: `I1120 12:34:56.123456 1234 server.py:42] message`, in UTC."""

import logging
import sys
from datetime import UTC, datetime
from io import TextIOWrapper

_LETTERS = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E"}


class TritonFormatter(logging.Formatter):
    """The default format of Triton's log lines."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime("%m%d %H:%M:%S.%f")
        letter = _LETTERS.get(record.levelno, "E")
        text = f"{letter}{when} {record.process} {record.filename}:{record.lineno}] {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def configure(*, verbose: int) -> None:
    """INFO to stdout, warnings and errors to stderr, as Triton does; what a stream cannot say is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    out = logging.StreamHandler(sys.stdout)
    out.addFilter(lambda record: record.levelno < logging.WARNING)
    err = logging.StreamHandler(sys.stderr)
    err.setLevel(logging.WARNING)
    for handler in (out, err):
        handler.setFormatter(TritonFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[out, err], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
