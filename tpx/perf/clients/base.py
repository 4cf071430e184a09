"""The seams between load and transport: a client that carries prepared requests, and a control that asks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tpx.errors import WireError
from tpx.perf.clients.model import ModelCounters, ModelDescription, ModelKey, ServerDescription
from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import Parameter, RequestedOutput, SharedMemoryRange

LOST = -1
"""The status of a request whose connection broke."""
TIMED_OUT = -2
"""The status of a request that took longer than the timeout."""
MISMATCH = -4
"""The status of a request whose response is not what was expected."""


class Response(Protocol):
    """The part of every answer that the load reads."""

    status: int
    first_byte_ns: int
    end_ns: int
    """When its last byte was read, as near to the system call as the transport knows."""


class StreamedResponse(Response, Protocol):
    """The end of a request that may have had several responses; `first_byte_ns` is the first one's time."""

    end_ns: int
    """When the last response came that is more than the news that nothing follows."""
    arrivals: Sequence[int]
    """When each of the responses came."""
    units: int
    """The content of the responses in the service's own unit, such as tokens; 0 where it has none."""


Prepared = Any
"""A request in its transport's final form; made by `Client.prepare`, opaque to everyone else."""

OnResponse = Callable[[Any], None]
"""Called with a Response from within the read that completed it."""


class Slot:
    """A connection slot: at most one request in flight, on a connection of its own or one that slots share.

    `send` is the connection's own method, so that nothing of ours stands between the load and the wire;
    what it returns names the request for `Client.renew`. When the connection breaks the client calls
    `on_lost`; the owner then asks the client to renew the slot.
    """

    __slots__ = ("connection", "on_lost", "send")

    def __init__(self, connection: Any, send: Callable[[Prepared, OnResponse], Any]) -> None:
        self.connection = connection
        self.send = send
        self.on_lost: Callable[[WireError], None] = nobody_listens


def nobody_listens(_: WireError) -> None:
    """Ignore a lost connection: a slot between two levels has no owner."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The name under which a failed request is counted, and the server's words."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields:
    """The members of a request beside its tensors.

    The tensors of `shared_inputs` lie in registered regions: their own data is not sent. No `outputs` asks
    for all of them. `priority` and `timeout_us` 0 are not sent; neither is `sequence` 0, nor its flags.
    """

    id: str = ""
    sequence: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    outputs: tuple[RequestedOutput, ...] = ()
    shared_inputs: Mapping[str, SharedMemoryRange] = field(default_factory=dict)

    @property
    def all_parameters(self) -> dict[str, Parameter]:
        """The request's parameters as both transports send them."""
        out: dict[str, Parameter] = dict(self.parameters)
        if self.sequence:
            out["sequence_id"] = self.sequence
            out["sequence_start"] = self.sequence_start
            out["sequence_end"] = self.sequence_end
        if self.priority:
            out["priority"] = self.priority
        if self.timeout_us:
            out["timeout"] = self.timeout_us
        return out


PLAIN = RequestFields()
"""A request that says nothing beside its tensors."""


class Template(Protocol):
    """A request of a sequence that is encoded but for the sequence's id."""

    def fill(self, sequence: int) -> Prepared:
        """The request for a sequence; cheap enough for every request."""


class Writer(Protocol):
    """Makes the requests that a Client carries, before they are sent."""

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> Prepared:
        """The complete request for these inputs, made once and sent many times."""

    async def template(self, tensors: Sequence[Tensor], fields: RequestFields) -> Template:
        """A request of whatever sequence; `fields` has its flags, its `sequence` does not matter."""


class Client(Writer, Protocol):
    """Carries requests to one server over one transport."""

    success: int
    """The status of a response that succeeded."""
    streams: bool
    """A request may have several responses: the answer is a StreamedResponse."""
    slots_per_connection: float
    """How many slots share a connection; infinite where their number does not add connections."""

    async def open(self, count: int) -> Sequence[Slot]:
        """Exactly `count` slots: connections are added, kept, or closed."""

    async def renew(self, slot: Slot, call: object) -> None:
        """Make a slot able to send again whose request `call` was lost or given up: no answer to it comes."""

    def failure(self, response: Any) -> Failure:
        """Return the failure that an unsuccessful response tells."""

    async def close(self) -> None:
        """Close every connection."""


class Control(Protocol):
    """Asks a server about itself and one model, on a connection apart from the load."""

    async def server(self) -> ServerDescription: ...

    async def model(self, model: ModelKey) -> ModelDescription:
        """Raises MeasurementError with the server's words where it does not know the model."""

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:
        """Counters of the loaded versions; of all models where the name is empty."""

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        """Change the server's trace settings. Raises MeasurementError with its words where it does not."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Shared memory that a server can open: a file of /dev/shm by its `key`, or a GPU's memory by the
    `handle` of CUDA's interprocess communication."""

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
    """A control that registers shared memory. Raises MeasurementError with the server's words."""

    async def register(self, region: Region) -> None: ...

    async def unregister(self, region: Region) -> None:
        """Unregister this region only, never all."""


MOST_CHARACTERS = 2000


def brief(words: Buffer | str) -> str:
    """Return a message on one line, no longer than a person reads, for logs."""
    text = words if isinstance(words, str) else bytes(words[:MOST_CHARACTERS]).decode("utf-8", "replace")
    text = " ".join(text.split())
    return text if len(words) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}... ({len(words)} in all)"
