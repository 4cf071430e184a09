"""Everything tpx raises on purpose, as one tree.

* TpxError                   carries a neutral `code`; frontends and the command line map it
  x RequestError             a client asked for something that cannot be answered
    - InvalidRequest           the request itself is wrong
    - NotFound                 no such model, version, region, path
    - AlreadyExists
    - NotReady                 the model exists but cannot answer now
    - Unsupported              a feature that this server, model or machine does not have
    - Overloaded               a queue or a limit is full, or a deadline in the queue has passed
    - Cancelled                the client went away or its deadline passed
    - ExecutionError           the backend failed while it computed
  x LoadError                a model could not be loaded
    - ConfigError              its configuration is wrong
  x WireError                a peer broke its protocol, or a connection broke
    - ResponseError            a server answered a client of ours with an error
  x UsageError               a command line or a configuration file is wrong
  x MeasurementError         a measurement could not be made
    - ServerLost               the server is gone, and with it every measurement to come
    - NodeLost                 the node that measured is gone; others can measure the same
"""

from enum import Enum


class Code(Enum):
    """Kind of an error, independent of HTTP and gRPC; the value is Triton's name for it."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARGUMENT = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"
    DEADLINE_EXCEEDED = "Deadline exceeded"
    RESOURCE_EXHAUSTED = "Resource exhausted"
    PERMISSION_DENIED = "Permission denied"


class TpxError(Exception):
    """The root: a message for a person and a neutral code for a program."""

    code = Code.INTERNAL

    def __init__(self, message: str, *, code: Code | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class RequestError(TpxError):
    """A client asked for something that cannot be answered."""

    code = Code.UNKNOWN


class InvalidRequest(RequestError):
    """The request itself is wrong; the same request will fail again."""

    code = Code.INVALID_ARGUMENT


class NotFound(RequestError):
    """No such model, version, region or path."""

    code = Code.NOT_FOUND


class AlreadyExists(RequestError):
    """The name is taken."""

    code = Code.ALREADY_EXISTS


class NotReady(RequestError):
    """The model exists but cannot answer now."""

    code = Code.UNAVAILABLE


class Unsupported(RequestError):
    """A feature that this server, model or machine does not have."""

    code = Code.UNSUPPORTED


class Overloaded(RequestError):
    """A queue or a limit is full, or a deadline in the queue has passed."""

    code = Code.UNAVAILABLE


class Cancelled(RequestError):
    """The client disconnected, or its deadline passed; the answer is not read."""

    code = Code.CANCELLED


class ExecutionError(RequestError):
    """The backend failed while it computed this request."""

    code = Code.INTERNAL


class LoadError(TpxError):
    """A model could not be loaded."""

    code = Code.INTERNAL


class ConfigError(LoadError):
    """A model's configuration is wrong: the message says what, `field` is the path of the field at fault.

    A path has indices of lists and keys of maps in brackets: `input[0].dims`, `parameters[device]`.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(self, message: str, *, field: str = "", code: Code | None = None) -> None:
        super().__init__(message, code=code)
        self.field = field


class WireError(TpxError):
    """A peer broke its protocol, or a connection broke."""

    code = Code.UNAVAILABLE


class ResponseError(WireError):
    """A server answered a client of ours with an error; `code` is the server's."""


class UsageError(TpxError):
    """A command line or a configuration file is wrong."""

    code = Code.INVALID_ARGUMENT


class MeasurementError(TpxError):
    """A measurement could not be made."""


class ServerLost(MeasurementError):
    """The server is gone and cannot be started from here; every further measurement would fail alike."""


class NodeLost(MeasurementError):
    """The node that measured is gone; the same can be measured on another."""
