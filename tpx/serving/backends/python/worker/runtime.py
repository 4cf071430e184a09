"""State behind the functions of pb_utils; there is one model per process."""

from __future__ import annotations

from typing import Any, Protocol

from tpx.serving.backends.python.worker.errors import TritonModelException


class Server(Protocol):
    """The server, as a model asks it for services."""

    @property
    def free_bytes(self) -> int:
        """Bytes of shared memory for tensors to the server."""

    def infer(self, request: Any, *, decoupled: bool) -> object:
        """Implement InferenceRequest.exec."""

    def infer_async(self, request: Any, *, decoupled: bool) -> object:
        """Implement InferenceRequest.async_exec."""

    def ask(self, verb: str, *, blame: str = "", **words: object) -> object:
        """Ask for a service and return its result.

        Raises TritonModelException, whose message begins with `blame`.
        """

    def tell(self, verb: str, *, number: int = 0, **words: object) -> None:
        """Ask for a service; a request without a number is not answered."""


class Runtime:
    """The server of this process, once it is connected, and the directory of its model."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self.model_directory = ""

    def start(self, server: Server, model_directory: str) -> None:
        """Connect the functions of pb_utils to the server."""
        self._server = server
        self.model_directory = model_directory

    @property
    def server(self) -> Server:
        """Return the server. Raises TritonModelException outside of one."""
        if self._server is None:
            raise TritonModelException("this needs a server: the model was imported by something else")
        return self._server

    @property
    def connected(self) -> bool:
        return self._server is not None


RUNTIME = Runtime()
