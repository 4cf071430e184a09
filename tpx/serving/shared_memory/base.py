"""The seam between the registered regions and the kinds of memory."""

from typing import Protocol

from tpx.protocol.tensors import Buffer


class Memory(Protocol):
    """The bytes of a region, open until the last reference is gone. Ranges lie within it."""

    def read(self, offset: int, size: int) -> Buffer:
        """A copy of `size` bytes. Raises InvalidRequest where they are not there any more."""

    def write(self, offset: int, data: Buffer) -> None:
        """Put bytes there. Raises InvalidRequest where there is no room any more."""
