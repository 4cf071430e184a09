"""Counters of the models, as families with one series per model and version."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from tpx.protocol.messages import ModelConfig, ModelInstanceGroup
from tpx.serving.distributions.latencies import HISTOGRAMS, MEASURED, SUMMARIES, LatencyFamily
from tpx.serving.distributions.quantiles import Summary
from tpx.serving.distributions.settings import LatencySettings
from tpx.serving.frontends.metrics.text import Family, Kind, Line, bound, labels
from tpx.serving.served import Served
from tpx.serving.statistics import Duration


class _Names(NamedTuple):
    """Constant labels of a model's series."""

    text: str
    by_reason: Mapping[str, str]


class _ModelRow(NamedTuple):
    """Snapshot of a model's counters for one page."""

    model: Served
    names: _Names
    durations: Mapping[str, Duration]


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
        yield _build_family(
            "nv_inference_request_success",
            "Number of successful inference requests, all batch sizes",
            rows,
            lambda row: row.durations["success"].count,
        )
        yield _build_failures(rows)
        yield _build_family(
            "nv_inference_count",
            "Number of inferences performed (does not include cached requests)",
            rows,
            lambda row: row.model.statistics.inference_count,
        )
        yield _build_family(
            "nv_inference_exec_count",
            "Number of model executions performed (does not include cached requests)",
            rows,
            lambda row: row.model.statistics.execution_count,
        )
        if settings.counter_latencies:
            yield from _build_durations(rows)
        yield from _build_gauges(rows)
        shares = [quantile.q for quantile in settings.summary_quantiles]
        for family in HISTOGRAMS if settings.histogram_latencies else ():
            yield _build_distribution(family, rows, shares, now_ns)
        for family in SUMMARIES if settings.summary_latencies else ():
            yield _build_distribution(family, rows, shares, now_ns)

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


def _build_family(
    name: str,
    text: str,
    rows: Iterable[_ModelRow],
    value: Callable[[_ModelRow], float],
    kind: Kind = "counter",
) -> Family:
    lines = ((f"{{{row.names.text}}}", value(row)) for row in rows)
    return Family(name=name, kind=kind, help=text, lines=lines)


def _build_durations(rows: Sequence[_ModelRow]) -> Iterator[Family]:
    for measured, text in MEASURED.items():
        value = _make_us_getter("success" if measured == "request" else measured)
        yield _build_family(f"nv_inference_{measured}_duration_us", f"Cumulative {text}", rows, value)
    cached = [row for row in rows if row.model.config.response_cache.enable]
    for what, plural, extra in (
        (("hit", "hits", ""), ("miss", "misses", " (insert+lookup)")) if cached else ()
    ):
        phase = f"cache_{what}"
        name, text = f"nv_cache_num_{plural}_per_model", f"Number of cache {plural} per model"
        yield _build_family(name, text, cached, _make_count_getter(phase))
        text = f"Total cache {what}{extra} duration per model, in microseconds"
        yield _build_family(f"nv_cache_{what}_duration_per_model", text, cached, _make_us_getter(phase))


def _make_us_getter(phase: str) -> Callable[[_ModelRow], int]:
    return lambda row: row.durations[phase].ns // 1000


def _make_count_getter(phase: str) -> Callable[[_ModelRow], int]:
    return lambda row: row.durations[phase].count


def _build_gauges(rows: Sequence[_ModelRow]) -> Iterator[Family]:
    text = "Instantaneous number of pending requests awaiting execution per-model."
    yield _build_family(
        "nv_inference_pending_request_count", text, rows, lambda row: row.model.pending, "gauge"
    )
    text = "Number of inference requests that are not yet answered"
    yield _build_family("tpx_requests_in_flight", text, rows, lambda row: row.model.in_flight, "gauge")
    name, text = "nv_model_load_duration_secs", "Model load time in seconds"
    yield _build_family(name, text, rows, lambda row: row.model.statistics.load_ns / 1e9, "gauge")


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


def _build_distribution(
    family: LatencyFamily, rows: Sequence[_ModelRow], shares: Sequence[float], now_ns: int
) -> Family:
    def lines() -> Iterator[Line]:
        for row in rows:
            latencies, text = row.model.statistics.latencies, row.names.text
            kept = None if latencies is None else latencies.by_family.get(family.name)
            if kept is None:
                continue
            yield f"_count{{{text}}}", kept.count
            # in whole units, as prometheus-cpp does in Triton
            yield f"_sum{{{text}}}", kept.total_ns // family.unit_ns
            if isinstance(kept, Summary):
                for share, ns in zip(shares, kept.read_ns(shares, now_ns), strict=True):
                    value = math.nan if ns is None else ns // family.unit_ns
                    yield f'{{{text},quantile="{share!r}"}}', value
            else:
                for upper, count in zip(kept.bounds, kept.cumulative(), strict=True):
                    yield f'_bucket{{{text},le="{bound(upper)}"}}', count
                yield f'_bucket{{{text},le="+Inf"}}', kept.count

    kind: Kind = "histogram" if family.buckets else "summary"
    return Family(name=family.name, kind=kind, help=family.help, lines=lines(), optional=True)


def gpu_of(config: ModelConfig) -> int | None:
    """Return the GPU that a model's instances share; None if there are several, as sums have no label."""
    groups = [group for group in config.instance_group if not group.passive]
    if any(group.kind != ModelInstanceGroup.KIND_GPU for group in groups):
        return None
    used = {device for group in groups for device in list(group.gpus) or [0]}
    return used.pop() if len(used) == 1 else None
