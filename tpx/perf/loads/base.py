"""The seam between measuring and loading: keeping a server under load and recording each request."""

from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from tpx.perf.clients.base import Client, Failure
from tpx.perf.inputs.feed import Conversation, Feed
from tpx.perf.levels import Level
from tpx.perf.plan import ALL, Share
from tpx.perf.records import Records
from tpx.perf.settings import LevelSettings


class Load(Protocol):
    """A load at one level. `records` grows while it runs."""

    records: Records

    @property
    def failed(self) -> int:
        """Requests that did not succeed, so far."""

    @property
    def processor_ns(self) -> int:
        """Time on a processor of what sends, so far; where several do, their mean."""

    @property
    def skipped(self) -> int:
        """Requests that an open loop left out because they were late, so far."""

    @property
    def connections(self) -> int:
        """How many connection slots there are by now."""

    @property
    def unfinished(self) -> Set[int]:
        """Sequences that were ended before their time; complete once the load is stopped."""

    def start(self, count: int | None = None, origin_ns: int = 0) -> None:
        """Send requests until stopped, or `count` of them; a schedule counts from `origin_ns`, 0 is now."""

    async def finished(self) -> None:
        """Return when `count` requests were sent and each has ended."""

    async def settled(self, until_ns: int) -> None:
        """Return when `records` has what ended until then. Raises MeasurementError if a sender has gone."""

    async def stop(self, patience_s: float) -> None:
        """Send no more, wait for the answers that are due, and give up the rest after `patience_s`."""

    def failures(self) -> Mapping[int, Failure]:
        """The first failure of each status that occurred."""


class Loadable(Protocol):
    """A client and what it sends, which a load is put on."""

    @property
    def client(self) -> Client: ...

    @property
    def feed(self) -> Feed: ...

    @property
    def timestamps_ns(self) -> tuple[int, ...]:
        """Return when each step of a fixed schedule is due, from the beginning of the run."""

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        """Return the conversations in the order in which they begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """A load that is to be opened: of a level, or one worker's share of it."""

    level: Level
    settings: LevelSettings
    share: Share = ALL
    warming: bool = False
    """The load warms up and is not measured: of a fixed schedule, the first steps."""


async def open_load(target: Loadable, asked: LoadRequest) -> Load:
    """Make a load whose connections are open. Raises WireError where the server takes no connections."""
    target.feed.begin(asked.level, asked.share)
    module, _, function = asked.level.kind.opener.partition(":")
    opener: Callable[[Loadable, LoadRequest], Awaitable[Load]] = getattr(
        import_module(f"tpx.perf.loads.{module}"), function
    )
    return await opener(target, asked)
