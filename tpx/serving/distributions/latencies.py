"""The latency distributions of a model, and what feeds them.

Which model has which follows Triton's core/src/metric_model_reporter.cc. Histograms other than that of
the first response are named as in core's pull request #474.
"""

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

import msgspec

from tpx.errors import ConfigError
from tpx.options import nearest
from tpx.protocol.messages import ModelConfig
from tpx.serving.distributions.quantiles import Summary

if TYPE_CHECKING:
    from tpx.serving.batch import Batch
    from tpx.serving.distributions.settings import LatencySettings


log = logging.getLogger(__name__)


class Histogram:
    """Counts durations by bucket: the first bucket whose bound the duration does not exceed."""

    __slots__ = ("_bounds_ns", "_counts", "bounds", "count", "total_ns")

    def __init__(self, bounds: Sequence[float], unit_ns: int) -> None:
        """Create a histogram; `bounds` are finite and increasing, in units of `unit_ns`."""
        self.bounds = tuple(bounds)
        self.count = 0
        self.total_ns = 0
        self._bounds_ns = [math.floor(bound * unit_ns) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, ns: int, count: int, now_ns: int) -> None:  # noqa: ARG002 (the seam's signature)
        self.count += count
        self.total_ns += ns * count
        self._counts[bisect_left(self._bounds_ns, ns)] += count

    def cumulative(self) -> list[int]:
        """Return the cumulative number of durations per bound."""
        return list(accumulate(self._counts[:-1]))


Phase = Literal[
    "request",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "first_response",
    "cache_hit",
    "cache_miss",
]


class LatencyFamily(msgspec.Struct, frozen=True):
    """One metric family: its name, phase, and help; a histogram if it has buckets, else a summary."""

    name: str
    phase: Phase
    help: str
    buckets: tuple[float, ...] = ()
    unit_ns: int = 1000


CACHED = "in microseconds (includes cached requests)"
COMPUTED = "in microseconds (does not include cached requests)"

MEASURED: Mapping[Phase, str] = {
    "request": f"inference request duration {CACHED}",
    "queue": f"inference queuing duration {CACHED}",
    "compute_input": f"compute input duration {COMPUTED}",
    "compute_infer": f"compute inference duration {COMPUTED}",
    "compute_output": f"inference compute output duration {COMPUTED}",
}
"""Phases of computed requests, with the help of their counters."""
_DISTRIBUTED: Mapping[Phase, str] = {
    **{phase: text.replace(CACHED, COMPUTED) for phase, text in MEASURED.items()},
    "request": "inference request duration in microseconds (not of models with a response cache)",
}
"""The same for their summaries and histograms, which requests answered from the cache do not enter."""
_OF_CACHE: tuple[Phase, ...] = ("cache_hit", "cache_miss")
_WHOLE: tuple[Phase, ...] = ("request", "cache_hit")
"""Phases of which each request to a model that is not decoupled has one, from its arrival to its response."""
_BUCKETS_US: Mapping[Phase, tuple[float, ...]] = {
    "queue": (100.0, 1000.0, 5000.0, 10_000.0, 50_000.0),
    **dict.fromkeys(("compute_input", "compute_output"), (100.0, 500.0, 1000.0, 5000.0, 10_000.0)),
    **dict.fromkeys(("request", "compute_infer"), (1000.0, 5000.0, 25_000.0, 50_000.0, 100_000.0)),
}

SUMMARIES = (
    *(
        LatencyFamily(
            f"nv_inference_{phase}_summary_us",
            phase,
            f"{'Cumulative' if phase.startswith('compute') else 'Summary of'} {text}",
        )
        for phase, text in _DISTRIBUTED.items()
    ),
    *(
        LatencyFamily(
            f"nv_{phase}_summary_per_model",
            phase,
            f"Summary of {phase.replace('_', ' ')} counts/durations per model, in microseconds.",
        )
        for phase in _OF_CACHE
    ),
)

HISTOGRAMS = (
    LatencyFamily(
        "nv_inference_first_response_histogram_ms",
        "first_response",
        "Duration from request to first response in milliseconds",
        (100.0, 500.0, 2000.0, 5000.0),
        unit_ns=1_000_000,
    ),
    *(
        LatencyFamily(
            f"nv_inference_{phase}_duration_histogram_us", phase, text.capitalize(), _BUCKETS_US[phase]
        )
        for phase, text in _DISTRIBUTED.items()
    ),
)


