"""The seam of the runners: who has a server with a variant on it and can put it under load."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tpx.analyzer.results.measurement import Configuration, Load, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server that a runner uses at present, as far as this machine can see it."""

    pid: int | None
    """None where the process is not one of this machine; then nothing of it can be watched here."""
    log_tail: tuple[str, ...] = ()


class Runner(Protocol):
    """Prepares one configuration after another and measures it; after a TpxError it can go on."""

    @property
    def server(self) -> Server | None: ...

    async def default_config(self, model: str) -> dict[str, Any]:
        """JSON of the model's own configuration as the server completes it."""
        ...

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:
        """Have this configuration ready, whose files lie in `directory`; None is a server without a model."""

    async def measure(self, load: Load) -> Measurement:
        """Put the prepared configuration under load until the figures are stable or time is up."""
        ...

    async def close(self) -> None: ...
