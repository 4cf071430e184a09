"""What a dispatcher knows of an instance."""

from typing import Protocol

from tpx.errors import TpxError
from tpx.serving.batch import Batch


class Instance(Protocol):
    """Takes batches from an inbox until a None comes."""

    name: str

    @property
    def alive(self) -> bool:
        """It takes batches now: one whose process has died does not, until it is restarted."""

    def warm(self, batch: Batch) -> TpxError | None:
        """Compute a batch that nobody waits for, in the calling thread, while there is no other work. Returns
        what went wrong."""

    def close(self) -> None:
        """Wait until it has taken the None; not on the event loop."""
