"""CPU, memory and this process, and the thread that measures them."""

import errno
import math
import os
import resource
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.serving.frontends.metrics.pages import Page, parse, scrape
from tests.serving.live import serving
from tests.waiting import eventually
from tpx.serving.frontends.metrics.machine import CpuMetrics, ProcessMetrics, Sampler, count_descriptors
from tpx.serving.frontends.metrics.text import Family, render


def page(families: Sequence[Family]) -> Page:
    return parse("".join(render(families)))


def work(seconds: float) -> None:
    """Keep one core busy."""
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        math.sqrt(2)


def test_utilization_is_of_the_time_between_two_samples() -> None:
    probe = CpuMetrics()
    work(0.2)
    busy = page(probe.sample()).value("nv_cpu_utilization")
    cores = psutil.cpu_count() or 1
    assert 0.5 / cores <= busy <= 1


def test_the_machines_memory_is_what_the_kernel_says() -> None:
    shown = page(CpuMetrics().sample())
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(fields["MemTotal"].split()[0]) * 1024
    used = total - int(fields["MemAvailable"].split()[0]) * 1024
    assert shown.value("nv_cpu_memory_total_bytes") == total
    assert abs(shown.value("nv_cpu_memory_used_bytes") - used) < 0.1 * total
    assert shown.helps["nv_cpu_utilization"] == "CPU utilization rate [0.0 - 1.0]"
    assert shown.helps["nv_cpu_memory_total_bytes"] == "CPU total memory (RAM), in bytes"
    assert shown.helps["nv_cpu_memory_used_bytes"] == "CPU used memory (RAM), in bytes"


def test_this_process_is_measured() -> None:
    probe = ProcessMetrics()
    before = page(probe.sample())
    work(0.1)
    with Path(os.devnull).open():
        after = page(probe.sample())
    assert after.value("process_cpu_seconds_total") >= before.value("process_cpu_seconds_total") + 0.08
    assert after.value("process_open_fds") == before.value("process_open_fds") + 1
    assert after.value("process_max_fds") == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 10e6 < after.value("process_resident_memory_bytes") < after.value("process_virtual_memory_bytes")
    assert 0 < time.time_ns() / 1e9 - after.value("process_start_time_seconds") < 24 * 3600
    assert after.kinds["process_cpu_seconds_total"] == "counter"


def test_descriptors_are_counted_with_and_without_the_size_of_their_folder() -> None:
    listed = os.listdir("/proc/self/fd")  # noqa: PTH208 (with the one that lists them)
    assert count_descriptors(Path("/proc/self/fd")) in (len(listed), len(listed) - 1)
    threads = Path("/proc/self/task")  # its size is 0
    assert count_descriptors(threads) == len(list(threads.iterdir()))


class Counting:
    """A probe that tells how often it was asked, and may fail."""

    def __init__(self, name: str, fails_at: int = 0) -> None:
        self.asked = 0
        self.closed = 0
        self._name = name
        self._fails_at = fails_at

    def sample(self) -> Sequence[Family]:
        self.asked += 1
        if self.asked == self._fails_at:
            raise RuntimeError("the probe broke")
        return [Family(name=self._name, kind="gauge", help="h", lines=(("", self.asked),))]

    def close(self) -> None:
        self.closed += 1


def samplers() -> int:
    """How many threads sample, other servers' among them."""
    return sum(thread.name == "metrics-sampler" for thread in threading.enumerate())


def wait_until_asked(probe: Counting, count: int) -> None:
    eventually(lambda: probe.asked >= count)


def test_there_are_values_from_the_start_and_new_ones_at_every_interval() -> None:
    probe, others = Counting("a"), samplers()
    sampler = Sampler([probe], 0.02)
    sampler.start()
    try:
        assert page(sampler.families()).value("a") >= 1
        wait_until_asked(probe, 4)
    finally:
        sampler.stop()
    assert probe.closed == 1
    assert samplers() == others


class Pauses(threading.Event):
    """Notes for how long it was waited for; is set at the fourth time."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths_s: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.lengths_s.append(timeout)
        return len(self.lengths_s) == 4


def test_only_the_second_sample_comes_before_a_long_interval() -> None:
    probe, pauses = Counting("a"), Pauses()
    sampler = Sampler([probe], 60, pauses)
    sampler.start()
    wait_until_asked(probe, 4)
    sampler.stop()
    assert pauses.lengths_s == [0.1, 60, 60, 60]
    assert probe.asked == 4


def test_a_probe_that_breaks_is_told_of_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Counting("a", fails_at=2), Counting("b")
    sampler = Sampler([broken, sound], 0.02)
    sampler.start()
    try:
        wait_until_asked(sound, 5)
    finally:
        sampler.stop()
    assert (broken.asked, broken.closed, sound.closed) == (2, 1, 1)
    assert page(sampler.families()).names() == {"b"}
    assert caplog.messages == ["Counting failed and is not queried again"]


class Starved(Counting):
    """Finds no free descriptor the second time it is asked."""

    def sample(self) -> Sequence[Family]:
        families = super().sample()
        if self.asked == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return families


def test_a_probe_without_descriptors_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    probe = Starved("a")
    sampler = Sampler([probe], 0.02)
    sampler.start()
    try:
        wait_until_asked(probe, 4)
    finally:
        sampler.stop()
    assert page(sampler.families()).names() == {"a"}
    assert caplog.messages == ["Starved has no sample: [Errno 24] Too many open files"]


def test_without_probes_there_is_no_thread() -> None:
    others = samplers()
    sampler = Sampler([], 1)
    sampler.start()
    assert samplers() == others
    assert sampler.families() == ()
    sampler.stop()


def test_a_server_shows_its_machine_unless_told_not_to(tmp_path: Path) -> None:
    with serving(tmp_path, metrics_interval_ms=20) as running:
        names = scrape(running).names()
        assert {"nv_cpu_memory_total_bytes", "process_resident_memory_bytes"} <= names
        before = scrape(running).value("process_cpu_seconds_total")
        work(0.1)
        eventually(lambda: scrape(running).value("process_cpu_seconds_total") > before)
        assert 0 <= scrape(running).value("nv_cpu_utilization") <= 1
    with serving(tmp_path, allow_cpu_metrics=False) as running:
        assert not [name for name in scrape(running).names() if name.startswith(("nv_cpu", "process_"))]


def test_the_thread_ends_with_the_server(tmp_path: Path) -> None:
    others = samplers()
    with serving(tmp_path):
        assert samplers() == others + 1
    assert samplers() == others
