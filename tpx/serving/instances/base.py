"""What a dispatcher knows of an instance."""

from typing import Protocol


class Instance(Protocol):
    """Takes batches from an inbox until a None comes."""

    name: str

    def close(self) -> None:
        """Wait until it has taken the None; not on the event loop."""
