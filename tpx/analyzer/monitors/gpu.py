"""GPUs by NVML (package nvidia-ml-py, imported as pynvml), where both the package and a driver are there."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tpx.analyzer.results.measurement import GpuUse


@dataclass(slots=True)
class _Seen:
    handle: Any
    uuid: str
    used_bytes: int = 0
    total_bytes: int = 0
    utilizations: list[float] = field(default_factory=list)
    powers_w: list[float] = field(default_factory=list)


class GpuProbe:
    """All GPUs of this machine: the most memory used on each, mean utilization and power."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._seen = [self._open(index) for index in range(nvml.nvmlDeviceGetCount())]

    def sample(self) -> None:
        """Utilization is not there on a partitioned GPU, power not on some cards: absent, not zero."""
        for gpu in self._seen:
            with suppress(self._nvml.NVMLError):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
                gpu.used_bytes = max(gpu.used_bytes, int(memory.used))
                gpu.total_bytes = int(memory.total)
            with suppress(self._nvml.NVMLError):
                gpu.utilizations.append(float(self._nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu))
            with suppress(self._nvml.NVMLError):
                gpu.powers_w.append(self._nvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1000)

    def memory(self) -> None:
        return None

    def gpus(self) -> tuple[GpuUse, ...]:
        return tuple(
            GpuUse(
                uuid=gpu.uuid,
                used_bytes=gpu.used_bytes,
                total_bytes=gpu.total_bytes,
                utilization_percent=_mean(gpu.utilizations),
                power_w=_mean(gpu.powers_w),
            )
            for gpu in self._seen
        )

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _open(self, index: int) -> _Seen:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return _Seen(handle=handle, uuid=str(self._nvml.nvmlDeviceGetUUID(handle)))


def open_gpu_probe() -> GpuProbe | None:
    """A probe of this machine's GPUs, or None without a GPU, a driver or the package `nvidia-ml-py`."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return GpuProbe(pynvml) if pynvml.nvmlDeviceGetCount() else None
    except pynvml.NVMLError:
        return None


def gpu_names() -> list[str]:
    """The GPUs of this machine, for the provenance of a report; empty without any."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return []
    return names


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
