"""Whether what is under load still answers: of a server that has gone, no count would ever be full."""

import numpy as np

from tpx.perf.loads.base import Load
from tpx.perf.records import SUCCESS

HOPELESS_FAILURES = 50
"""So many failures without one success end a level before its window is over."""
LOST_FAILURES = 10
LOST_NS = 10_000_000_000
"""So many failures in a row, over so long, end it where there were successes before."""


class Pulse:
    """Follows the rows of a load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._seen = 0
        self._failing = 0
        self._first_ns = self._last_ns = 0
        """When the first and the last of the failures ended that no success has followed."""

    @property
    def lost(self) -> str:
        """Why nothing more is to be waited for; empty where requests succeed."""
        self._look()
        if self._failing == self._seen:
            return f"all {self._failing} requests failed" if self._failing >= HOPELESS_FAILURES else ""
        lasted_ns = self._last_ns - self._first_ns
        if self._failing < LOST_FAILURES or lasted_ns < LOST_NS:
            return ""
        return f"the last {self._failing} requests failed, over {lasted_ns / 1e9:.0f} s"

    def _look(self) -> None:
        rows = self._load.records.since(self._seen)
        if not len(rows):
            return
        self._seen += len(rows)
        successes = np.flatnonzero(rows["status"] == SUCCESS)
        if len(successes):
            self._failing = 0
            rows = rows[int(successes[-1]) + 1 :]
        if len(rows):
            self._first_ns = self._first_ns if self._failing else int(rows["end_ns"][0])
            self._last_ns = int(rows["end_ns"][-1])
            self._failing += len(rows)
