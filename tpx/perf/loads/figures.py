"""What the rows of an open loop say that those of a closed one cannot."""

from typing import Protocol, runtime_checkable

import numpy as np

from tpx.perf.latency import summarize
from tpx.perf.loads.base import Load
from tpx.perf.plan import LATE_NS
from tpx.perf.records import Rows, succeeded
from tpx.perf.results import OpenLoop


@runtime_checkable
class KeepsPace(Protocol):
    """A load that may skip requests and open connections."""

    @property
    def skipped(self) -> int: ...

    @property
    def connections(self) -> int: ...


def open_loop_figures(rows: Rows, duration_ns: int, load: Load) -> OpenLoop | None:
    """The figures of the rows of a stretch of `duration_ns`; None where no request succeeded."""
    good = succeeded(rows)
    if not len(good):
        return None
    slip = rows["start_ns"] - rows["intended_ns"]
    paced = load if isinstance(load, KeepsPace) else None
    return OpenLoop(
        service_latency=summarize(good["end_ns"] - good["start_ns"]),
        slip=summarize(slip),
        delayed=int(np.count_nonzero(slip > LATE_NS)),
        sent_per_s=len(rows) * 1e9 / max(duration_ns, 1),
        skipped=paced.skipped if paced else 0,
        connections=paced.connections if paced else 0,
    )
