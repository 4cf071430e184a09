"""What is measured: a model on a server, connected, described, and with its requests made."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpx.perf.clients.base import Client, Control
from tpx.perf.clients.model import ModelDescription, ServerDescription
from tpx.perf.inputs.conversations import Conversation
from tpx.perf.inputs.feed import Feed
from tpx.perf.members import Member
from tpx.perf.metrics.scraper import Scraper
from tpx.perf.recording import Recorder
from tpx.perf.results import DataSummary
from tpx.perf.server_statistics import Statistics

if TYPE_CHECKING:
    from tpx.perf.capture import Capture
    from tpx.perf.load.workers import WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Open until `close`; serves any number of levels, one after the other, over the same connections."""

    url: str
    protocol: str
    server: ServerDescription
    model: ModelDescription
    version: str
    batch_size: int
    client: Client
    control: Control
    feed: Feed
    statistics: Statistics
    data: DataSummary = field(default_factory=DataSummary)
    sequences: bool = False
    """Whether its requests are those of sequences."""
    notices: tuple[str, ...] = ()
    """What was assumed about the model's inputs."""
    members: tuple[Member, ...] = ()
    """Where several models are measured at once; `model` is the first of them then."""
    workers: "WorkerPool | None" = None
    """The processes that send; None where this one does."""
    timestamps_ns: tuple[int, ...] = ()
    """When each step of the data is to be sent, from the beginning; only `--fixed-schedule` asks."""
    conversations: tuple[Conversation, ...] = ()
    """What the steps of the data are turns of, with `--session-concurrency`."""

    capture: "Capture | None" = None
    """Keeps what requests carried and what came back; None where nobody wants it."""
    recorder: Recorder | None = None
    """Takes each level's records."""
    metrics: Scraper | None = None
    """Looks at the server's metrics beside the load."""

    async def close(self) -> None:
        await self.client.close()
        await self.control.close()