class Latencies:
    """The distributions of one model, by family name."""

    def __init__(self, distributions: Mapping[str, Histogram | Summary], *, decoupled: bool) -> None:
        self.by_family = distributions
        self._of: dict[Phase, tuple[Histogram | Summary, ...]] = {}
        for family in (*SUMMARIES, *HISTOGRAMS):
            if family.name in distributions:
                # the only response is the first one
                whole = not decoupled and family.phase == "first_response"
                for phase in _WHOLE if whole else (family.phase,):
                    self._of[phase] = (*self._of.get(phase, ()), distributions[family.name])

    def executed(self, batch: "Batch", now_ns: int) -> None:
        """Record a computed batch whose requests are being answered."""
        count = len(batch.requests)
        started = batch.started_ns
        requests, queued = self._of.get("request", ()), self._of.get("queue", ())
        for request in batch.requests:
            arrived = request.arrived_ns
            for each in requests:
                each.observe(now_ns - arrived, 1, now_ns)
            for each in queued:
                each.observe(started - arrived, 1, now_ns)
        self.observe("compute_input", batch.gathered_ns - started, now_ns, count)
        self.observe("compute_infer", batch.computed_ns - batch.gathered_ns, now_ns, count)
        self.observe("compute_output", batch.ended_ns - batch.computed_ns, now_ns, count)

    def observe(self, phase: Phase, ns: int, now_ns: int, count: int = 1) -> None:
        """Record a phase that took `ns` for each of `count` requests."""
        for each in self._of.get(phase, ()):
            each.observe(ns, count, now_ns)


def latencies_of(config: ModelConfig, settings: "LatencySettings") -> Latencies | None:
    """Return the distributions that a model keeps under these settings, None if there are none.

    Raises ConfigError if `model_metrics` is invalid, whether it is used or not.
    """
    chosen = {**settings.histogram_buckets, **chosen_buckets(config)}
    now = time.perf_counter_ns()
    kept: dict[str, Histogram | Summary] = {}
    for family in SUMMARIES if settings.summary_latencies else ():
        if _is_measured(config, family.phase):
            kept[family.name] = Summary(settings.quantile_error, now)
    for family in HISTOGRAMS if settings.histogram_latencies else ():
        if _is_measured(config, family.phase):
            kept[family.name] = Histogram(chosen.get(family.name, family.buckets), family.unit_ns)
    decoupled = bool(config.model_transaction_policy.decoupled)
    return Latencies(kept, decoupled=decoupled) if kept else None


def are_buckets(bounds: Sequence[float]) -> bool:
    """Return True if there are bounds, all finite, each larger than the one before."""
    return bool(bounds) and all(map(math.isfinite, bounds)) and all(a < b for a, b in pairwise(bounds))


def _is_measured(config: ModelConfig, phase: Phase) -> bool:
    """Return whether a phase is measured, as in Triton: no whole requests if some are answered by the
    cache, which would mix two kinds of latency.
    """
    cached: bool = config.response_cache.enable
    if phase == "request":
        return not cached
    return cached or phase not in _OF_CACHE


def chosen_buckets(config: ModelConfig) -> dict[str, tuple[float, ...]]:
    """Return the buckets set by `model_metrics`, by family. Raises ConfigError."""
    known = {family.name for family in HISTOGRAMS}
    chosen = {}
    for index, control in enumerate(config.model_metrics.metric_control):
        field = f"model_metrics.metric_control[{index}]"
        if not control.HasField("metric_identifier"):
            raise ConfigError(
                f"metric control must specify 'metric_identifier' for {config.name}", field=field
            )
        family = control.metric_identifier.family
        if not family:
            raise ConfigError(
                f"metric identifier must specify non-empty 'family' for {config.name}",
                field=f"{field}.metric_identifier",
            )
        if not control.HasField("histogram_options"):
            raise ConfigError(
                f"metric control must specify 'histogram_options' for {config.name}", field=field
            )
        buckets = tuple(control.histogram_options.buckets)
        field += ".histogram_options.buckets"
        if not buckets:
            raise ConfigError(
                f"histogram options must specify non-empty 'buckets' for {config.name}", field=field
            )
        if not are_buckets(buckets):
            raise ConfigError(
                f"histogram options of '{family}' must have finite 'buckets', each larger than the one "
                f"before, for {config.name}",
                field=field,
            )
        if family in known:
            chosen[family] = buckets
        else:
            log.warning(
                "Metric family '%s' in 'metric_identifier' of model '%s' is not a customizable metric%s",
                family,
                config.name,
                nearest(family, known),
            )
    return chosen
