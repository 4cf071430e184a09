"""Trials without a server: on one that is a formula, in virtual time, or from a recorded table.

Of the formula the best configuration is known, its noise and drift are chosen.
Instances prepare their batches at the same time and then wait for one device, as in the published AlexNet
run: throughput is bound by the instances, the device, or the requests in flight, whichever is least.
"""

import csv
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.analyzer.measuring import make_latency, make_measurement, make_window
from tpx.analyzer.results.measurement import Configuration, GpuUse, LoadPoint, Measurement, MemoryUse, Variant
from tpx.analyzer.runners.outputs import Outputs
from tpx.analyzer.trial import ROUND_WINDOWS
from tpx.errors import MeasurementError
from tpx.perf.statistics.summaries import LatencySummary

_GPU_BYTES = 80_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """How fast a configuration is; times in milliseconds."""

    host_ms: float = 4.0
    """Of a batch, spent by each instance for itself."""
    device_ms: float = 2.0
    """Of a batch, spent on the one device."""
    item_ms: float = 0.2
    """Of each inference of a batch, on the device."""
    first_instances: float = 0.0
    """By how much few instances leave the device idle: its time grows by this over their number."""
    contention: float = 0.005
    """By how much instances disturb each other: their number less one, squared, times this."""
    large_batches: float = 0.05
    """By how much the device slows down with each doubling of the batch beyond 16."""
    instance_bytes: int = 400_000_000
    batch_bytes: int = 10_000_000
    idle_w: float = 60.0
    busy_w: float = 240.0

    def throughput(self, instances: int, batch_size: int, in_flight: float) -> float:
        """Inferences a second with so many requests in flight; batch size 1 where nothing is batched."""
        busy = min(instances, in_flight)
        batch = max(1.0, min(batch_size, in_flight / instances))
        device_s = self._device_ms(instances, batch, batch_size) / 1e3
        alone = busy * batch / (self.host_ms / 1e3 + device_s)
        return min(alone, batch / device_s)

    def power_w(self, instances: int, batch_size: int, in_flight: float) -> float:
        """Idle, and more with the share of time that the device is busy."""
        batch = max(1.0, min(batch_size, in_flight / instances))
        busy_s = self._device_ms(instances, batch, batch_size) / 1e3 / batch
        return self.idle_w + self.busy_w * min(
            1.0, self.throughput(instances, batch_size, in_flight) * busy_s
        )

    def _device_ms(self, instances: int, batch: float, batch_size: int) -> float:
        slower = 1 + self.first_instances / instances + self.contention * (instances - 1) ** 2
        slower *= 1 + self.large_batches * max(0.0, math.log2(batch_size / 16))
        return (self.device_ms + self.item_ms * batch) * slower

    @classmethod
    def drawn(cls, seed: int) -> "Surface":
        """One of many different servers."""
        chance = random.Random(seed)
        return cls(
            host_ms=chance.uniform(0.5, 8.0),
            device_ms=chance.uniform(0.2, 4.0),
            item_ms=chance.uniform(0.02, 1.0),
            first_instances=chance.uniform(0.0, 1.0),
            contention=chance.uniform(0.0, 0.03),
            large_batches=chance.uniform(0.0, 0.3),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What makes measurements of the same thing differ."""

    spread: float = 0.0
    """Standard deviation of the logarithm of a window's throughput."""
    load: float = 0.0
    """The same between loads of a configuration."""
    common: float = 0.0
    """The same between final rounds, for all configurations alike."""
    tail: float = 0.0
    """The same of a window's p99, in addition."""
    step: float = 0.0
    """The same of each step of a random walk from measurement to measurement."""
    drift: float = 0.0
    """By how much the machine is faster and slower in turn, as a share."""
    drift_period_s: float = 600.0


class SimulatedServer:
    """Measures variants on a surface; every measurement takes its time on a clock of its own."""

    def __init__(
        self,
        surface: Surface,
        *,
        default: tuple[int, int] = (1, 0),
        noise: Noise | None = None,
        seed: int = 0,
        measurement_s: float = 5.0,
        startup_s: float = 2.0,
    ) -> None:
        """`default` are the instances and the max_batch_size of the default configuration."""
        self.surface = surface
        self._default = default
        self._noise = noise or Noise()
        self._chance = random.Random(f"simulated server {seed}")
        self._measurement_s = measurement_s
        self._startup_s = startup_s
        self._served = ("", 0)
        self._loaded = 0.0
        self._walk = 0.0
        self._rounds: dict[int, float] = {}
        self.now_s = 0.0

    def truth(self, variant: Variant, load: LoadPoint) -> float:
        """Inferences a second without noise."""
        if load.members:
            return sum(map(self.truth, variant.members, load.members))
        parts = variant.members or (variant,)
        shapes = (self.shape_of(part) for part in parts)
        return min(self.surface.throughput(n, b, load.value * load.batch_size) for n, b in shapes)

    def measure(self, variant: Variant, load: LoadPoint, number: int = 0) -> Measurement:
        """A measurement, as a runner makes it; `number` is its round."""
        noise, windows = self._noise, ROUND_WINDOWS if number else 1
        cost_s = windows * self._measurement_s
        if self._served != (variant.name, number):
            cost_s += self._startup_s
            self._served, self._loaded = (variant.name, number), self._draw(noise.load)
        self.now_s += cost_s
        instances, batch_size = self._size_of(variant)
        angle = 2 * math.pi * self.now_s / self._noise.drift_period_s
        if number and number not in self._rounds:
            self._rounds[number] = self._draw(noise.common)
        self._walk += self._draw(noise.step)
        level = self._loaded + self._walk + self._rounds.get(number, 0.0)
        factors = [math.exp(level + self._draw(noise.spread)) for _ in range(windows)]
        factor = fmean(factors)
        tails = [math.exp(self._draw(noise.tail)) for _ in factors]
        steady = self.truth(variant, load) * (1 + noise.drift * math.sin(angle))
        throughput = steady * factor
        latency_ns = round(load.value * load.batch_size / throughput * 1e9)
        power_w = self.surface.power_w(instances, batch_size, load.value * load.batch_size)
        memory = instances * (self.surface.instance_bytes + batch_size * self.surface.batch_bytes)
        return make_measurement(
            variant=variant.name,
            load=load,
            throughput=throughput,
            round=number,
            members=tuple(
                make_measurement(
                    variant=member.name,
                    load=own,
                    throughput=self.truth(member, own) * factor,
                    latency=make_latency(p99_ns=latency_ns, avg_ns=latency_ns),
                    windows=tuple(
                        make_window(
                            throughput=self.truth(member, own) * each,
                            latency=make_latency(p99_ns=latency_ns, avg_ns=latency_ns),
                        )
                        for each in factors
                        if number
                    ),
                )
                for member, own in zip(variant.members, load.members, strict=False)
            ),
            latency=_latencies(latency_ns, fmean(tails)),
            windows=tuple(
                make_window(throughput=steady * own, latency=_latencies(latency_ns * factor / own, tail))
                for own, tail in zip(factors, tails, strict=True)
                if number
            ),
            duration_ns=round(windows * self._measurement_s * 1e9),
            cost_ns=round(cost_s * 1e9),
            memory=MemoryUse(rss_bytes=memory),
            gpus=(GpuUse(uuid="GPU-0", used_bytes=memory, total_bytes=_GPU_BYTES, power_w=power_w),),
        )

    def _draw(self, spread: float) -> float:
        return self._chance.gauss(0.0, spread) if spread else 0.0

    def _size_of(self, variant: Variant) -> tuple[int, int]:
        """What memory and power are counted by: all instances, and the largest batch."""
        shapes = [self.shape_of(part) for part in variant.members or (variant,)]
        return sum(n for n, _ in shapes), max(b for _, b in shapes)

    def best(self, variants: Iterable[Variant], loads: Iterable[int]) -> tuple[Variant, int, float]:
        """The variant and the load of the greatest true throughput, and that throughput."""
        values = list(loads)
        found = [(self.truth(v, LoadPoint(value=c)), v, c) for v in variants for c in values]
        throughput, variant, load = max(found, key=lambda each: each[0])
        return variant, load, throughput

    def shape_of(self, variant: Variant) -> tuple[int, int]:
        """Instances, and how many inferences a batch has at most."""
        instances, batch_size = self._default
        groups = variant.delta.get("instance_group")
        if groups:
            instances = sum(int(group.get("count", 1)) for group in groups)
        batch_size = int(variant.delta.get("max_batch_size", batch_size))
        batched = variant.delta.get("dynamic_batching", None if not variant.is_default else {})
        return instances, max(1, batch_size) if batched is not None else 1


def _latencies(latency_ns: float, tail: float) -> LatencySummary:
    return make_latency(
        avg_ns=round(latency_ns),
        p50_ns=round(latency_ns),
        p90_ns=round(latency_ns * 1.1),
        p95_ns=round(latency_ns * 1.15),
        p99_ns=round(latency_ns * 1.25 * tail),
    )


class OfflineRunner:
    """Implements Runner without a server: each measurement comes from a function."""

    def __init__(
        self, defaults: Mapping[str, dict[str, Any]], measure: Callable[[Variant, LoadPoint], Measurement]
    ) -> None:
        """`defaults` are the models' own configurations as JSON, by model."""
        self._defaults = defaults
        self._measure = measure
        self._prepared: Variant | None = None

    @property
    def server(self) -> None:
        return None

    async def default_config(self, model: str) -> dict[str, Any]:
        if model not in self._defaults:
            raise MeasurementError(f"model '{model}' is not known (has: {', '.join(self._defaults)})")
        return self._defaults[model]

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:
        self._prepared = configuration.variant if configuration else None

    async def measure(self, load: LoadPoint, *, windows: int = 0) -> Measurement:
        if self._prepared is None:
            raise MeasurementError("no configuration is prepared")
        return self._measure(self._prepared, load)

    async def outputs(self, model: str) -> Outputs:
        return ()

    async def close(self) -> None:
        return


def replayed(recorded: Iterable[Measurement]) -> Callable[[Variant, LoadPoint], Measurement]:
    """Measure by a recorded table: the same search again, in a moment, with the same outcome.

    A trial that was not recorded raises MeasurementError.
    """
    table = {(m.variant, m.load): m for m in recorded}

    def measure(variant: Variant, load: LoadPoint) -> Measurement:
        found = table.get((variant.name, load))
        if found is None:
            raise MeasurementError(f"'{variant.name}' at {load} was not recorded")
        return found

    return measure


def read_table(path: Path) -> list[Measurement]:
    """Read measurements from a CSV with the columns of metrics-model-inference.csv, Model Analyzer's or ours.

    Needed are `Model Config Path`, `Concurrency` and `Throughput (infer/sec)`; `Batch` and latencies are read
    where they are. Raises MeasurementError naming the line and the column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            return [_measurement(row, f"{path}:{rows.line_num}") for row in rows]
    except OSError as exc:
        raise MeasurementError(f"{path}: {exc.strerror}") from exc


def _measurement(row: Mapping[str, str], place: str) -> Measurement:
    try:
        return make_measurement(
            variant=row["Model Config Path"],
            load=LoadPoint(value=int(row["Concurrency"]), batch_size=int(row.get("Batch") or 1)),
            throughput=float(row["Throughput (infer/sec)"]),
            latency=make_latency(
                avg_ns=_ns(row.get("Avg Latency (ms)")),
                p90_ns=_ns(row.get("p90 Latency (ms)")),
                p95_ns=_ns(row.get("p95 Latency (ms)")),
                p99_ns=_ns(row.get("p99 Latency (ms)")),
            ),
        )
    except KeyError as exc:
        raise MeasurementError(f"{place}: no column {exc}") from exc
    except ValueError as exc:
        raise MeasurementError(f"{place}: {exc}") from exc


def _ns(milliseconds: str | None) -> int | None:
    return round(float(milliseconds) * 1e6) if milliseconds else None
