"""What a dispatcher knows of an instance."""

from typing import Protocol

from tpx.errors import TpxError
from tpx.serving.batch import Batch


class Instance(Protocol):
    """Takes batches from an inbox from `begin` on until, told to leave, it gets a None."""

    name: str
    leaving: bool
    """It is the one, or one of those, that a None in the inbox is for."""

    def begin(self) -> None:
        """Take batches from now on; what warms it up came before."""

    @property
    def alive(self) -> bool:
        """It takes batches now: one whose process has died does not, until it is restarted."""

    def warm(self, batch: Batch) -> TpxError | None:
        """Compute a batch that nobody waits for, in the calling thread, while there is no other work. Returns
        what went wrong."""

    @property
    def drained(self) -> bool:
        """Whether `close` may be called without anybody waiting on the event loop for what it holds."""

    def close(self) -> None:
        """Wait until it has taken the None, if it has begun; not on the event loop."""
