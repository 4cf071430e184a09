"""Counters of the models, as families with one series per model and version."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tpx.protocol.messages import ModelConfig, ModelInstanceGroup
from tpx.serving.distributions.latencies import HISTOGRAMS, SUMMARIES, Histogram, LatencyFamily
from tpx.serving.distributions.quantiles import Summary
from tpx.serving.distributions.settings import LatencySettings
from tpx.serving.frontends.metrics.text import Family, Kind, Line, bound, labels
from tpx.serving.served import Served
from tpx.serving.statistics import Duration


@dataclass(frozen=True, slots=True)
class _Names:
    """Constant labels of a model's series."""

    text: str
    by_reason: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _ModelRow:
    """Snapshot of a model's counters for one page."""

    model: Served
    names: _Names
    durations: Mapping[str, Duration]


@dataclass(frozen=True, slots=True)
class _Metric:
    """One metric of a model; a value of None omits the model."""

    name: str
    help: str
    value: Callable[[_ModelRow], float | None]
    kind: Kind = "counter"


def _make_us_getter(phase: str) -> Callable[[_ModelRow], int]:
    return lambda row: row.durations[phase].ns // 1000


def _make_cache_getter(phase: str, *, count: bool) -> Callable[[_ModelRow], int | None]:
    """Return the value of a model whose responses are cached; only then it has cache series."""

    def value(row: _ModelRow) -> int | None:
        spent = row.durations[phase]
        if not row.model.config.response_cache.enable:
            return None
        return spent.count if count else spent.ns // 1000

    return value


_SUCCESS = _Metric(
    "nv_inference_request_success",
    "Number of successful inference requests, all batch sizes",
    lambda row: row.durations["success"].count,
)
_COUNTS = (
    _Metric(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda row: row.model.statistics.inference_count,
    ),
    _Metric(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda row: row.model.statistics.execution_count,
    ),
)
_COUNTER_LATENCIES = (
    _Metric(
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        _make_us_getter("success"),
    ),
    _Metric(
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        _make_us_getter("queue"),
    ),
    _Metric(
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        _make_us_getter("compute_input"),
    ),
    _Metric(
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        _make_us_getter("compute_infer"),
    ),
    _Metric(
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        _make_us_getter("compute_output"),
    ),
)
_CACHE = (
    _Metric(
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        _make_cache_getter("cache_hit", count=True),
    ),
    _Metric(
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        _make_cache_getter("cache_hit", count=False),
    ),
    _Metric(
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        _make_cache_getter("cache_miss", count=True),
    ),
    _Metric(
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        _make_cache_getter("cache_miss", count=False),
    ),
)
_GAUGES = (
    _Metric(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda row: row.model.pending,
        "gauge",
    ),
    _Metric(
        "tpx_requests_in_flight",
        "Number of inference requests that are not yet answered",
        lambda row: row.model.in_flight,
        "gauge",
    ),
    _Metric(
        "nv_model_load_duration_secs",
        "Model load time in seconds",
        lambda row: row.model.statistics.load_ns / 1e9,
        "gauge",
    ),
)


