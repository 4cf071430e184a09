"""GPU families, from a stand-in that answers as nvidia-ml-py does, and from NVML where there is one."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serving.fakes import config_of
from tests.serving.frontends.metrics.pages import Page, parse
from tpx.serving.frontends.metrics.gpu import GpuMetrics, open_gpus
from tpx.serving.frontends.metrics.models import gpu_of
from tpx.serving.frontends.metrics.text import render

HELPS = {
    "nv_gpu_utilization": "GPU utilization rate [0.0 - 1.0)",
    "nv_gpu_memory_total_bytes": "GPU total memory, in bytes",
    "nv_gpu_memory_used_bytes": "GPU used memory, in bytes",
    "nv_gpu_power_usage": "GPU power usage in watts",
    "nv_gpu_power_limit": "GPU power management limit in watts",
    "nv_energy_consumption": "GPU energy consumption in joules since the Triton Server started",
    "nv_pinned_memory_pool_total_bytes": "Pinned memory pool total memory size, in bytes",
    "nv_pinned_memory_pool_used_bytes": "Pinned memory pool used memory size, in bytes",
}


class FakeNvmlError(Exception):
    """What NVML raises."""


@dataclass
class FakeGpu:
    uuid: str
    energy_mj: int = 5_000_000
    lacks: set[str] = field(default_factory=set)
    """Functions that this device does not support."""


class FakeNvml:
    """The functions of pynvml that are used, over these devices."""

    NVMLError = FakeNvmlError
    nvmlMemory_v2 = 0x02000028  # noqa: N815 (NVML's name)

    def __init__(self, gpus: Sequence[FakeGpu]) -> None:
        self.gpus = list(gpus)
        self.shut_down = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def call(gpu: FakeGpu, **options: Any) -> Any:
            if name in gpu.lacks or (options and "version" in gpu.lacks):
                raise FakeNvmlError("Not Supported")
            return {
                "nvmlDeviceGetUUID": gpu.uuid,
                "nvmlDeviceGetTotalEnergyConsumption": gpu.energy_mj,
                "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=9),
                "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30, used=(2 if options else 3) << 30),
                "nvmlDeviceGetPowerUsage": 71_250,
                "nvmlDeviceGetPowerManagementLimit": 700_000,
            }[name]

        return call

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 (NVML's name)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        return self.gpus[index]

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut_down += 1


FOUR = [FakeGpu(f"GPU-{letter}{n}") for n, letter in enumerate("abcc")]


def page(probe: GpuMetrics) -> Page:
    return parse("".join(render(probe.sample())))


def test_every_family_has_its_name_type_help_and_unit() -> None:
    gpu = FakeGpu("GPU-a")
    probe = GpuMetrics(FakeNvml([gpu]), None)
    gpu.energy_mj += 12_500
    shown = page(probe)
    assert shown.helps == HELPS
    assert {name for name, kind in shown.kinds.items() if kind == "counter"} == {"nv_energy_consumption"}
    labels = {"gpu_uuid": "GPU-a"}
    values = {name: shown.value(name, **labels) for name in HELPS if "pinned" not in name}
    assert values == {
        "nv_gpu_utilization": 0.37,
        "nv_gpu_memory_total_bytes": 80 << 30,
        "nv_gpu_memory_used_bytes": 2 << 30,
        "nv_gpu_power_usage": 71.25,
        "nv_gpu_power_limit": 700,
        "nv_energy_consumption": 12.5,
    }
    assert shown.value("nv_pinned_memory_pool_used_bytes") == 0


def test_each_device_has_its_series() -> None:
    shown = page(GpuMetrics(FakeNvml(FOUR[:2]), None))
    assert set(shown.of("nv_gpu_utilization")) == {
        frozenset({("gpu_uuid", "GPU-a0")}),
        frozenset({("gpu_uuid", "GPU-b1")}),
    }


def test_what_a_device_cannot_tell_is_left_out_for_it() -> None:
    able = FakeGpu("GPU-a")
    unable = FakeGpu("GPU-b", lacks={"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"})
    shown = page(GpuMetrics(FakeNvml([able, unable]), None))
    for name in ("nv_energy_consumption", "nv_gpu_power_usage"):
        assert list(shown.of(name)) == [frozenset({("gpu_uuid", "GPU-a")})]
    assert len(shown.of("nv_gpu_power_limit")) == 2


def test_an_old_driver_tells_memory_in_its_old_way() -> None:
    shown = page(GpuMetrics(FakeNvml([FakeGpu("GPU-a", lacks={"version"})]), None))
    assert shown.value("nv_gpu_memory_used_bytes", gpu_uuid="GPU-a") == 3 << 30


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-a0", "GPU-b1", "GPU-c2", "GPU-c3"]),
        ("2,0", ["GPU-c2", "GPU-a0"]),
        ("GPU-b", ["GPU-b1"]),
        ("1, GPU-c3", ["GPU-b1", "GPU-c3"]),
        ("0,9,1", ["GPU-a0"]),
        ("0,-1,1", ["GPU-a0"]),
        ("GPU-c", []),
        ("", []),
    ],
)
def test_devices_are_those_that_cuda_sees_in_its_order(visible: str | None, uuids: list[str]) -> None:
    assert list(GpuMetrics(FakeNvml(FOUR), visible).uuids.values()) == uuids


def test_closing_ends_nvml() -> None:
    nvml = FakeNvml(FOUR)
    GpuMetrics(nvml, None).close()
    assert nvml.shut_down == 1


def test_without_the_package_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus() is None


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise FakeNvmlError("NVML Shared Library Not Found")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=no_driver, NVMLError=FakeNvmlError))
    assert open_gpus() is None


def test_a_driver_without_devices_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml([])
    monkeypatch.setattr(nvml, "nvmlInit", lambda: None, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert open_gpus() is None
    assert nvml.shut_down == 1


def _groups(*groups: tuple[str, Sequence[int]]) -> Any:
    config = config_of()
    kinds = config.DESCRIPTOR.fields_by_name["instance_group"].message_type.fields_by_name["kind"].enum_type
    for kind, gpus in groups:
        config.instance_group.add(kind=kinds.values_by_name[kind].number, count=1, gpus=gpus)
    return config


@pytest.mark.parametrize(
    ("groups", "gpu"),
    [
        ([("KIND_CPU", [])], None),
        ([("KIND_GPU", [1])], 1),
        ([("KIND_GPU", [1]), ("KIND_GPU", [1])], 1),
        ([("KIND_GPU", [0, 1])], None),
        ([("KIND_GPU", [0]), ("KIND_CPU", [])], None),
        ([("KIND_GPU", [])], 0),
        ([], None),
    ],
)
def test_a_model_on_one_gpu_has_its_label(groups: Any, gpu: int | None) -> None:
    assert gpu_of(_groups(*groups)) == gpu


@pytest.mark.gpu
def test_a_real_gpu_is_measured() -> None:
    probe = open_gpus()
    if probe is None:
        pytest.skip("no NVIDIA GPU, or nvidia-ml-py is not installed")
    try:
        shown = page(probe)
        for uuid in probe.uuids.values():
            total = shown.value("nv_gpu_memory_total_bytes", gpu_uuid=uuid)
            assert 0 <= shown.value("nv_gpu_memory_used_bytes", gpu_uuid=uuid) <= total
            assert 0 <= shown.value("nv_gpu_utilization", gpu_uuid=uuid) <= 1
    finally:
        probe.close()
