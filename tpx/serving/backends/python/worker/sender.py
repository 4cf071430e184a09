"""Response senders: send the responses of a request, from any thread, at any time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tpx.serving.backends.python.worker import arguments
from tpx.serving.backends.python.worker.errors import TritonModelException
from tpx.serving.backends.python.worker.request import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponse

if TYPE_CHECKING:
    from tpx.serving.backends.python.worker.execution import Execution

_FINAL = TRITONSERVER_RESPONSE_COMPLETE_FINAL


class InferenceResponseSender:
    """Sender of one request's responses. It may outlive `execute` and be used by any thread.

    A sender dropped before its final flag sends it then, so that the client does not wait forever.
    """

    def __init__(self, execution: Execution, handle: int, *, decoupled: bool) -> None:
        self._execution = execution
        self._handle = handle
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._sent = 0
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, the final flag, or both. Raises TypeError, TritonModelException."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise arguments.wrong(response, "send(): response", "an InferenceResponse")
        if flags not in (0, _FINAL):
            arguments.integer(flags, "send(): flags", 0, 2**32 - 1)
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags != _FINAL:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        with self._lock:
            self._check(response, flags)
            self._closed = flags == _FINAL
            self._sent += response is not None
        self._execution.respond(self._handle, response, final=flags == _FINAL)

    def is_cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        return self._execution.is_cancelled(self._handle)

    def _check(self, response: Any, flags: int) -> None:
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if self._decoupled:
            return
        if response is not None and self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if response is None and flags == _FINAL and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a "
                "response."
            )

    def _close(self) -> None:
        """Close the sender: the model has failed and the server responds."""
        self._closed = True

    def __del__(self) -> None:
        if not self._closed:
            self._execution.abandoned(self._handle)
