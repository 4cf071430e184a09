"""The metrics endpoint: Triton's names in Prometheus' text format."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tpx.protocol.http1.server import HttpRequest
from tpx.serving.dataplane import DataPlane
from tpx.serving.model import ServedModel

_TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """One metric: how it is called and what a model contributes."""

    name: str
    kind: str
    help: str
    value: Callable[[ServedModel], float]


def _microseconds(phase: str) -> Callable[[ServedModel], float]:
    return lambda model: model.statistics.durations()[phase].ns // 1000


_FAMILIES = (
    _Family(
        name="nv_inference_request_success",
        kind="counter",
        help="Number of successful inference requests, all batch sizes",
        value=lambda m: m.statistics.durations()["success"].count,
    ),
    _Family(
        name="nv_inference_count",
        kind="counter",
        help="Number of inferences performed (does not include cached requests)",
        value=lambda m: m.statistics.inference_count,
    ),
    _Family(
        name="nv_inference_exec_count",
        kind="counter",
        help="Number of model executions performed (does not include cached requests)",
        value=lambda m: m.statistics.execution_count,
    ),
    _Family(
        name="nv_inference_request_duration_us",
        kind="counter",
        help="Cumulative inference request duration in microseconds (includes cached requests)",
        value=_microseconds("success"),
    ),
    _Family(
        name="nv_inference_queue_duration_us",
        kind="counter",
        help="Cumulative inference queuing duration in microseconds (includes cached requests)",
        value=_microseconds("queue"),
    ),
    _Family(
        name="nv_inference_compute_input_duration_us",
        kind="counter",
        help="Cumulative compute input duration in microseconds (does not include cached requests)",
        value=_microseconds("compute_input"),
    ),
    _Family(
        name="nv_inference_compute_infer_duration_us",
        kind="counter",
        help="Cumulative compute inference duration in microseconds (does not include cached requests)",
        value=_microseconds("compute_infer"),
    ),
    _Family(
        name="nv_inference_compute_output_duration_us",
        kind="counter",
        help="Cumulative inference compute output duration in microseconds "
        "(does not include cached requests)",
        value=_microseconds("compute_output"),
    ),
    _Family(
        name="nv_inference_pending_request_count",
        kind="gauge",
        help="Instantaneous number of pending requests awaiting execution per-model.",
        value=lambda m: m.pending,
    ),
    _Family(
        name="nv_model_load_duration_secs",
        kind="gauge",
        help="Model load time in seconds",
        value=lambda m: m.statistics.load_ns / 1e9,
    ),
)


class MetricsFrontend:
    """Serves GET /metrics."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def serve(self, request: HttpRequest) -> None:
        if request.head.method not in (b"GET", b"HEAD"):
            request.respond(405, b"Allow: GET\r\n")
        elif request.head.path != b"/metrics":
            request.respond(200, _TEXT)
        else:
            request.respond(200, _TEXT, (page(self._plane.served()).encode(),))


def page(models: Iterable[ServedModel]) -> str:
    """All families with the series of `models`, in the text format."""
    models = list(models)
    labels = [(model, _labels(model)) for model in models]
    lines = []
    for family in _FAMILIES:
        lines += _header(family.name, family.kind, family.help)
        lines += [f"{family.name}{{{text}}} {family.value(model)!r}" for model, text in labels]
        if family.name == "nv_inference_request_success":
            lines += _failures(labels)
    return "\n".join(lines) + "\n"


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _failures(labels: list[tuple[ServedModel, str]]) -> list[str]:
    name = "nv_inference_request_failure"
    lines = _header(name, "counter", "Number of failed inference requests, all batch sizes")
    for model, text in labels:
        lines += [
            f'{name}{{{text},reason="{reason}"}} {count}'
            for reason, count in model.statistics.failures.items()
        ]
    return lines


def _labels(model: ServedModel) -> str:
    pairs = {"model": model.name, "version": str(model.version)}
    for key, value in model.config.metric_tags.items():
        pairs["_" + re.sub(r"[^0-9A-Za-z_]", "_", key)] = value
    return ",".join(f'{key}="{_escape(value)}"' for key, value in pairs.items())


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
