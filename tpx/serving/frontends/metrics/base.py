"""The seams of the metrics page."""

from collections.abc import Sequence
from typing import Protocol

from tpx.serving.frontends.metrics.text import Family


class Source(Protocol):
    """Something that has families for the page. Asked on the event loop: it answers from memory."""

    def families(self) -> Sequence[Family]: ...


class Probe(Protocol):
    """Something of the machine that is measured every now and then, by one thread."""

    def sample(self) -> Sequence[Family]:
        """Measure now."""

    def close(self) -> None: ...
