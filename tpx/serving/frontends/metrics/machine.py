"""Probes of the machine and of this process, and the thread that samples them.

They read the kernel's files: importing psutil would take 10 ms of a server's start.
"""

import logging
import mmap
import os
import resource
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tpx.serving.frontends.metrics.text import Family, MetricsProbe, single

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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
        memory_bytes, available_bytes = read_memory_bytes()
        return (
            Family(
                name="nv_cpu_utilization",
                kind="gauge",
                help="CPU utilization rate [0.0 - 1.0]",
                lines=() if self._utilization is None else (("", self._utilization),),
            ),
            single("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory_bytes),
            single(
                "nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory_bytes - available_bytes
            ),
        )

    def close(self) -> None:
        """Do nothing: the probe holds no resources."""


def read_cpu_seconds() -> tuple[float, float]:
    """Return busy and total CPU seconds of all cores since boot."""
    with Path("/proc/stat").open() as file:
        # user, nice, system, idle, iowait, irq, softirq, steal; guests, which follow, are part of user
        ticks = [int(word) for word in file.readline().split()[1:9]]
    idle, total = sum(ticks[3:5]), sum(ticks)
    return (total - idle) / _TICKS_PER_S, total / _TICKS_PER_S


def read_memory_bytes() -> tuple[int, int]:
    """Return the total and the available memory of the machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return kilobytes["MemTotal"] << 10, kilobytes["MemAvailable"] << 10


def count_descriptors(folder: Path) -> int:
    """Return how many entries `/proc/PID/fd` has, since Linux 6.2 its size: listing 10,000 takes 17 ms."""
    return folder.stat().st_size or sum(1 for _ in folder.iterdir())


class ProcessMetrics:
    """Memory, CPU time and file descriptors of the server process, without its children."""

    def __init__(self) -> None:
        # the 22nd field, behind a name that may contain spaces: its start after boot
        start_ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / _TICKS_PER_S
        self._started_s = time.time_ns() / 1e9 - age_s

    def sample(self) -> Sequence[Family]:
        pages = Path("/proc/self/statm").read_text().split()
        virtual, resident = (int(count) * mmap.PAGESIZE for count in pages[:2])
        cpu_s, descriptors = time.process_time(), count_descriptors(Path("/proc/self/fd"))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            single("process_cpu_seconds_total", "CPU time of the server, in seconds", cpu_s, "counter"),
            single("process_resident_memory_bytes", "Resident memory of the server, in bytes", resident),
            single("process_virtual_memory_bytes", "Virtual memory of the server, in bytes", virtual),
            single("process_open_fds", "Open file descriptors of the server", descriptors),
            single("process_max_fds", "Most file descriptors that the server may open", most),
            single(
                "process_start_time_seconds",
                "When the server started, in seconds since the epoch",
                self._started_s,
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
