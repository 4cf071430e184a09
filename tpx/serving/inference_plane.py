"""Inference as frontends see it: the data plane, its stand-in in a frontend process, and their fast paths."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tpx.protocol.tensors import Buffer, Tensor
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.deferred import Tasks
from tpx.serving.logs import LogControl
from tpx.serving.offload import Offload
from tpx.serving.request import Bound, InferRequest, RequestHead, RequestTrace
from tpx.serving.signature import Signature
from tpx.serving.tracing.trace import Caller
from tpx.serving.turn import Turn


class WireTrace(RequestTrace, Protocol):
    """A trace as frontends see it; they add the times of receiving and sending."""

    def stamp(self, name: str, ns: int = 0) -> None: ...
    def begin(self, request: InferRequest) -> None: ...
    def end(self) -> None: ...


class TraceSource(Protocol):
    """Selects the requests to trace."""

    @property
    def on(self) -> bool:
        """Return False while no request can be traced."""

    @property
    def accepts_callers(self) -> bool:
        """True if a request's headers can ask for a trace."""

    def sample(self, model: str, caller: Caller | None = None) -> WireTrace | None:
        """Return the trace of a request, None if it has none."""

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever `on` changes."""


class FastPath(Protocol):
    """Fast path for requests with one head: computes them without scheduling while the model is idle.

    The tensors of a request are contiguous. A request that it does not take must take the regular path.
    """

    most: int
    """Maximum number of requests computed at once, by `gather`; if it is 1, by `compute_one`."""

    def compute_one(self, tensors: Buffer) -> Sequence[bytes] | None:
        """Compute a request that was just received; return the data of its outputs, or None if it is not
        taken.
        """

    def gather(self, tensors: Buffer, reply: Callable[[Sequence[bytes] | None], None]) -> bool:
        """Compute a request together with those that are read in the same iteration of the event loop; then
        call `reply` with the data of its outputs, or with None if it is not taken. Return False if it is not
        taken now.
        """

    def compute(
        self,
        tensors: Sequence[Buffer],
        arrived_ns: int,
        turn: Turn,
        answer: Callable[[Sequence[memoryview], int, int, int], None],
    ) -> int:
        """Compute requests received at `arrived_ns` until the turn is over; return their number. The others
        are not taken, or wait for another turn.

        `answer` is called for each batch with the memory of its outputs, which it must copy
        (`split_outputs`), the index of its first request, their number, and the time in ns.
        """

    def outputs(self) -> list[Tensor]:
        """Return a request's outputs, with any data, once a request was computed; shapes are always the
        same.
        """


def split_outputs(outputs: Sequence[memoryview], count: int) -> Sequence[Sequence[bytes]]:
    """Return copies of the outputs of a batch for each of its `count` requests, which have the same size."""
    columns = []
    for memory in outputs:
        data, size = bytes(memory), len(memory) // count  # slices of bytes are cheaper than those of a view
        columns.append([data[at : at + size] for at in range(0, size * count, size)])
    return list(zip(*columns, strict=True))


class RemoteResponse(Protocol):
    """Response template: the outputs of a response without their data. Equal responses share one."""

    def tensors(self, payload: Buffer) -> list[Tensor]:
        """Return the outputs, with their data in `payload`."""


_Context = TypeVar("_Context")
_Answered = TypeVar("_Answered", contravariant=True)


class RemoteAnswers(Protocol[_Answered]):
    """Receives the responses to requests with one head that another process computes."""

    def answered(self, context: _Answered, response: RemoteResponse, payload: Buffer) -> None:
        """Handle the only response to a request, which has the outputs that the client expects."""

    def request(self, context: _Answered) -> InferRequest:
        """Return the request, for an error or another response that `answered` does not take."""


class RemotePath(Protocol):
    """Fast path for requests with one head that another process computes."""

    def send(
        self, tensors: Buffer, answers: RemoteAnswers[_Context], context: _Context
    ) -> Callable[[], None] | None:
        """Send a request. Returns a function that cancels it, or None if it must take the regular path."""


class ServerLoad(NamedTuple):
    """Numbers of inference requests of a server, those to ensembles not counted: their steps are."""

    in_flight: int
    pending: int


class InferencePlane(Protocol):
    """Inference as frontends see it: the data plane, or its stand-in in a frontend process."""

    max_string_elements: int
    logs: LogControl
    offload: Offload
    stopping: bool

    @property
    def generation(self) -> int: ...
    def server_load(self) -> ServerLoad: ...
    @property
    def tracer(self) -> TraceSource: ...
    @property
    def tasks(self) -> Tasks: ...
    def signature(self, name: str, version: str) -> Signature: ...
    def bind(self, request: DecodedRequest) -> Bound: ...
    def infer(self, request: InferRequest) -> None: ...
    def fast_path(self, head: RequestHead) -> FastPath | None: ...
    def remote_path(self, head: RequestHead) -> RemotePath | None: ...
