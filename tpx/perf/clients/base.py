"""The seams between load and transport: `Client` sends prepared requests, `Control` queries the server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tpx.errors import WireError
from tpx.perf.clients.model import ModelDescription, ModelKey, ServerDescription, Snapshot
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import Parameter, RequestedOutput, SharedMemoryRange

LOST = -1
"""Status of a request whose connection broke."""
TIMED_OUT = -2
"""Status of a request that exceeded its timeout."""
MISMATCH = -4
"""Status of a request whose response differs from the expected one."""


Usage = tuple[int, int, int, int]
"""Tokens of the prompt, of it those that were cached, tokens of reasoning, and the time of the first output
that is not reasoning; 0 for what a service does not tell."""
NO_USAGE: Usage = (0, 0, 0, 0)


class Response(Protocol):
    """The part of every response that the load reads."""

    status: int
    first_byte_ns: int
    end_ns: int
    """Time the last byte was read, taken as close to the system call as the transport allows."""


class StreamedResponse(Response, Protocol):
    """The end of a request that may have several responses; `first_byte_ns` is the time of the first."""

    end_ns: int
    """Arrival time of the last response, not counting an empty final one."""
    arrivals: Sequence[int]
    """Arrival time of each response."""
    units: int
    """Size of the responses in the service's own unit, such as tokens; 0 if it has none."""
    usage: Usage


Prepared = Any
"""A request in its transport's final form; made by `Client.prepare`, opaque to other code."""

OnResponse = Callable[[Any], None]
"""Callback for a Response, called from within the read that completed it."""
Check = Callable[[int, int, Any], str]
"""Inspects a successful response, given the row and the step of its request; returns a description of the
error, or an empty string."""


class Slot:
    """A connection slot: at most one request in flight, on its own connection or one shared between
    slots.

    `send` is the connection's own method, so that no code of ours runs between the load and the wire;
    its return value identifies the request to `Client.renew`. When the connection breaks, the client
    calls `on_lost`; the owner then asks the client to renew the slot.
    """

    __slots__ = ("connection", "on_lost", "send", "unanswered")

    def __init__(self, connection: Any, send: Callable[[Prepared, OnResponse], Any]) -> None:
        self.connection = connection
        self.send = send
        self.on_lost: Callable[[WireError], None] = ignore_loss
        self.unanswered = False
        """True if the lost connection had served earlier requests and sent no byte in answer to the last."""


def ignore_loss(_: WireError) -> None:
    """Ignore a lost connection: between two levels a slot has no owner."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The name under which a failed request is counted, and the server's message."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields:
    """The fields of a request besides its tensors.

    Tensors named in `shared_inputs` are in registered regions: their data is not sent. Empty `outputs`
    requests all outputs. A `sequence` of 0 is not sent, and neither are its flags.
    """

    sequence: int = 0
    sequence_start: bool = False
    sequence_end: bool = False
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[RequestedOutput, ...] = ()
    shared_inputs: Mapping[str, SharedMemoryRange] = field(default_factory=dict)

    @property
    def all_parameters(self) -> dict[str, Parameter]:
        """Request parameters in the form that both transports send."""
        out: dict[str, Parameter] = dict(self.parameters)
        if self.sequence:
            out["sequence_id"] = self.sequence
            out["sequence_start"] = self.sequence_start
            out["sequence_end"] = self.sequence_end
        return out


PLAIN = RequestFields()
"""Fields of a request that carries only tensors."""


class Template(Protocol):
    """A sequence request that is encoded except for the sequence id."""

    def fill(self, sequence: int) -> Prepared:
        """Return the request for a sequence; cheap enough to call for every request."""


class Writer(Protocol):
    """Encodes the requests that a Client sends, before the load starts."""

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> Prepared:
        """Return the complete request for these inputs, encoded once and sent many times."""

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:
        """Return the template of a request; `fields` has its sequence flags, its `sequence` is ignored."""


class Client(Writer, Protocol):
    """Sends requests to one server over one transport."""

    success: int
    """Status of a successful response."""
    streams: bool
    """True if a request may have several responses: the response is then a StreamedResponse."""
    slots_per_connection: float
    """Slots that share a connection; infinite if more slots do not add connections."""

    async def open(self, count: int) -> Sequence[Slot]:
        """Return exactly `count` slots, opening or closing connections as needed."""

    async def renew(self, slot: Slot, call: object) -> None:
        """Make a slot usable again after its request `call` was lost or abandoned; no response follows."""

    def failure(self, response: Any) -> Failure:
        """Return the failure that an unsuccessful response describes."""

    async def close(self) -> None:
        """Close every connection."""


class Control(Protocol):
    """Queries a server about itself and one model, on a connection separate from the load."""

    async def server(self) -> ServerDescription: ...

    async def model(self, model: ModelKey) -> ModelDescription:
        """Return a model's description. Raises MeasurementError with the server's message."""

    async def statistics(self, model: ModelKey) -> Snapshot:
        """Return the counters of the loaded versions; of all models if the name is empty."""

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        """Change the server's trace settings. Raises MeasurementError with its message if it refuses."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Memory that a server can open: a file in /dev/shm by `key`, or GPU memory by a CUDA IPC `handle`."""

    name: str
    byte_size: int
    key: str = ""
    handle: bytes = b""
    device: int = 0

    @property
    def kind(self) -> str:
        return "cuda" if self.handle else "system"


@runtime_checkable
class Registrar(Protocol):
    """A control that registers shared memory. Raises MeasurementError with the server's message."""

    async def register(self, region: Region) -> None: ...

    async def unregister(self, region: Region) -> None:
        """Unregister this region only, never all regions."""


MOST_CHARACTERS = 2000


def brief(words: Buffer | str) -> str:
    """Return a message on one line for logs, truncated to MOST_CHARACTERS."""
    text = words if isinstance(words, str) else bytes(words[:MOST_CHARACTERS]).decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(words) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}... ({len(words)} in all)"
