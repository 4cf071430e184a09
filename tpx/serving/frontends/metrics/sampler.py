"""Measures the machine at intervals, in a thread: NVML may take milliseconds, and the event loop has no such
time."""

import logging
import threading
from collections.abc import Sequence

from tpx.serving.frontends.metrics.text import Family, Probe

log = logging.getLogger(__name__)

_SOON_S = 0.1
"""Before the second sample: utilization is known only then."""


class Sampler:
    """Keeps the latest sample of each probe for the page."""

    def __init__(self, probes: Sequence[Probe], interval_s: float) -> None:
        self._probes = list(probes)
        self._interval_s = interval_s
        self._latest: Sequence[Family] = ()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="metrics-sampler", daemon=True)

    def start(self) -> None:
        """Measure once, then in the thread."""
        if self._probes:
            self._sample()
            self._thread.start()

    def stop(self) -> None:
        """End the thread and close the probes."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        for probe in self._probes:
            probe.close()
        self._probes = []

    def families(self) -> Sequence[Family]:
        return self._latest

    def _work(self) -> None:
        pause = min(self._interval_s, _SOON_S)
        while not self._stopping.wait(pause):
            pause = self._interval_s
            self._sample()

    def _sample(self) -> None:
        families: list[Family] = []
        for probe in list(self._probes):
            try:
                families += probe.sample()
            except OSError as exc:  # of a process without a free descriptor, say: the next time may do better
                log.warning("%s has no sample: %s", type(probe).__name__, exc)
            except Exception:  # one worker's loop: the other probes go on
                log.exception("%s failed and is not asked again", type(probe).__name__)
                self._probes.remove(probe)
                probe.close()
        self._latest = families
