"""GPUs by the server's own metrics page, for a server that is not of this machine."""

import urllib.request
from http.client import HTTPException
from time import perf_counter_ns

from tpx.analyzer.monitors.base import Usage
from tpx.analyzer.results.measurement import EnergyUse, GpuUse
from tpx.perf.metrics.page import PageReader, Scrape

ANSWER_S = 2.0


class PageProbe:
    """The most memory, and mean utilization and power, of each GPU that the page has. A page that does not
    answer has none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._reader = PageReader()
        self._scrapes: list[Scrape] = []

    def sample(self) -> None:
        began_ns = perf_counter_ns()
        try:
            with urllib.request.urlopen(self._url, timeout=ANSWER_S) as answer:
                page = answer.read()
        except (OSError, ValueError, HTTPException):
            return
        self._scrapes.append(self._reader.read(page, began_ns, perf_counter_ns() - began_ns))

    def usage(self) -> Usage:
        uuids = dict.fromkeys(uuid for scrape in self._scrapes for uuid in scrape.gpus)
        gpus = tuple(self._gpu(uuid) for uuid in uuids)
        powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None]
        took_ns = self._scrapes[-1].time_ns - self._scrapes[0].time_ns if self._scrapes else 0
        if not took_ns or len(powers) < len(gpus) or not gpus:
            return Usage(gpus=gpus)
        return Usage(gpus=gpus, energy=EnergyUse(duration_ns=took_ns, gpu_j=sum(powers) * took_ns / 1e9))

    def close(self) -> None:
        return

    def _gpu(self, uuid: str) -> GpuUse:
        share = self._values(uuid, "utilization")
        power = self._values(uuid, "power_w")
        return GpuUse(
            uuid=uuid,
            used_bytes=int(max(self._values(uuid, "memory_used_bytes"), default=0)),
            total_bytes=int(max(self._values(uuid, "memory_total_bytes"), default=0)),
            utilization_percent=sum(share) / len(share) * 100 if share else None,
            power_w=sum(power) / len(power) if power else None,
            source="metrics",
        )

    def _values(self, uuid: str, name: str) -> list[float]:
        found = (scrape.gpus.get(uuid, {}).get(name) for scrape in self._scrapes)
        return [value for value in found if value is not None]
