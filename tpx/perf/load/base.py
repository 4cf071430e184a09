"""The seam between measuring and loading: something that keeps a server under load and records each
request."""

from collections.abc import Mapping
from typing import Protocol

from tpx.perf.clients.base import Failure
from tpx.perf.records import Records


class Load(Protocol):
    """A load at one level. `records` grows while it runs."""

    records: Records
    failed: int
    """Requests that did not succeed, so far."""

    def start(self, count: int | None = None) -> None:
        """Send requests until stopped, or `count` of them."""

    async def finished(self) -> None:
        """Return when `count` requests were sent and each has ended."""

    async def stop(self, patience_s: float) -> None:
        """Send no more, wait for the answers that are due, and give up the rest after `patience_s`."""

    def failures(self) -> Mapping[int, Failure]:
        """The first failure of each status that occurred."""
