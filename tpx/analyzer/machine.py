"""Probes of this machine during a measurement: the server's processes and all others (psutil), and the
energy of the processor packages (RAPL counters of Linux).
"""

import contextlib
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tpx.analyzer.probes import PageProbe, ResourceProbe, Usage, gpu_names, open_gpu_probe
from tpx.analyzer.results.measurement import EnergyUse, HostUse, MemoryUse
from tpx.processors import processor_name, schedulable_processors

FEWEST_NS = 200_000_000
"""Shortest interval for a share of processor time, which is counted in hundredths of a second."""
GROWN = 1.01
"""Growth of the resident memory from which on shared pages are told from own ones under load, too."""
RAPL_ROOT = Path("/sys/class/powercap")
RAPL_PACKAGES = "intel-rapl:[0-9]*"
"""Whole packages, including AMD's; an entry with a second colon is part of one and would count twice."""
SAME_MEMORY = 0.05
"""Relative difference allowed within a type of machine: firmware and kernel reserve some memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """The properties of a machine that figures depend on."""

    name: str
    system: str
    processor: str
    cores: str
    """Cores as in `8 usable of 16`."""
    memory_bytes: int
    gpus: tuple[str, ...]

    @property
    def facts(self) -> dict[str, str]:
        """Label to value, for the provenance of a report."""
        return {
            "Host": self.name,
            "System": self.system,
            "Processor": self.processor,
            "Cores": self.cores,
            "Memory": f"{self.memory_bytes / 2**30:.1f} GiB",
            "GPU": ", ".join(self.gpus) or "none",
        }

    def differences(self, other: "MachineType") -> list[str]:
        """Return the differences that make figures incomparable, such as `Cores 8, not 4`."""
        own_facts, other_facts = self.facts, other.facts
        differing = [each for each in ("Processor", "Cores", "GPU") if own_facts[each] != other_facts[each]]
        if abs(self.memory_bytes - other.memory_bytes) > SAME_MEMORY * other.memory_bytes:
            differing.append("Memory")
        return [f"{each} {own_facts[each]}, not {other_facts[each]}" for each in differing]


def this_machine() -> MachineType:
    """Return the machine that this process runs on."""
    usable = schedulable_processors()
    return MachineType(
        name=platform.node(),
        system=f"{platform.system()} {platform.release()} ({platform.machine()})",
        processor=processor_name(),
        cores=f"{usable} usable of {psutil.cpu_count() or usable}",
        memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(gpu_names()),
    )


def open_probes(
    pid: int | None, metrics_url: str = "", gpus: Sequence[str] | None = None
) -> tuple[ResourceProbe, ...]:
    """Return all probes that can monitor a server; `gpus` selects GPUs, None is all.

    A remote server (`pid` is None) is visible only by its metrics page, which also stands in for NVML.
    """
    page: tuple[ResourceProbe, ...] = (PageProbe(metrics_url),) if metrics_url else ()
    if pid is None:
        return page
    found: list[ResourceProbe] = [ProcessProbe(pid)]
    gpu = open_gpu_probe(gpus, lambda: family(pid)) if gpus is None or gpus else None
    if gpu is not None:
        found.append(gpu)
    elif gpus is None or gpus:
        found += page
    rapl = open_rapl_probe()
    if rapl is not None:
        found.append(rapl)
    return tuple(found)


def _list_process_tree(pid: int | None) -> list[psutil.Process]:
    """Return a process and its children; an empty list if it has ended or is None."""
    if pid is None:
        return []
    try:
        server = psutil.Process(pid)
        return [server, *server.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def family(pid: int) -> frozenset[int]:
    """Return the ids of a process and its children; empty if it has ended."""
    return frozenset(process.pid for process in _list_process_tree(pid))


class ProcessProbe:
    """A process and its children together: peak of each kind of memory, and mean processor use.

    To tell shared pages from own ones, Linux looks at all pages of a process, 20 ms per gigabyte: under load
    only when the resident memory has grown.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most: dict[str, int] = {}
        self._looked_at_bytes = 0
        """Greatest resident memory at which shared pages were told from own ones."""
        self._available_bytes: int | None = None
        self._began_ns = self._looked_ns = 0
        self._cpu_s: dict[int, list[float]] = {}

    def sample(self, *, under_load: bool = False) -> None:
        self._looked_ns = time.perf_counter_ns()
        self._began_ns = self._began_ns or self._looked_ns
        processes = _list_process_tree(self._pid)
        rss = sum(map(self._sample_process, processes))
        if not rss:
            return
        self._note("rss", rss)
        if not under_load or rss > GROWN * self._looked_at_bytes:
            self._looked_at_bytes = max(self._looked_at_bytes, rss)
            self._sample_pages(processes)
        available = psutil.virtual_memory().available
        self._available_bytes = min(self._available_bytes or available, available)

    def usage(self) -> Usage:
        rss = self._most.get("rss")
        if not rss:
            return Usage()
        memory = MemoryUse(
            rss_bytes=rss,
            uss_bytes=self._most.get("uss"),
            host_available_bytes=self._available_bytes,
            pss_bytes=self._most.get("pss"),
        )
        took_ns = self._looked_ns - self._began_ns
        if took_ns < FEWEST_NS:
            return Usage(memory=memory)
        used_s = sum(last - first for first, last in self._cpu_s.values())
        return Usage(memory=memory, cpu_percent=used_s * 1e11 / took_ns)

    def close(self) -> None:
        return

    def _note(self, kind: str, size: int) -> None:
        self._most[kind] = max(self._most.get(kind, 0), size)

    def _sample_process(self, process: psutil.Process) -> int:
        """Note a process's time and return its resident memory; 0 if it has ended."""
        try:
            times, rss = process.cpu_times(), process.memory_info().rss
        except psutil.NoSuchProcess:
            return 0
        used_s = times.user + times.system
        # a process that started after the first sample has used all of its time since
        began = 0.0 if self._looked_ns > self._began_ns else used_s
        self._cpu_s.setdefault(process.pid, [began, used_s])[1] = used_s
        return int(rss)

    def _sample_pages(self, processes: Sequence[psutil.Process]) -> None:
        """Note the own (USS) and proportional (PSS) memory, where the system tells that of all processes."""
        sums = {"uss": 0, "pss": 0}
        for process in processes:
            try:
                full = process.memory_full_info()
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:
                return
            sums = {kind: size + getattr(full, kind) for kind, size in sums.items() if hasattr(full, kind)}
        for kind, size in sums.items():
            if size:  # 0 if all of them have ended since
                self._note(kind, size)


