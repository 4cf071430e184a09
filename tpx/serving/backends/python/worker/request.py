"""Requests as models see them."""

from __future__ import annotations

import enum
from typing import Any, Protocol, Union

from tpx.serving.backends.python.worker import arguments
from tpx.serving.backends.python.worker.errors import TritonModelException
from tpx.serving.backends.python.worker.frames import Head
from tpx.serving.backends.python.worker.response import InferenceResponseSender, parameters_of, tensors_of
from tpx.serving.backends.python.worker.runtime import RUNTIME
from tpx.serving.backends.python.worker.tensor import Tensor

CorrelationId = Union[int, str]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
_INT64 = -(2**63), 2**63 - 1
_UINT32 = 0, 2**32 - 1
_UINT64 = 0, 2**64 - 1


class MemoryType(enum.IntEnum):
    """Memory types, numbered as in Triton's stub."""

    TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = range(2)


TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = MemoryType


class PreferredMemory:
    """Preferred memory for the outputs of a request."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        """Set memory type and device. Raises TypeError."""
        self.memory_type = arguments.member(preferred_memory_type, "PreferredMemory(): type", MemoryType)
        self.device_id = arguments.integer(preferred_device_id, "PreferredMemory(): device", *_INT64)


_IN_HOST_MEMORY = PreferredMemory(TRITONSERVER_MEMORY_CPU)


class InferenceTrace:
    """Trace of a request; pass it to the requests that this one makes."""

    __slots__ = ("_context", "_handle")

    def __init__(self, handle: int, context: str = "") -> None:
        self._handle = handle
        self._context = context

    def get_context(self) -> str | None:
        """Return the OpenTelemetry context as JSON; None in other trace modes."""
        return self._context or None


class RequestExecution(Protocol):
    """The execution that a received request belongs to."""

    def sender(self, request: InferenceRequest) -> InferenceResponseSender:
        """Return the response sender of a request."""

    def is_cancelled(self, handle: int) -> bool:
        """Return whether a request was cancelled."""


class InferenceRequest:
    """A request received by the model, or one made by it to another model."""

    # what most received requests share
    _execution: RequestExecution | None = None
    _handle = 0
    _model_name = ""
    _model_version = -1
    _preferred = _IN_HOST_MEMORY
    _release = TRITONSERVER_REQUEST_RELEASE_ALL
    _sender: InferenceResponseSender | None = None
    _trace: InferenceTrace | None = None

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
        preferred_memory: PreferredMemory = _IN_HOST_MEMORY,
        trace: InferenceTrace | None = None,
        parameters: Any = None,
    ) -> None:
        """Create a request. Raises TypeError, TritonModelException."""
        self._model_name = arguments.text(model_name, "InferenceRequest(): model_name")
        self._request_id = arguments.text(request_id, "InferenceRequest(): request_id")
        self._inputs = tensors_of(
            inputs,
            "InferenceRequest(): inputs",
            f"Input tensor for request with id '{self._request_id}' and model name '{self._model_name}' "
            "should not be empty.",
        )
        self._outputs = arguments.texts(requested_output_names, "InferenceRequest(): requested_output_names")
        self._correlation_id = _check_correlation_id(correlation_id)
        self._model_version = arguments.integer(model_version, "InferenceRequest(): model_version", *_INT64)
        self._timeout = arguments.integer(timeout, "InferenceRequest(): timeout", *_UINT64)
        if not isinstance(preferred_memory, PreferredMemory):
            raise arguments.wrong(
                preferred_memory, "InferenceRequest(): preferred_memory", "a PreferredMemory"
            )
        if not isinstance(trace, (InferenceTrace, type(None))):
            raise arguments.wrong(trace, "InferenceRequest(): trace", "an InferenceTrace")
        self._preferred = preferred_memory
        self._trace = trace
        self._parameters = parameters_of(parameters)
        self.set_flags(flags)

    @classmethod
    def _from_frame(
        cls, handle: int, request_id: str, head: Head, inputs: list[Tensor], execution: RequestExecution
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
        if "context" in extra:
            self._trace = InferenceTrace(handle, extra["context"])
        return self

    def inputs(self) -> list[Tensor]:
        """Return all input tensors."""
        return self._inputs

    def request_id(self) -> str:
        """Return the id given by the client."""
        return self._request_id

    def correlation_id(self) -> CorrelationId:
        """Return the sequence id; 0 if none."""
        return self._correlation_id

    def flags(self) -> int:
        """Return the sequence start and end flags."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the sequence start and end flags. Raises TypeError."""
        self._flags = arguments.integer(flags, "flags", *_UINT32)

    def timeout(self) -> int:
        """Return the timeout in microseconds; 0 if none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the request parameters as a JSON object."""
        return self._parameters

    def requested_output_names(self) -> set[str]:
        """Return the names of the requested outputs."""
        return set(self._outputs)

    def preferred_memory(self) -> PreferredMemory:
        """Return the preferred memory for outputs."""
        return self._preferred

    def model_name(self) -> str:
        """Return the name of the requested model."""
        return self._model_name

    def model_version(self) -> int:
        """Return the version of the requested model; -1 is the latest."""
        return self._model_version

    def trace(self) -> InferenceTrace:
        """Return the trace to pass to requests that this one makes."""
        return self._trace or InferenceTrace(self._handle)

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the request's response sender. Raises TritonModelException."""
        return self._require_execution().sender(self)

    def is_cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        return self._require_execution().is_cancelled(self._handle)

    def set_release_flags(self, flags: int) -> None:
        """Set RELEASE_RESCHEDULE to receive the request again. Raises TypeError, TritonModelException."""
        self._require_execution()
        flags = arguments.integer(flags, "set_release_flags(): flags", *_UINT32)
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"there are no release flags {flags}")
        self._release = flags

    def exec(self, decoupled: bool = False) -> Any:
        """Run another model; return its response, or for a decoupled model an iterator of responses."""
        decoupled = arguments.flag(decoupled, "exec(): decoupled")
        return RUNTIME.server.infer(self, decoupled=decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """Run another model as `exec` does; awaitable."""
        return RUNTIME.server.infer_async(
            self, decoupled=arguments.flag(decoupled, "async_exec(): decoupled")
        )

    def _require_execution(self) -> RequestExecution:
        if self._execution is None:
            raise TritonModelException("only a request that came to the model's execute function has this")
        return self._execution


def _check_correlation_id(value: Any) -> CorrelationId:
    if isinstance(value, str):
        return value
    if value is not None and not hasattr(type(value), "__index__"):
        raise TritonModelException("Correlation ID must be integer or string")
    return arguments.integer(value, "InferenceRequest(): correlation_id", *_UINT64)
