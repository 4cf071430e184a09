"""The seam of the runners: who has a server with a variant on it and can put it under load."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tpx.analyzer.results.measurement import Configuration, Load, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server that a runner uses at present, as far as this machine can see it."""

    pid: int | None
    """None where the process is not one of this machine; then nothing of it can be watched here."""
    log_tail: tuple[str, ...] = ()
    metrics_url: str = ""
    """Its metrics page, empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """How a configuration came onto the server."""

    how: Literal["loaded", "started", "restarted", "found"]
    """`loaded` on the server that ran already; `found`: nothing had to be done."""
    why: str = ""
    """Of a restart: what made it necessary."""
    duration_ns: int = 0


class Runner(Protocol):
    """Prepares one configuration after another and measures it; after a TpxError it can go on."""

    @property
    def server(self) -> Server | None: ...

    async def default_config(self, model: str) -> dict[str, Any]:
        """JSON of the model's own configuration as the server completes it."""
        ...

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation | None:
        """Have this configuration ready, whose files lie in `directory`; None is a server without a model.

        Returns how it was done, None where nothing stands behind the runner. Raises ServerLost when the
        server is gone for good, another TpxError when it does not take this configuration.
        """

    async def measure(self, load: Load) -> Measurement:
        """Put the prepared configuration under load until the figures are stable or time is up."""
        ...

    async def close(self) -> None: ...
