"""Probes and the watch that reads them."""

import asyncio
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.answering import answering, no_http
from tpx.analyzer.machine import ProcessProbe, RaplProbe, family, open_probes, open_rapl_probe
from tpx.analyzer.probes import GpuProbe, PageProbe, Usage, Watch, open_gpu_probe
from tpx.analyzer.results.measurement import EnergyUse, GpuUse, MemoryUse


class FakeProbe:
    """Counts what is done to it."""

    def __init__(self) -> None:
        self.samples = 0
        self.under_load = 0
        self.closed = False

    def sample(self, *, under_load: bool = False) -> None:
        self.samples += 1
        self.under_load += under_load

    def usage(self) -> Usage:
        return Usage(
            memory=MemoryUse(rss_bytes=self.samples),
            gpus=(GpuUse(uuid="GPU-1", used_bytes=1, total_bytes=2),),
            energy=EnergyUse(duration_ns=self.samples, cpu_j=1.0),
        )

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

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise NVMLError("not supported")
        return 1_000_000 + self.reads[handle] * 35_000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        if handle == 1:
            return [SimpleNamespace(pid=7, usedGpuMemory=None)]
        return [SimpleNamespace(pid=pid, usedGpuMemory=pid * 10) for pid in (7, 8, 9)]

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut = True


def test_a_watch_samples_at_both_ends_and_in_between() -> None:
    probe = FakeProbe()

    async def watched() -> None:
        async with Watch([probe], interval_s=0.01) as watch:
            await asyncio.sleep(0.1)
        assert watch.usage.memory == MemoryUse(rss_bytes=probe.samples)
        assert watch.usage.gpus[0].uuid == "GPU-1"

    asyncio.run(watched())
    assert probe.samples >= 4
    assert probe.under_load == probe.samples - 2, "the first and the last disturb nothing"
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
    assert probe.usage().memory is None
    probe.sample()
    before = probe.usage().memory
    ballast = mmap.mmap(-1, 64 << 20)  # of the system, not what the process has freed
    ballast.write(bytes(64 << 20))
    probe.sample()
    after = probe.usage().memory
    assert before is not None
    assert after is not None
    assert after.rss_bytes - before.rss_bytes > 32 << 20
    assert after.uss_bytes is not None
    assert after.uss_bytes <= after.rss_bytes
    ballast.close()


GROWS = """
import sys
print("small")
sys.stdin.readline()
large = b"x" * (48 << 20)
print("large")
sys.stdin.read()
"""


