"""Requests and responses as models see them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Union

from tpx.serving.backends.python.worker.errors import TritonError, TritonModelException
from tpx.serving.backends.python.worker.frames import Head
from tpx.serving.backends.python.worker.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpx.serving.backends.python.worker.execution import Execution
    from tpx.serving.backends.python.worker.sender import InferenceResponseSender

CorrelationId = Union[int, str]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 1
_FLAGS = 3


class PreferredMemory:
    """Where the outputs of a request shall lie."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        if preferred_memory_type not in (TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU):
            raise TritonModelException("PreferredMemory takes TRITONSERVER_MEMORY_CPU or _GPU")
        self.memory_type = preferred_memory_type
        self.device_id = int(preferred_device_id)


class InferenceTrace:
    """Belongs to a request; given to requests that it gives rise to."""

    __slots__ = ("_context", "_handle")

    def __init__(self, handle: int, context: str = "") -> None:
        self._handle = handle
        self._context = context

    def get_context(self) -> str | None:
        """What OpenTelemetry calls the context, as JSON; None where requests are not traced so."""
        return self._context or None


class InferenceRequest:
    """A request: one that came, or one to another model."""

    __slots__ = (
        "__weakref__",
        "_correlation_id",
        "_execution",
        "_flags",
        "_handle",
        "_inputs",
        "_model_name",
        "_model_version",
        "_outputs",
        "_parameters",
        "_preferred",
        "_release",
        "_request_id",
        "_sender",
        "_timeout",
        "_trace",
    )

    def __init__(  # noqa: PLR0913 (the signature is Triton's)
        self,
        request_id: str = "",
        correlation_id: CorrelationId = 0,
        inputs: Any = (),
        requested_output_names: Any = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Any = None,
    ) -> None:
        self._inputs: list[Tensor] = list(inputs)
        for tensor in self._inputs:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"inputs must be Tensor objects, found '{type(tensor)}'")
        self._request_id = str(request_id)
        self._correlation_id: CorrelationId = correlation_id
        self._outputs: list[str] = [str(name) for name in requested_output_names]
        self._model_name = str(model_name)
        self._model_version = int(model_version)
        self._timeout = int(timeout)
        self._preferred = preferred_memory
        self._trace = trace
        self._parameters = "{}" if parameters == "{}" else _checked(parameters)
        self._release = TRITONSERVER_REQUEST_RELEASE_ALL
        self._handle = 0
        self._execution: Execution | None = None
        self._sender: InferenceResponseSender | None = None
        self.set_flags(flags)

    @classmethod
    def _received(
        cls, handle: int, request_id: str, head: Head, inputs: list[Tensor], execution: Execution
    ) -> InferenceRequest:
        self = cls.__new__(cls)
        extra = head.extra
        self._handle = handle
        self._inputs = inputs
        self._execution = execution
        self._request_id = request_id
        self._correlation_id = extra.get("sequence", 0)
        self._flags = extra.get("flags", 0)
        self._timeout = extra.get("timeout", 0)
        self._parameters = extra.get("parameters", "{}")
        self._outputs = extra["outputs"]
        self._model_name = self._preferred = self._trace = self._sender = None  # type: ignore[assignment]
        if "context" in extra:
            self._trace = InferenceTrace(handle, extra["context"])
        self._model_version = -1
        self._release = TRITONSERVER_REQUEST_RELEASE_ALL
        return self

    def inputs(self) -> list[Tensor]:
        """All input tensors."""
        return self._inputs

    def request_id(self) -> str:
        """As the client has given it."""
        return self._request_id

    def correlation_id(self) -> CorrelationId:
        """Of the sequence; 0 for none."""
        return self._correlation_id

    def flags(self) -> int:
        """Whether it starts or ends its sequence."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Start or end a sequence. Raises TritonModelException for other flags."""
        if not isinstance(flags, int) or flags & ~_FLAGS:
            raise TritonModelException(
                f"flags are TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END, got {flags}"
            )
        self._flags = flags

    def timeout(self) -> int:
        """Microseconds; 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """The parameters of the request as a JSON object."""
        return self._parameters

    def requested_output_names(self) -> set[str]:
        """The outputs that are wanted."""
        return set(self._outputs)

    def preferred_memory(self) -> PreferredMemory:
        """Where outputs shall lie."""
        return self._preferred or PreferredMemory(TRITONSERVER_MEMORY_CPU)

    def model_name(self) -> str:
        """Of the model that it goes to."""
        return self._model_name or ""

    def model_version(self) -> int:
        """Of the model that it goes to; -1 is the latest."""
        return self._model_version

    def trace(self) -> InferenceTrace:
        """For requests that this one gives rise to."""
        return self._trace or InferenceTrace(self._handle)

    def get_response_sender(self) -> InferenceResponseSender:
        """Where responses go, one for the request. Raises TritonModelException."""
        return self._own().sender(self)

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._own().is_cancelled(self._handle)

    def set_release_flags(self, flags: int) -> None:
        """RELEASE_RESCHEDULE: the request comes again. Raises TritonModelException."""
        self._own()
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"there are no release flags {flags}")
        self._release = flags

    def exec(self, decoupled: bool = False) -> Any:
        """Have another model compute it: the response, or of a decoupled model an iterator of them."""
        from tpx.serving.backends.python.worker.calls import call

        return call(self, decoupled=decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """As `exec`, to be awaited."""
        from tpx.serving.backends.python.worker.calls import call_async

        return call_async(self, decoupled=decoupled)

    def _own(self) -> Execution:
        if self._execution is None:
            raise TritonModelException("only a request that came to the model's execute function has this")
        return self._execution


class InferenceResponse:
    """Output tensors, or an error."""

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(self, output_tensors: Any = (), error: Any = None, parameters: Any = None) -> None:
        self._outputs: list[Tensor] = list(output_tensors or ())
        for tensor in self._outputs:
            if not isinstance(tensor, Tensor):
                raise TritonModelException(f"output_tensors must be Tensor objects, found '{type(tensor)}'")
        if error is not None and not isinstance(error, TritonError):
            error = TritonError(str(error))
        self._error: TritonError | None = error
        self._parameters = "{}" if not parameters else _checked(parameters, check=_check_sendable)

    def output_tensors(self) -> list[Tensor]:
        """All of them; none if there is an error."""
        return self._outputs

    def has_error(self) -> bool:
        """Whether there is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, if there is one."""
        return self._error

    def parameters(self) -> str:
        """The parameters of the response as a JSON object."""
        return self._parameters


def _checked(parameters: Any, check: Callable[[str, object], None] | None = None) -> str:
    """Parameters as JSON, each given to `check`. Raises TritonModelException."""
    if parameters is None:
        return "{}"
    if isinstance(parameters, str):
        parameters = json.loads(parameters)
    if not isinstance(parameters, dict):
        raise TritonModelException(f"parameters must be a dict, found '{type(parameters)}'")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"parameter keys must be strings, found '{type(key)}'")
        if not isinstance(value, (str, int, bool, float)):
            raise TritonModelException(
                f"parameter '{key}' must be a string, an integer or a boolean, found '{type(value)}'"
            )
        if check is not None:
            check(key, value)
    return json.dumps(parameters)


def _check_sendable(key: str, value: object) -> None:
    """Whether both protocols can tell a parameter of a response. Raises TritonModelException."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise TritonModelException(f"parameter '{key}' has an integer of more than 64 bits")
    for text in (key, value):
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise TritonModelException(f"parameter {key!a} must be Unicode text, got {text!a}") from None
