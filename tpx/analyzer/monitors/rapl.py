"""Energy of the processor packages, by the counters that Linux calls RAPL."""

import time
from pathlib import Path

from tpx.analyzer.monitors.base import Usage
from tpx.analyzer.results.measurement import EnergyUse

ROOT = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:[0-9]*"
"""Whole packages, those of AMD too; what has a second colon is a part of one and would count twice."""


class RaplProbe:
    """Microjoules of all packages, each counter wrapping around at its own maximum.

    A counter must be read at least once in the time in which it goes round, a minute or more.
    """

    def __init__(self, packages: list[Path]) -> None:
        self._counters = [
            (package / "energy_uj", _read(package / "max_energy_range_uj")) for package in packages
        ]
        self._last: list[int] = []
        self._total_uj = 0
        self._began_ns = self._looked_ns = 0

    def sample(self) -> None:
        self._looked_ns = time.perf_counter_ns()
        now = [_read(counter) for counter, _ in self._counters]
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


def open_rapl_probe(root: Path = ROOT) -> RaplProbe | None:
    """A probe of this machine's packages, or None where there are none or they may not be read.

    Since 2020 Linux lets only root read them, because they give away what others compute.
    """
    packages = [path for path in sorted(root.glob(PACKAGES)) if path.name.count(":") == 1]
    try:
        for package in packages:
            _read(package / "energy_uj"), _read(package / "max_energy_range_uj")
    except (OSError, ValueError):
        return None
    return RaplProbe(packages) if packages else None


def _read(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
