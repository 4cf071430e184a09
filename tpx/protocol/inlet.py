"""How a connection reads: as bytes while its messages are small, into buffers from its first large one on.

To be handed bytes costs one call less for each read, which counts where messages are small; to name the
buffer that the event loop reads into saves a copy of each byte, which counts where they are large. Clients
tend to send requests of one kind, so a connection changes over once, and stays.
"""

import asyncio
from abc import abstractmethod

LARGE_BYTES = 64 << 10
"""What is still to come of a message that is worth a buffer of its own."""


class Inlet(asyncio.Protocol):
    """The reading half of a connection, whatever its protocol."""

    _reads_into_buffers = False

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """What one read brought, unless it went into the landing."""

    @abstractmethod
    def landing(self) -> memoryview | None:
        """Where the next bytes belong, if that is known already."""

    @abstractmethod
    def landed(self, count: int) -> None:
        """`count` bytes were read into the landing."""

    def read_into_buffers(self, transport: asyncio.Transport, scratch: memoryview) -> None:
        """Read what has a landing right there from now on, and all else through `scratch`."""
        if not self._reads_into_buffers:
            self._reads_into_buffers = True
            transport.set_protocol(_IntoBuffers(self, scratch))


class _IntoBuffers(asyncio.BufferedProtocol):
    """Stands before a connection whose messages are large."""

    def __init__(self, connection: Inlet, scratch: memoryview) -> None:
        self._connection = connection
        self._scratch = scratch
        self._landing: memoryview | None = None
        self.eof_received = connection.eof_received  # type: ignore[method-assign]
        self.connection_lost = connection.connection_lost  # type: ignore[method-assign]
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        self._landing = landing = self._connection.landing()
        return self._scratch if landing is None else landing

    def buffer_updated(self, nbytes: int) -> None:
        if self._landing is None:
            self._connection.data_received(bytes(self._scratch[:nbytes]))
        else:
            self._connection.landed(nbytes)
