"""Options that `tpx perf compare` and `tpx analyze compare` have in common: what counts as a difference."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.options.measuring import parse_share
from tpx.report.files import json_text, write_text

if TYPE_CHECKING:
    from tpx.perf.answers.compare import Strictness


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """How sure a difference has to be, how large, and where all of them are written."""

    alpha: float = option(0.05, "how often a difference may be found where there is none")
    min_effect: float = option(
        0.02, "differences below this share are none, however sure", metavar="P%", parse=parse_share
    )
    json: Path | None = option(None, "write the differences as JSON", metavar="FILE")

    @property
    def strictness(self) -> "Strictness":
        from tpx.perf.answers.compare import (
            Strictness,
        )  # late: whoever only needs the exit status pays nothing

        return Strictness(alpha=self.alpha, min_effect=self.min_effect)

    def check_strictness(self) -> None:
        """Raise UsageError, in perf_analyzer's words, for a value out of range."""
        if not 0 < self.alpha < 0.5:
            raise UsageError("Failed to parse --alpha. The value must be in range (0, 0.5).")
        if not 0 <= self.min_effect < 1:
            raise UsageError("Failed to parse --min-effect. The value must be >= 0% and below 100%.")

    def write(self, content: dict[str, Any]) -> None:
        """Write the document of the differences, where one is asked for. Raises MeasurementError."""
        if self.json is not None:
            write_text(self.json, json_text(content))
