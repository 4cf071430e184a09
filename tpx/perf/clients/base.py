"""The seams between load and transport: a client that carries prepared requests, and a control that asks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tpx.errors import WireError
from tpx.perf.clients.model import ModelCounters, ModelDescription, ModelKey, ServerDescription
from tpx.protocol.tensors import Tensor

LOST = -1
"""The status of a request whose connection broke."""
TIMED_OUT = -2
"""The status of a request that took longer than the timeout."""


class Response(Protocol):
    """What the load reads of every answer."""

    status: int
    first_byte_ns: int


Prepared = Any
"""A request in its transport's final form; made by `Client.prepare`, opaque to everyone else."""

OnResponse = Callable[[Any], None]
"""Called with a Response from within the read that completed it."""


class Lane:
    """Room for one request in flight, on a connection of its own or on one that several lanes share.

    `send` is the connection's own method, so that nothing of ours stands between the load and the wire;
    what it returns names the request for `Client.renew`. When the connection breaks the client calls
    `on_lost`; the owner then asks the client to renew the lane.
    """

    __slots__ = ("connection", "on_lost", "send")

    def __init__(self, connection: Any, send: Callable[[Prepared, OnResponse], Any]) -> None:
        self.connection = connection
        self.send = send
        self.on_lost: Callable[[WireError], None] = nobody_listens


def nobody_listens(_: WireError) -> None:
    """A lane between two levels has no owner."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed request is counted as, and what the server said."""

    code: str
    message: str


class Client(Protocol):
    """Carries requests to one server over one transport."""

    success: int
    """The status of a response that succeeded."""

    async def prepare(self, tensors: Sequence[Tensor]) -> Prepared:
        """The complete request for these inputs, made once and sent many times."""

    async def open(self, count: int) -> Sequence[Lane]:
        """Exactly `count` lanes: connections are added, kept, or closed."""

    async def renew(self, lane: Lane, call: object) -> None:
        """Make a lane able to send again after its request `call` was lost or given up; no answer to it
        comes."""

    def failure(self, response: Any) -> Failure:
        """What an unsuccessful response says."""

    async def close(self) -> None:
        """Close every connection."""


class Control(Protocol):
    """Asks a server about itself and one model, on a connection apart from the load."""

    async def server(self) -> ServerDescription: ...

    async def model(self, model: ModelKey) -> ModelDescription:
        """Raises MeasurementError with the server's words where it does not know the model."""

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:
        """Counters of the loaded versions; of all models where the name is empty."""

    async def close(self) -> None: ...
