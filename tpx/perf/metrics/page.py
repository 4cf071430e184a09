"""Reading a Prometheus page: only the wanted series, by one expression over its bytes."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GPU_SERIES = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_power_usage": "power_w",
    "nv_gpu_memory_used_bytes": "memory_used_bytes",
    "nv_gpu_memory_total_bytes": "memory_total_bytes",
}
"""The gauges of a GPU, and what they are called in the figures."""
INFERENCES, EXECUTIONS = "nv_inference_count", "nv_inference_exec_count"
CPU, HOST_MEMORY, PROCESS_MEMORY = (
    "nv_cpu_utilization",
    "nv_cpu_memory_used_bytes",
    "process_resident_memory_bytes",
)
_ALWAYS = (*GPU_SERIES, INFERENCES, EXECUTIONS, CPU, HOST_MEMORY, PROCESS_MEMORY)
_UUID = re.compile(r'gpu_uuid="([^"]*)"')
_TYPES = re.compile(rb"^# TYPE (\S+) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One look at the page; `gpus` has the gauges of each by its uuid, `series` what the user asked for."""

    time_ns: int
    took_ns: int
    cost_ns: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    """By name; of several series the sum."""
    gpus: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    series: Mapping[str, float] = field(default_factory=dict)


class PageReader:
    """Knows what is wanted of a page."""

    def __init__(self, wanted: Sequence[str] = ()) -> None:
        """`wanted` are regular expressions, searched for in the names of series with their labels."""
        names = "|".join(map(re.escape, _ALWAYS))
        asked = "".join(f"|(?=[^\\n]*(?:{text}))[^\\s#{{]+" for text in wanted)
        pattern = f"^((?:(?:{names})(?=[ {{])|(?!){asked})(?:\\{{[^\\n]*\\}})?)[ \\t]+(\\S+)"
        self._series = re.compile(pattern.encode(), re.MULTILINE)
        self._wanted = [re.compile(text) for text in wanted]
        self.counters: frozenset[str] = frozenset()
        """The names of the page's counters."""

    def read(self, page: bytes, time_ns: int, took_ns: int) -> Scrape:
        """Return the wanted values of a page."""
        if not self.counters:
            self.counters = frozenset(n.decode() for n, kind in _TYPES.findall(page) if kind == b"counter")
        values: dict[str, float] = {}
        gpus: dict[str, dict[str, float]] = {}
        series: dict[str, float] = {}
        for raw, text in self._series.findall(page):
            full = raw.decode("utf-8", "replace")
            try:
                value = float(text)
            except ValueError:
                continue
            name, _, labels = full.partition("{")
            uuid = _UUID.search(labels)
            if name in GPU_SERIES and uuid is not None and math.isfinite(value):
                gpus.setdefault(uuid[1], {})[GPU_SERIES[name]] = value
            elif name in _ALWAYS and math.isfinite(value):
                values[name] = values.get(name, 0.0) + value
            if any(wanted.search(full) for wanted in self._wanted):
                series[full] = value
        return Scrape(time_ns=time_ns, took_ns=took_ns, values=values, gpus=gpus, series=series)
