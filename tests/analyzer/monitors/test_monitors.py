"""Probes and the watch that reads them."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tpx.analyzer.monitors.base import Watch
from tpx.analyzer.monitors.gpu import GpuProbe
from tpx.analyzer.monitors.process import ProcessProbe
from tpx.analyzer.results.measurement import GpuUse, MemoryUse


class FakeProbe:
    """Counts what is done to it."""

    def __init__(self) -> None:
        self.samples = 0
        self.closed = False

    def sample(self) -> None:
        self.samples += 1

    def memory(self) -> MemoryUse | None:
        return MemoryUse(rss_bytes=self.samples)

    def gpus(self) -> tuple[GpuUse, ...]:
        return (GpuUse(uuid="GPU-1", used_bytes=1, total_bytes=2),)

    def close(self) -> None:
        self.closed = True


class NVMLError(Exception):
    """NVML's error, as pynvml raises it."""


class FakeNvml:
    """Two GPUs with a script of readings; the second has no power sensor."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.used = [[100, 300, 200], [50, 50, 50]]
        self.reads = [0, 0]
        self.shut = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        self.reads[handle] += 1
        if self.reads[handle] > 3:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=self.used[handle][self.reads[handle] - 1], total=1000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=self.reads[handle] * 10)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise NVMLError("not supported")
        return 70_000

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut = True


def test_a_watch_samples_at_both_ends_and_in_between() -> None:
    probe = FakeProbe()

    async def watched() -> None:
        async with Watch([probe], interval_s=0.01) as watch:
            await asyncio.sleep(0.1)
        assert watch.memory is not None
        assert watch.memory.rss_bytes == probe.samples
        assert watch.gpus[0].uuid == "GPU-1"

    asyncio.run(watched())
    assert probe.samples >= 4
    assert probe.closed


def test_a_short_measurement_is_sampled_twice() -> None:
    probe = FakeProbe()

    async def watched() -> None:
        async with Watch([probe], interval_s=60):
            pass

    asyncio.run(watched())
    assert probe.samples == 2


def test_a_failed_measurement_closes_its_probes() -> None:
    probe = FakeProbe()

    async def watched() -> None:
        async with Watch([probe], interval_s=60):
            raise RuntimeError("the server died")

    with pytest.raises(RuntimeError, match="the server died"):
        asyncio.run(watched())
    assert probe.closed


def test_the_memory_of_this_process_is_seen() -> None:
    probe = ProcessProbe(os.getpid())
    assert probe.memory() is None
    probe.sample()
    before = probe.memory()
    ballast = bytearray(os.urandom(1 << 20)) * 64
    probe.sample()
    after = probe.memory()
    assert before is not None
    assert after is not None
    assert after.rss_bytes - before.rss_bytes > 32 << 20
    assert after.uss_bytes is not None
    assert after.uss_bytes <= after.rss_bytes
    assert len(ballast) == 64 << 20


def test_children_count_too() -> None:
    alone, family = ProcessProbe(os.getpid()), ProcessProbe(os.getpid())
    alone.sample()
    code = "import sys; print(len(bytearray(b'x') * (48 << 20)), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        family.sample()
    one, both = alone.memory(), family.memory()
    assert one is not None
    assert both is not None
    assert both.rss_bytes > one.rss_bytes


def test_a_process_that_is_gone_is_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    probe = ProcessProbe(child.pid)
    probe.sample()
    assert probe.memory() is None


def test_gpus_report_their_most_memory_and_mean_utilization() -> None:
    nvml = FakeNvml()
    probe = GpuProbe(nvml)
    for _ in range(3):
        probe.sample()
    first, second = probe.gpus()
    assert first == GpuUse(
        uuid="GPU-0", used_bytes=300, total_bytes=1000, utilization_percent=20.0, power_w=70.0
    )
    assert (second.used_bytes, second.power_w) == (50, None)
    probe.close()
    assert nvml.shut


def test_a_gpu_that_is_lost_keeps_what_was_seen() -> None:
    probe = GpuProbe(FakeNvml())
    for _ in range(5):
        probe.sample()
    assert probe.gpus()[0].used_bytes == 300
