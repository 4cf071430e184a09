"""Measure the machine at intervals, in a thread: NVML may take milliseconds, too long for the event loop."""

import logging
import threading
from collections.abc import Sequence

from tpx.serving.frontends.metrics.text import Family, MetricsProbe

log = logging.getLogger(__name__)

_SOON_S = 0.1
"""Pause before the second sample, the first that knows utilization."""


class Sampler:
    """Keeps the latest sample of each probe for the page."""

    def __init__(
        self, probes: Sequence[MetricsProbe], interval_s: float, stopping: threading.Event | None = None
    ) -> None:
        """`stopping` is waited for between samples, and set by `stop`."""
        self._probes = list(probes)
        self._interval_s = interval_s
        self._latest: Sequence[Family] = ()
        self._stopping = stopping or threading.Event()
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
            except OSError as exc:  # no free descriptor, for example: the next sample may succeed
                log.warning("%s has no sample: %s", type(probe).__name__, exc)
            except Exception:  # one worker's loop: the other probes go on
                log.exception("%s failed and is not asked again", type(probe).__name__)
                self._probes.remove(probe)
                probe.close()
        self._latest = families
