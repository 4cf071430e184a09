"""The seam between a dispatcher and what computes batches: a thread, the event loop, or another process."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from tpx.errors import TpxError
from tpx.serving.backends.contract import CompletionSink
from tpx.serving.batch import Batch


class Instance(Protocol):
    """Computes batches from `begin` until, told to leave, it has finished those that it was given.

    The order of calls: `start`, `warm`, `begin`, `submit` again and again, `leave`, `close`.
    """

    name: str

    @property
    def compute(self) -> Callable[[Batch], None] | None:
        """Return what computes a batch in the calling thread, while no instance has work, if that can be."""

    @property
    def alive(self) -> bool:
        """Return whether it takes batches: an instance whose process has died does when it is restarted."""

    @property
    def failure(self) -> str:
        """Return why it will not be alive again; empty while it may be."""

    @property
    def held(self) -> int:
        """Return how many batches it was given and still holds; 0 where instances share a queue of them."""

    @property
    def depth(self) -> int:
        """Return how many batches keep it busy, the one that it computes among them."""

    @property
    def abandoned(self) -> int:
        """Return how many requests it holds that may never be answered, and that nobody waits for."""

    @property
    def has_readiness_hook(self) -> bool:
        """Return whether `ready` asks the model itself."""

    @property
    def left(self) -> bool:
        """Return whether it was told to leave, and `close` needs nothing of the event loop any more."""

    def start(self) -> None:
        """Wait until it can compute. Raises LoadError. Not on the event loop."""

    def warm(self, batch: Batch) -> TpxError | None:
        """Compute a batch of no client, and return what went wrong. Not on the event loop."""

    def begin(self, sink: CompletionSink) -> None:
        """Take batches from now on; `sink` gets what comes of them. May be called from any thread."""

    def submit(self, batch: Batch) -> None:
        """Compute a batch, or have an instance do it that shares the queue and is free earlier."""

    def leave(self) -> None:
        """Take no further batches. May be called from any thread."""

    async def ready(self) -> bool:
        """Return whether it can answer."""

    def close(self) -> None:
        """End it, after what it holds; not on the event loop."""


def close_together(instances: Sequence[Instance]) -> None:
    """End instances at the same time, because a process may take long to finalize. Blocks."""
    if len(instances) == 1:
        instances[0].close()
    elif instances:
        with ThreadPoolExecutor(len(instances)) as pool:
            list(pool.map(lambda instance: instance.close(), instances))
