"""Responses as models make them, and the senders that send them from any thread, at any time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Protocol

from tpx.serving.backends.python.worker import arguments
from tpx.serving.backends.python.worker.errors import TritonError, TritonModelException
from tpx.serving.backends.python.worker.tensor import Tensor

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class InferenceResponse:
    """Output tensors, or an error."""

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(self, output_tensors: Any = (), error: Any = None, parameters: Any = None) -> None:
        """Create a response. Raises TypeError, TritonModelException."""
        self._outputs = tensors_of(
            output_tensors,
            "InferenceResponse(): output_tensors",
            "Output tensor for inference response should not be empty.",
        )
        if error is not None and not isinstance(error, TritonError):
            raise arguments.wrong(error, "InferenceResponse(): error", "a TritonError")
        self._error: TritonError | None = error
        self._parameters = "{}" if parameters is None else parameters_of(parameters, check=_check_sendable)

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors; none if there is an error."""
        return self._outputs

    def has_error(self) -> bool:
        """Return whether there is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error, None if there is none."""
        return self._error

    def parameters(self) -> str:
        """Return the response parameters as a JSON object."""
        return self._parameters


class Responder(Protocol):
    """Sends the responses of requests, which it knows by their handles."""

    def respond(self, handle: int, response: InferenceResponse | None, *, final: bool) -> None:
        """Send a response of a request; blocks while the client is far behind."""

    def abandoned(self, handle: int) -> None:
        """Handle a response sender that was dropped before its final flag."""

    def is_cancelled(self, handle: int) -> bool:
        """Return whether a request was cancelled."""


class InferenceResponseSender:
    """Sender of one request's responses. It may outlive `execute` and be used by any thread.

    A sender dropped before its final flag sends it then, so that the client does not wait forever.
    """

    def __init__(self, responder: Responder, handle: int, *, decoupled: bool) -> None:
        self._responder = responder
        self._handle = handle
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._sent = 0
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both. Raises TypeError, TritonModelException."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise arguments.wrong(response, "send(): response", "an InferenceResponse")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if flags != 0 and not final:
            arguments.integer(flags, "send(): flags", 0, 2**32 - 1)
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and not final:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        with self._lock:
            if self._closed or not self._decoupled:
                self._check_response(response, final=final)
            self._closed = final
            self._sent += response is not None
        self._responder.respond(self._handle, response, final=final)

    def is_cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        return self._responder.is_cancelled(self._handle)

    def _check_response(self, response: Any, *, final: bool) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if response is not None and self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is None and final and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                "response."
            )

    def _close(self) -> None:
        """Close the sender: the model has failed and the server responds."""
        self._closed = True

    def __del__(self) -> None:
        if not self._closed:
            self._responder.abandoned(self._handle)


def tensors_of(value: Any, argument: str, none: str) -> list[Tensor]:
    """Return tensors as a list. Raises TypeError, and TritonModelException(none) for None among them."""
    tensors = arguments.sequence(value, argument)
    for tensor in tensors:
        if tensor is None:
            raise TritonModelException(none)
        if not isinstance(tensor, Tensor):
            raise arguments.wrong(tensor, f"each of {argument}", "a Tensor")
    return tensors


def parameters_of(parameters: Any, check: Callable[[str, object], None] | None = None) -> str:
    """Return parameters as JSON after passing each to `check`. Raises TritonModelException."""
    if parameters is None:
        return "{}"
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to have type dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (str, int, bool, float)):
            raise TritonModelException(
                f"Expect parameters values to have type bool/int/str, found type {type(value)}"
            )
        if check is not None:
            check(key, value)
    return json.dumps(parameters)


def _check_sendable(key: str, value: object) -> None:
    """Check that both protocols can carry a response parameter. Raises TritonModelException."""
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise TritonModelException(f"parameter '{key}' has an integer of more than 64 bits")
    for text in (key, value):
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise TritonModelException(f"parameter {key!a} must be Unicode text, got {text!a}") from None
