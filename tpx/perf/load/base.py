"""The seam between measuring and loading: something that keeps a server under load and records each
request."""

from collections.abc import Mapping
from typing import Protocol

from tpx.perf.clients.base import Failure
from tpx.perf.records import Records


class Load(Protocol):
    """A load at one level. `records` grows while it runs."""

    records: Records

    @property
    def failed(self) -> int:
        """Requests that did not succeed, so far."""

    @property
    def processor_ns(self) -> int:
        """Time on a processor of what sends, so far; where several do, their mean."""

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        """Send requests until stopped, or `count` of them; a schedule counts from `origin_ns`, 0 is now."""

    async def finished(self) -> None:
        """Return when `count` requests were sent and each has ended."""

    async def settled(self, until_ns: int) -> None:
        """Return when `records` has every request that ended until then. Raises MeasurementError where what
        sends has gone."""

    async def stop(self, patience_s: float) -> None:
        """Send no more, wait for the answers that are due, and give up the rest after `patience_s`."""

    def failures(self) -> Mapping[int, Failure]:
        """The first failure of each status that occurred."""
