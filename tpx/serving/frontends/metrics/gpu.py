"""GPU metrics through NVML (nvidia-ml-py, imported as pynvml). The import is lazy; without an NVIDIA
driver there are no GPU families.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tpx.serving.frontends.metrics.text import Family, Kind, labels, single

log = logging.getLogger(__name__)
Nvml = Any
"""The untyped module pynvml."""


class _Device(NamedTuple):
    handle: object
    uuid: str
    energy_at_start_mj: int | None


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One family, and the function that reads its value from NVML."""

    name: str
    help: str
    read: Callable[[Nvml, _Device], float | None]
    kind: Kind = "gauge"


def open_gpus() -> "GpuMetrics | None":
    """Return the GPUs allowed by CUDA_VISIBLE_DEVICES, or None if there are none or NVML is missing."""
    try:
        import pynvml
    except ImportError:
        log.debug("no GPU metrics: nvidia-ml-py is not installed (pip install 'tpx[gpu]')")
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        log.debug("no GPU metrics: %s", exc)
        return None
    probe = GpuMetrics(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not probe.uuids:
        probe.close()
        return None
    return probe


class GpuMetrics:
    """Reads metrics of each device; values a device does not support are omitted."""

    def __init__(self, nvml: Nvml, visible: str | None) -> None:
        """`nvml` is the initialized pynvml; `visible` is CUDA_VISIBLE_DEVICES."""
        self._nvml = nvml
        self._devices = [self._describe_device(handle) for handle in self._find_visible(visible)]
        self.uuids: Mapping[int, str] = {index: device.uuid for index, device in enumerate(self._devices)}
        """UUIDs by CUDA device number."""

    def sample(self) -> Sequence[Family]:
        return [
            *(
                Family(name=each.name, kind=each.kind, help=each.help, lines=self._read_lines(each))
                for each in _READINGS
            ),
            *_NO_PINNED_MEMORY,
        ]

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _read_lines(self, reading: _Reading) -> list[tuple[str, float]]:
        lines = []
        for device in self._devices:
            try:
                value = reading.read(self._nvml, device)
            except self._nvml.NVMLError as exc:
                log.debug("%s of %s: %s", reading.name, device.uuid, exc)
                continue
            if value is not None:
                lines.append((f"{{{labels({'gpu_uuid': device.uuid})}}}", value))
        return lines

    def _describe_device(self, handle: object) -> _Device:
        try:
            energy: int | None = self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except self._nvml.NVMLError:
            energy = None
        return _Device(handle, self._get_uuid(handle), energy)

    def _get_uuid(self, handle: object) -> str:
        uuid = self._nvml.nvmlDeviceGetUUID(handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def _find_visible(self, visible: str | None) -> list[object]:
        """Return handles in CUDA's order: by number or UUID prefix, up to the first invalid entry."""
        everything = [
            self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())
        ]
        if visible is None:
            return everything
        chosen = []
        for word in visible.split(","):
            found = self._find_device(word.strip(), everything)
            if found is None:
                break
            chosen.append(found)
        return chosen

    def _find_device(self, word: str, handles: Sequence[object]) -> object:
        if word.isascii() and word.isdigit():
            return handles[int(word)] if int(word) < len(handles) else None
        matching = [handle for handle in handles if word and self._get_uuid(handle).startswith(word)]
        return matching[0] if len(matching) == 1 else None


def _read_utilization(nvml: Nvml, device: _Device) -> float:
    return float(nvml.nvmlDeviceGetUtilizationRates(device.handle).gpu / 100)


def _read_memory(nvml: Nvml, device: _Device) -> Any:
    """Return memory usage. Version 2 excludes memory reserved by the driver, as nvidia-smi does."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(device.handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetMemoryInfo(device.handle)


def _read_joules(nvml: Nvml, device: _Device) -> float | None:
    if device.energy_at_start_mj is None:
        return None
    now_mj: int = nvml.nvmlDeviceGetTotalEnergyConsumption(device.handle)
    return (now_mj - device.energy_at_start_mj) / 1000


_READINGS = (
    _Reading(name="nv_gpu_utilization", help="GPU utilization rate [0.0 - 1.0)", read=_read_utilization),
    _Reading(
        name="nv_gpu_memory_total_bytes",
        help="GPU total memory, in bytes",
        read=lambda nvml, device: int(_read_memory(nvml, device).total),
    ),
    _Reading(
        name="nv_gpu_memory_used_bytes",
        help="GPU used memory, in bytes",
        read=lambda nvml, device: int(_read_memory(nvml, device).used),
    ),
    _Reading(
        name="nv_gpu_power_usage",
        help="GPU power usage in watts",
        read=lambda nvml, device: nvml.nvmlDeviceGetPowerUsage(device.handle) / 1000,
    ),
    _Reading(
        name="nv_gpu_power_limit",
        help="GPU power management limit in watts",
        read=lambda nvml, device: nvml.nvmlDeviceGetPowerManagementLimit(device.handle) / 1000,
    ),
    _Reading(
        name="nv_energy_consumption",
        kind="counter",
        help="GPU energy consumption in joules since the Triton Server started",
        read=_read_joules,
    ),
)

_NO_PINNED_MEMORY = (
    single("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0),
    single("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0),
)
"""Families of a pinned memory pool, which tpx does not have; dashboards expect the names."""
