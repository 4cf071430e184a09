"""Errors of a model, as they are sent to the server."""

from __future__ import annotations

import enum
import traceback

from tpx.serving.backends.python.worker import arguments

_OWN = (
    "/tpx/serving/backends/python/worker/",
    "/concurrent/futures/_base.py",
    "<frozen importlib.",
    "/importlib/__init__.py",
)
"""Paths of the code that calls and imports the model, which is not the model's own."""


class TritonModelException(Exception):
    """Raised by models and to them; fails all requests of the batch."""


class ErrorCode(enum.IntEnum):
    """Error codes, numbered as in Triton."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)


class TritonError:
    """Error of a single response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = ErrorCode

    def __init__(self, message: str, code: ErrorCode = INTERNAL) -> None:
        """Create an error. Raises TypeError."""
        self._message = arguments.text(message, "TritonError(): message")
        self._code = arguments.member(code, "TritonError(): code", ErrorCode)

    def message(self) -> str:
        """Return the message."""
        return self._message

    def code(self) -> ErrorCode:
        """Return the kind of the error."""
        return self._code

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code.name})"


def described(error: BaseException) -> str:
    """Describe an exception as Triton does: type, message, and where it was raised, innermost first."""
    text = f"{type(error).__name__}: {error}"
    places = [
        f"  {frame.f_code.co_filename}({line}): {frame.f_code.co_name}\n"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_own(frame.f_code.co_filename)
    ]
    return f"{text}\n\nAt:\n{''.join(reversed(places))}" if places else text


def location_of(error: BaseException) -> tuple[str, int]:
    """Return the file and line of the model that raised an exception, or called the code that did."""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if _is_own(place[0])]
    return ([place for place in places if place not in own] or own or [("model.py", 0)])[-1]


def traceback_of(error: BaseException) -> str:
    """Return Python's traceback of an exception, starting in the model's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _is_own(file: str) -> bool:
    return any(own in file for own in _OWN)
