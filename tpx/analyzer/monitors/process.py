"""Memory and processor time of the server's processes, by psutil."""

import time
from contextlib import suppress

import psutil

from tpx.analyzer.monitors.base import Usage
from tpx.analyzer.results.measurement import MemoryUse

FEWEST_NS = 200_000_000
"""Processor time is counted in hundredths of a second; of less than this a share means nothing."""


class ProcessProbe:
    """A process and its children together: of each kind of memory the most that was seen, and the mean
    share of a processor."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most: dict[str, int] = {}
        self._available_bytes: int | None = None
        self._began_ns = self._looked_ns = 0
        self._cpu_s: dict[int, list[float]] = {}

    def sample(self) -> None:
        self._looked_ns = time.perf_counter_ns()
        self._began_ns = self._began_ns or self._looked_ns
        sums: dict[str, int] = {}
        unknown: set[str] = set()
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                self._look(process, sums, unknown)
        if not sums.get("rss"):
            return
        for kind in sums.keys() - unknown:
            self._most[kind] = max(self._most.get(kind, 0), sums[kind])
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

    def _look(self, process: psutil.Process, sums: dict[str, int], unknown: set[str]) -> None:
        times = process.cpu_times()
        used_s = times.user + times.system
        # a process that came meanwhile has used all of its time since
        began = 0.0 if self._looked_ns > self._began_ns else used_s
        self._cpu_s.setdefault(process.pid, [began, used_s])[1] = used_s
        sums["rss"] = sums.get("rss", 0) + process.memory_info().rss
        try:
            full = process.memory_full_info()
        except psutil.AccessDenied:
            unknown |= {"uss", "pss"}
            return
        for kind in ("uss", "pss"):
            if hasattr(full, kind):
                sums[kind] = sums.get(kind, 0) + getattr(full, kind)
            else:
                unknown.add(kind)

    def _processes(self) -> list[psutil.Process]:
        try:
            server = psutil.Process(self._pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def family(pid: int) -> frozenset[int]:
    """The ids of a process and its children; empty where it has ended."""
    try:
        return frozenset((pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))))
    except psutil.NoSuchProcess:
        return frozenset()
