"""Probes of the machine and of this process, and the thread that samples them."""

import logging
import resource
import threading
from collections.abc import Sequence

import psutil

from tpx.serving.frontends.metrics.text import Family, MetricsProbe, single


class CpuMetrics:
    """CPU and memory of the machine. Utilization is since the last sample, so the first has none."""

    def __init__(self) -> None:
        self._before = read_cpu_seconds()
        self._utilization: float | None = None

    def sample(self) -> Sequence[Family]:
        busy, total = read_cpu_seconds()
        before_busy, before_whole = self._before
        if total > before_whole:
            self._utilization = min(1.0, max(0.0, (busy - before_busy) / (total - before_whole)))
            self._before = (busy, total)
        memory = psutil.virtual_memory()
        return (
            Family(
                name="nv_cpu_utilization",
                kind="gauge",
                help="CPU utilization rate [0.0 - 1.0]",
                lines=() if self._utilization is None else (("", self._utilization),),
            ),
            single("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
            single(
                "nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory.total - memory.available
            ),
        )

    def close(self) -> None:
        """Do nothing: the probe holds no resources."""


def read_cpu_seconds() -> tuple[float, float]:
    """Return busy and total CPU seconds of all cores since boot. User time already includes guests."""
    times = psutil.cpu_times()._asdict()
    total = sum(spent for name, spent in times.items() if not name.startswith("guest"))
    return total - times["idle"] - times.get("iowait", 0.0), total


class ProcessMetrics:
    """Memory, CPU time and file descriptors of the server process, without its children."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def sample(self) -> Sequence[Family]:
        with self._process.oneshot():
            memory = self._process.memory_info()
            times = self._process.cpu_times()
            cpu_s = times.user + times.system
            descriptors = self._process.num_fds()
            started_s = self._process.create_time()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            single("process_cpu_seconds_total", "CPU time of the server, in seconds", cpu_s, "counter"),
            single("process_resident_memory_bytes", "Resident memory of the server, in bytes", memory.rss),
            single("process_virtual_memory_bytes", "Virtual memory of the server, in bytes", memory.vms),
            single("process_open_fds", "Open file descriptors of the server", descriptors),
            single("process_max_fds", "Most file descriptors that the server may open", most),
            single(
                "process_start_time_seconds", "When the server started, in seconds since the epoch", started_s
            ),
        )

    def close(self) -> None:
        """Do nothing: the probe holds no resources."""


log = logging.getLogger(__name__)

_SOON_S = 0.1
"""Pause before the second sample, the first with a utilization."""


class Sampler:
    """Keeps the latest sample of each probe for the page."""

    def __init__(
        self, probes: Sequence[MetricsProbe], interval_s: float, stopping: threading.Event | None = None
    ) -> None:
        """`stopping` interrupts the pauses between samples; `stop` sets it."""
        self._probes = list(probes)
        self._interval_s = interval_s
        self._latest: Sequence[Family] = ()
        self._stopping = stopping or threading.Event()
        self._thread = threading.Thread(target=self._sample_loop, name="metrics-sampler", daemon=True)

    def start(self) -> None:
        """Sample once, then start the thread."""
        if self._probes:
            self._sample()
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and close the probes."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        for probe in self._probes:
            probe.close()
        self._probes = []

    def families(self) -> Sequence[Family]:
        return self._latest

    def _sample_loop(self) -> None:
        pause = min(self._interval_s, _SOON_S)
        while not self._stopping.wait(pause):
            pause = self._interval_s
            self._sample()

    def _sample(self) -> None:
        families: list[Family] = []
        for probe in list(self._probes):
            try:
                families += probe.sample()
            except OSError as exc:  # e.g. no free file descriptor: the next sample may succeed
                log.warning("%s has no sample: %s", type(probe).__name__, exc)
            except Exception:  # drop this probe, keep the others
                log.exception("%s failed and is not queried again", type(probe).__name__)
                self._probes.remove(probe)
                probe.close()
        self._latest = families
