"""The options that say what load is put on it."""

from dataclasses import dataclass
from typing import Annotated

from tpx.errors import UsageError
from tpx.options import Option
from tpx.perf.levels import parse_concurrency
from tpx.perf.settings import LevelRange, refuse

_LOAD = "Load"
ONE_REQUEST = LevelRange(given=False)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Levels, and how many requests at each."""

    concurrency_range: Annotated[
        LevelRange,
        Option(
            "requests kept in flight: a range, a list 1,2,8, or geometric 1:64:x2; "
            "an end of 0 goes on until the latency threshold is met",
            (),
            _LOAD,
            "START:END:STEP",
            parse=parse_concurrency,
        ),
    ] = ONE_REQUEST
    request_count: Annotated[int, Option("send exactly this many requests a level; 0: off", (), _LOAD)] = 0
    warmup_request_count: Annotated[
        int, Option("requests sent before each level and not measured", (), _LOAD)
    ] = 0

    def check_load(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.warmup_request_count < 0:
            refuse("--warmup-request-count", "The value must be >= 0.")
        if self.request_count < 0:
            refuse("--request-count", "The value must be > 0.")
        if 0 < self.request_count < (self.concurrency_range.highest or self.concurrency_range.start):
            raise UsageError("--request-count can not be less than concurrency")