class ModelFamilies:
    """Builds the families of the served models."""

    def __init__(self, settings: LatencySettings, gpu_uuids: Mapping[int, str]) -> None:
        """`gpu_uuids` by CUDA device number."""
        self._settings = settings
        self._gpu_uuids = gpu_uuids
        self._names: WeakKeyDictionary[Served, _Names] = WeakKeyDictionary()

    def rows(self, models: Iterable[Served]) -> Iterator[_ModelRow]:
        """Snapshot the counters of each model."""
        for model in models:
            yield _ModelRow(model, self._make_names(model), model.statistics.durations())

    def of(self, rows: Sequence[_ModelRow], now_ns: int) -> Iterator[Family]:
        """Build the families; optional ones only if at least one model has them."""
        settings = self._settings
        counted = settings.counter_latencies
        yield _build_family(_SUCCESS, rows)
        yield _build_failures(rows)
        for metric in (*_COUNTS, *((*_COUNTER_LATENCIES, *_CACHE) if counted else ()), *_GAUGES):
            yield _build_family(metric, rows)
        if settings.histogram_latencies:
            for family in HISTOGRAMS:
                yield _build_histogram(family, rows)
        if settings.summary_latencies:
            shares = [quantile.q for quantile in settings.summary_quantiles]
            for family in SUMMARIES:
                yield _build_summary(family, rows, shares, now_ns)

    def _make_names(self, model: Served) -> _Names:
        names = self._names.get(model)
        if names is None:
            namespace = model.model_id.namespace
            pairs = {"model": model.name, **({"namespace": namespace} if namespace else {})}
            pairs["version"] = str(model.version)
            pairs |= {f"_{key}": value for key, value in model.config.metric_tags.items()}
            gpu = gpu_of(model.config)
            if gpu is not None and gpu in self._gpu_uuids:
                pairs["gpu_uuid"] = self._gpu_uuids[gpu]
            reasons = {reason: labels({**pairs, "reason": reason}) for reason in model.statistics.failures}
            names = self._names[model] = _Names(labels(pairs), reasons)
        return names


def _build_family(metric: _Metric, rows: Sequence[_ModelRow]) -> Family:
    values = ((row.names.text, metric.value(row)) for row in rows)
    lines = ((f"{{{text}}}", value) for text, value in values if value is not None)
    return Family(
        name=metric.name, kind=metric.kind, help=metric.help, lines=lines, optional=metric in _CACHE
    )


def _build_failures(rows: Sequence[_ModelRow]) -> Family:
    return Family(
        name="nv_inference_request_failure",
        kind="counter",
        help="Number of failed inference requests, all batch sizes",
        lines=(
            (f"{{{row.names.by_reason[reason]}}}", count)
            for row in rows
            for reason, count in row.model.statistics.failures.items()
        ),
    )


def _build_histogram(family: LatencyFamily, rows: Sequence[_ModelRow]) -> Family:
    def lines() -> Iterator[Line]:
        for row in rows:
            kept, text = _find_distribution(row.model, family), row.names.text
            if not isinstance(kept, Histogram):
                continue
            yield from _format_totals(text, kept, family)
            for upper, count in zip(kept.bounds, kept.cumulative(), strict=True):
                yield f'_bucket{{{text},le="{bound(upper)}"}}', count
            yield f'_bucket{{{text},le="+Inf"}}', kept.count

    return Family(name=family.name, kind="histogram", help=family.help, lines=lines(), optional=True)


def _build_summary(
    family: LatencyFamily, rows: Sequence[_ModelRow], shares: Sequence[float], now_ns: int
) -> Family:
    def lines() -> Iterator[Line]:
        for row in rows:
            kept, text = _find_distribution(row.model, family), row.names.text
            if not isinstance(kept, Summary):
                continue
            yield from _format_totals(text, kept, family)
            for share, ns in zip(shares, kept.read_ns(shares, now_ns), strict=True):
                value = math.nan if ns is None else ns // family.unit_ns
                yield f'{{{text},quantile="{share!r}"}}', value

    return Family(name=family.name, kind="summary", help=family.help, lines=lines(), optional=True)


def _format_totals(text: str, kept: Histogram | Summary, family: LatencyFamily) -> list[Line]:
    """Return count and sum in whole units, as prometheus-cpp does in Triton."""
    return [(f"_count{{{text}}}", kept.count), (f"_sum{{{text}}}", kept.total_ns // family.unit_ns)]


def _find_distribution(model: Served, family: LatencyFamily) -> Histogram | Summary | None:
    kept = model.statistics.latencies
    return None if kept is None else kept.by_family.get(family.name)


def gpu_of(config: ModelConfig) -> int | None:
    """Return the GPU that a model's instances share; None if there are several, as sums have no label."""
    groups = [group for group in config.instance_group if not group.passive]
    if any(group.kind != ModelInstanceGroup.KIND_GPU for group in groups):
        return None
    used = {device for group in groups for device in list(group.gpus) or [0]}
    return used.pop() if len(used) == 1 else None
