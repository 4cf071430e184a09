"""This process, by the names that Prometheus' client libraries give it."""

import resource
from collections.abc import Sequence

import psutil

from tpx.serving.frontends.metrics.text import Family, Kind


class ProcessProbe:
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
