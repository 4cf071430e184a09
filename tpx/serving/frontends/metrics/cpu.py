"""CPU and memory of the whole machine, which is what Triton reports."""

from collections.abc import Sequence

import psutil

from tpx.serving.frontends.metrics.text import Family


class CpuProbe:
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