def test_pages_are_looked_at_under_load_only_if_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    look = psutil.Process.memory_full_info

    def counted(process: psutil.Process) -> object:
        nonlocal looks
        looks += 1
        return look(process)

    monkeypatch.setattr(psutil.Process, "memory_full_info", counted)
    with subprocess.Popen(
        [sys.executable, "-uc", GROWS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        probe = ProcessProbe(child.pid)
        probe.sample()
        for _ in range(5):
            probe.sample(under_load=True)
        assert looks == 1
        before = probe.usage().memory
        print("grow", file=child.stdin, flush=True)
        child.stdout.readline()
        probe.sample(under_load=True)
        assert looks == 2
        after = probe.usage().memory
        probe.sample()
        assert looks == 3
    assert before is not None
    assert after is not None
    assert before.pss_bytes is not None
    assert after.pss_bytes is not None
    assert after.pss_bytes - before.pss_bytes > 32 << 20


def test_the_own_memory_of_a_process_that_has_just_ended_is_unknown_and_not_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(process: psutil.Process) -> None:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", ended)
    probe = ProcessProbe(os.getpid())
    probe.sample()
    memory = probe.usage().memory
    assert memory is not None
    assert memory.rss_bytes > 0
    assert (memory.uss_bytes, memory.pss_bytes) == (None, None)


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
    one, both = alone.usage().memory, family.usage().memory
    assert one is not None
    assert both is not None
    assert both.rss_bytes > one.rss_bytes


def test_a_process_that_is_gone_is_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    probe = ProcessProbe(child.pid)
    probe.sample()
    assert probe.usage().memory is None


def test_gpus_report_their_most_memory_and_mean_utilization() -> None:
    nvml = FakeNvml()
    probe = GpuProbe(nvml)
    for _ in range(3):
        probe.sample()
    first, second = probe.usage().gpus
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
    assert probe.usage().gpus[0].used_bytes == 300


def test_of_a_gpu_the_servers_own_part_is_told_apart_where_the_driver_does() -> None:
    probe = GpuProbe(FakeNvml(), pids=lambda: frozenset({7, 9}))
    probe.sample()
    first, second = probe.usage().gpus
    assert (first.server_bytes, second.server_bytes) == (160, None)


def test_only_the_chosen_gpus_count() -> None:
    for chosen in (("1",), ("GPU-1",)):
        assert [gpu.uuid for gpu in GpuProbe(FakeNvml(), chosen).usage().gpus] == ["GPU-1"]


def test_energy_is_the_growth_of_the_counter_or_power_over_time() -> None:
    counted = GpuProbe(FakeNvml(), ("0",))
    for _ in range(3):
        counted.sample()
    energy = counted.usage().energy
    assert energy is not None
    assert energy.gpu_j == 70.0

    nvml = FakeNvml()
    nvml.nvmlDeviceGetTotalEnergyConsumption = _not_supported  # type: ignore[method-assign]
    metered = GpuProbe(nvml, ("0",))
    metered.sample()
    time.sleep(0.02)
    metered.sample()
    energy = metered.usage().energy
    assert energy is not None
    assert energy.watts == pytest.approx(70.0)


def test_the_energy_of_two_gpus_is_unknown_where_one_of_them_does_not_tell() -> None:
    probe = GpuProbe(FakeNvml())
    probe.sample()
    probe.sample()
    assert probe.usage().energy is None


def _not_supported(handle: int) -> int:
    raise NVMLError(f"GPU {handle} has no counter")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    for name, energy in (("intel-rapl:0", 900), ("intel-rapl:0:0", 5), ("intel-rapl:1", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{energy}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000\n")
    return tmp_path


def test_the_energy_of_processors_is_that_of_their_packages_and_goes_round(packages: Path) -> None:
    probe = open_rapl_probe(packages)
    assert probe is not None
    probe.sample()
    for first, second in ((950, 100), (20, 300)):
        (packages / "intel-rapl:0" / "energy_uj").write_text(f"{first}\n")
        (packages / "intel-rapl:1" / "energy_uj").write_text(f"{second}\n")
        probe.sample()
    energy = probe.usage().energy
    assert energy is not None
    assert energy.cpu_j == pytest.approx((50 + 70 + 200) / 1e6)


def test_counters_that_may_not_be_read_are_no_probe(packages: Path, tmp_path: Path) -> None:
    (packages / "intel-rapl:1" / "energy_uj").unlink()
    assert open_rapl_probe(packages) is None
    assert open_rapl_probe(tmp_path / "nothing") is None


def test_energies_of_several_probes_are_one() -> None:
    class Gpu(FakeProbe):
        def usage(self) -> Usage:
            return Usage(energy=EnergyUse(duration_ns=2_000_000_000, gpu_j=100.0))

    async def watched() -> Usage:
        async with Watch([FakeProbe(), Gpu()], interval_s=60) as watch:
            pass
        return watch.usage

    energy = asyncio.run(watched()).energy
    assert energy == EnergyUse(duration_ns=2_000_000_000, gpu_j=100.0, cpu_j=1.0)
    assert energy is not None
    assert energy.watts == 50.5


def test_processor_time_is_a_share_of_one_processor() -> None:
    probe = ProcessProbe(os.getpid())
    probe.sample()
    ends = time.perf_counter() + 0.3
    while time.perf_counter() < ends:
        pass
    probe.sample()
    share = probe.usage().cpu_percent
    assert share is not None
    assert 5 < share < 150


PAGE = """# HELP nv_gpu_utilization x
nv_gpu_utilization{gpu_uuid="GPU-a"} %s
nv_gpu_power_usage{gpu_uuid="GPU-a"} 60.0
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} %s
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 1000
"""


def test_a_server_is_seen_by_its_metrics_page(monkeypatch: pytest.MonkeyPatch) -> None:
    # a proxy that is for other machines
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    pages = [PAGE % (0.5, 300), PAGE % (0.75, 200)]
    with answering(lambda _: (200, pages.pop(0).encode())) as address:
        (probe,) = open_probes(None, f"http://{address}/metrics")
        assert isinstance(probe, PageProbe)
        probe.sample()
        time.sleep(0.01)
        probe.sample()
    usage = probe.usage()
    assert usage.gpus == (
        GpuUse(
            uuid="GPU-a",
            used_bytes=300,
            total_bytes=1000,
            utilization_percent=62.5,
            power_w=60.0,
            source="metrics",
        ),
    )
    assert usage.energy is not None
    assert usage.energy.watts == pytest.approx(60.0)


def test_a_metrics_page_that_does_not_answer_is_not_available_and_no_fault() -> None:
    with no_http() as address:
        for wrong in ("127.0.0.1:1", address):
            probe = PageProbe(f"http://{wrong}/metrics")
            probe.sample()
            assert probe.usage() == Usage()
    assert open_probes(None) == ()


def test_what_has_no_gpus_is_not_asked_for_any() -> None:
    kinds = {type(probe) for probe in open_probes(os.getpid(), "http://127.0.0.1:1/metrics", ())}
    assert ProcessProbe in kinds
    assert kinds <= {ProcessProbe, RaplProbe}


@pytest.mark.gpu
@pytest.mark.skipif(open_gpu_probe() is None, reason="needs a GPU, its driver and nvidia-ml-py")
def test_a_real_gpu_tells_memory_energy_and_who_holds_it() -> None:
    probe = open_gpu_probe(pids=lambda: family(os.getpid()))
    assert probe is not None
    probe.sample()
    time.sleep(0.3)
    probe.sample()
    usage = probe.usage()
    probe.close()
    assert all(0 < gpu.used_bytes < gpu.total_bytes and gpu.power_w for gpu in usage.gpus)
    assert usage.energy is not None
    assert usage.energy.watts is not None
    assert usage.energy.watts > 1
