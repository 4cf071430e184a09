"""The seam between a dispatcher and what computes batches: a thread, the event loop, or a process."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from tpx.errors import TpxError
from tpx.serving.batch import Batch, EarlyResponse, Stacking
from tpx.serving.request import InferRequest


class CompletionSink(Protocol):
    """Gives batches to instances and receives the results; every method is called on the event loop."""

    def computed(self, batch: Batch) -> None:
        """Handle the end of a batch: `released` and `answered` in one call."""

    def answered(self, batch: Batch) -> None:
        """Deliver a finished batch's responses that were not `responded`; not called for decoupled models."""

    def released(self, batch: Batch) -> None:
        """Give the instance its next batch. This one may still be unanswered."""

    def responded(self, early: EarlyResponse) -> None:
        """Deliver a response to one request before its batch has ended."""

    def streamed(
        self, request: InferRequest, pieces: list[bytes], index: int, begun_ns: int, now_ns: int
    ) -> None:
        """Deliver responses to a request that has `pieces`, from the `index`-th on; made since `begun_ns`."""

    def requeue(self, request: InferRequest) -> None:
        """Queue a request again because the model rescheduled it; its batch is already released."""

    def returned(self, batch: Batch) -> None:
        """Return a batch that the exited process had not started; another instance may compute it."""

    def dispatch(self) -> None:
        """Hand out batches again, because the instance has become alive or has failed for good."""


class Instance(Protocol):
    """Computes batches from `begin` until it has finished those it was given before `leave`.

    The order of calls: `start`, `warm`, `begin`, `submit` any number of times, `leave`, `close`.
    """

    name: str

    @property
    def compute(self) -> Callable[[Batch], None] | None:
        """Return a function that computes a batch in the calling thread while all instances are idle;
        None if impossible.
        """

    @property
    def alive(self) -> bool:
        """Return whether it accepts batches; an instance whose process died does so again after a restart."""

    @property
    def failure(self) -> str:
        """Return why it will never be alive again; empty while it may."""

    @property
    def held(self) -> int:
        """Return how many batches it holds; 0 if instances share a queue."""

    @property
    def depth(self) -> int:
        """Return how many batches keep it busy, including the one in computation."""

    @property
    def abandoned(self) -> int:
        """Return how many requests of cancelled clients it holds that may never be answered."""

    @property
    def has_readiness_hook(self) -> bool:
        """Return whether `ready` asks the model."""

    @property
    def left(self) -> bool:
        """Return whether `leave` was called and `close` no longer needs the event loop."""

    def start(self) -> None:
        """Wait until it can compute. Raises LoadError. Not on the event loop."""

    def warm(self, batch: Batch) -> TpxError | None:
        """Compute a warm-up batch; return the error, if any. Not on the event loop."""

    def begin(self, sink: CompletionSink) -> None:
        """Accept batches from now on; `sink` receives the results. May be called from any thread."""

    def submit(self, batch: Batch) -> None:
        """Compute a batch; instances that share a queue leave it to the first that is free."""

    def leave(self) -> None:
        """Accept no further batches. May be called from any thread."""

    async def ready(self) -> bool:
        """Return whether the model reports ready."""

    def close(self) -> None:
        """Finish the batches it holds and end; not on the event loop."""


@runtime_checkable
class RemoteInstance(Instance, Protocol):
    """An instance in another process, which an open model creates itself."""

    def use(self, stacking: Stacking) -> None:
        """Set how requests are stacked into batches; called before `start`."""
