"""Probes of the machine: its CPU and memory, as Triton reports them, and those of this process."""

import resource
from collections.abc import Sequence

import psutil

from tpx.serving.frontends.metrics.text import Family, Kind


class CpuMetrics:
    """Utilization is over the time since the sample before; the first one knows none."""

    def __init__(self) -> None:
        self._before = _busy_and_all()
        self._utilization: float | None = None

    def sample(self) -> Sequence[Family]:
        busy, whole = _busy_and_all()
        before_busy, before_whole = self._before
        if whole > before_whole:
            self._utilization = min(1.0, max(0.0, (busy - before_busy) / (whole - before_whole)))
            self._before = (busy, whole)
        memory = psutil.virtual_memory()
        return (
            Family(
                name="nv_cpu_utilization",
                kind="gauge",
                help="CPU utilization rate [0.0 - 1.0]",
                lines=() if self._utilization is None else (("", self._utilization),),
            ),
            Family(
                name="nv_cpu_memory_total_bytes",
                kind="gauge",
                help="CPU total memory (RAM), in bytes",
                lines=(("", memory.total),),
            ),
            Family(
                name="nv_cpu_memory_used_bytes",
                kind="gauge",
                help="CPU used memory (RAM), in bytes",
                lines=(("", memory.total - memory.available),),
            ),
        )

    def close(self) -> None:
        """Nothing is held."""


def _busy_and_all() -> tuple[float, float]:
    """Seconds of all cores since the machine started. Guests are part of user time already."""
    times = psutil.cpu_times()._asdict()
    whole = sum(spent for name, spent in times.items() if not name.startswith("guest"))
    return whole - times["idle"] - times.get("iowait", 0.0), whole


class ProcessMetrics:
    """Memory, CPU time and descriptors of the server's own process; its children are not in it."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def sample(self) -> Sequence[Family]:
        with self._process.oneshot():
            memory = self._process.memory_info()
            times = self._process.cpu_times()
            descriptors = self._process.num_fds()
            started_s = self._process.create_time()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            _one(
                "process_cpu_seconds_total",
                "CPU time of the server, in seconds",
                times.user + times.system,
                "counter",
            ),
            _one("process_resident_memory_bytes", "Resident memory of the server, in bytes", memory.rss),
            _one("process_virtual_memory_bytes", "Virtual memory of the server, in bytes", memory.vms),
            _one("process_open_fds", "Open file descriptors of the server", descriptors),
            _one("process_max_fds", "Most file descriptors that the server may open", most),
            _one(
                "process_start_time_seconds", "When the server started, in seconds since the epoch", started_s
            ),
        )

    def close(self) -> None:
        """Nothing is held."""


def _one(name: str, text: str, value: float, kind: Kind = "gauge") -> Family:
    return Family(name=name, kind=kind, help=text, lines=(("", value),))