class HostWatch:
    """Processor time between construction and `use`, minus that of the server and of this process."""

    def __init__(self, server_pid: int | None) -> None:
        """`server_pid` is None for a remote server: all but this process then counts as other programs."""
        self._server_pid = server_pid
        self._before = psutil.cpu_times()
        self._own_before_s = self._measure_own_s()

    def use(self) -> HostUse | None:
        """Return the activity so far, or None if too little time has passed."""
        before, after = self._before, psutil.cpu_times()
        total_s = sum(after[:8]) - sum(before[:8])  # user time already includes guest time
        if total_s * 1e9 < FEWEST_NS:
            return None
        steal_s = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
        idle_s = after.idle - before.idle + getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0)
        busy_s = total_s - idle_s - steal_s
        other_s = max(0.0, busy_s - (self._measure_own_s() - self._own_before_s))
        return HostUse(
            load_average=os.getloadavg()[0],
            cores=psutil.cpu_count() or 1,
            steal_percent=max(0.0, steal_s) / total_s * 100,
            other_percent=other_s / total_s * 100,
        )

    def _measure_own_s(self) -> float:
        """Return the processor time of this process, the server and its children, also of ended ones."""
        total_s = 0.0
        for process in (psutil.Process(), *_list_process_tree(self._server_pid)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
                if process.pid == self._server_pid:
                    total_s += times.children_user + times.children_system
        return total_s


class RaplProbe:
    """Energy of all packages in microjoules; each counter wraps around at its own maximum.

    A counter must be read at least once per wrap-around period, which is a minute or more.
    """

    def __init__(self, packages: list[Path]) -> None:
        self._counters = [
            (package / "energy_uj", _read_counter(package / "max_energy_range_uj")) for package in packages
        ]
        self._last: list[int] = []
        self._total_uj = 0
        self._began_ns = self._looked_ns = 0

    def sample(self, *, under_load: bool = False) -> None:  # noqa: ARG002
        self._looked_ns = time.perf_counter_ns()
        now = [_read_counter(counter) for counter, _ in self._counters]
        if not self._last:
            self._began_ns = self._looked_ns
        for before, after, (_, most) in zip(self._last, now, self._counters, strict=False):
            self._total_uj += after - before if after >= before else after - before + most
        self._last = now

    def usage(self) -> Usage:
        took_ns = self._looked_ns - self._began_ns
        if not took_ns:
            return Usage()
        return Usage(energy=EnergyUse(duration_ns=took_ns, cpu_j=self._total_uj / 1e6))

    def close(self) -> None:
        return


def open_rapl_probe(root: Path = RAPL_ROOT) -> RaplProbe | None:
    """Return a probe of this machine's packages; None without readable ones, as for users other than root."""
    packages = [path for path in sorted(root.glob(RAPL_PACKAGES)) if path.name.count(":") == 1]
    try:
        for package in packages:
            _read_counter(package / "energy_uj"), _read_counter(package / "max_energy_range_uj")
    except (OSError, ValueError):
        return None
    return RaplProbe(packages) if packages else None


def _read_counter(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
