"""What several responses to a request add to a level: when each came, and how many there were."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tpx.perf.arrivals import Times
from tpx.perf.latency import summarize
from tpx.perf.records import SUCCESS, Records
from tpx.perf.results import Streaming

QUARTILES = (25.0, 75.0)
"""Beside the usual percentiles: Model Analyzer has objectives of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResponseTimes:
    """Of some rows, when each response came: those of row i are `times_ns[starts[i]:starts[i + 1]]`."""

    times_ns: Times
    starts: Times

    def first_ns(self) -> Times:
        """The first response of each row that has one."""
        return self.times_ns[self.starts[:-1][np.diff(self.starts) > 0]]

    def gaps_ns(self) -> Times:
        """Between two responses of the same request, all of them."""
        if not len(self.times_ns):
            return self.times_ns
        gaps = np.diff(self.times_ns)
        borders = self.starts[1:-1]
        inside = np.ones(len(gaps), dtype=bool)
        inside[borders[(borders > 0) & (borders <= len(gaps))] - 1] = False
        return gaps[inside]

    def only(self, rows: npt.NDArray[np.bool_]) -> "ResponseTimes":
        """Those of some of the rows."""
        counts = np.diff(self.starts)
        return ResponseTimes(
            times_ns=self.times_ns[np.repeat(rows, counts)],
            starts=np.concatenate(([0], np.cumsum(counts[rows]))),
        )


def response_times(records: Records, numbers: range, begins: int | None = None) -> ResponseTimes:
    """Those of some rows of `records`; `begins` is how many responses the rows before had, where that is
    known."""
    rows = records.between(numbers.start, numbers.stop)
    if not len(records.arrivals):
        came = rows["responses"] > 0
        starts = np.concatenate(([0], np.cumsum(came)))
        return ResponseTimes(times_ns=rows["end_ns"][came], starts=starts)
    if begins is None:
        begins = int(records.between(0, numbers.start)["responses"].sum())
    starts = np.concatenate(([0], np.cumsum(rows["responses"])))
    return ResponseTimes(times_ns=records.arrivals.times(begins, begins + int(starts[-1])), starts=starts)


def streaming_figures(records: Records, numbers: range, duration_ns: int) -> Streaming | None:
    """The figures of the successful requests among some rows; None where none had a response."""
    rows = records.since(numbers.start)[: len(numbers)]
    times = response_times(records, numbers)
    good = rows["status"] == SUCCESS
    answered = good & (rows["responses"] > 0)
    if not answered.any():
        return None
    # a failed request may have had responses before it failed
    of_good = times.only(good)
    gaps = of_good.gaps_ns()
    units = int(records.arrivals.units(numbers.start, numbers.stop)[good].sum())
    responses = len(of_good.times_ns)
    return Streaming(
        responses=responses,
        responses_per_s=responses * 1e9 / max(duration_ns, 1),
        first_response=summarize(of_good.first_ns() - rows["intended_ns"][answered], QUARTILES),
        inter_response=summarize(gaps, QUARTILES) if len(gaps) else None,
        units=units,
        units_per_s=units * 1e9 / max(duration_ns, 1),
    )
