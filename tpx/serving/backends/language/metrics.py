"""Metrics of an engine, with the names of vLLM's, so that its dashboards and autoscalers work."""

from typing import TYPE_CHECKING

from tpx.serving.backends.python.worker.metrics import Metric, MetricFamily, MetricKind
from tpx.serving.backends.python.worker.runtime import RUNTIME

if TYPE_CHECKING:
    from tpx.serving.backends.language.generation import Generation

_SECONDS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_TOKEN_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5]
_REQUEST_SECONDS = [0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0]
_COUNTER, _GAUGE, _HISTOGRAM = MetricKind


class EngineMetrics:
    """The series of one engine."""

    def __init__(self, model: str, version: str, context: int) -> None:
        """`context` is the number of tokens that the engine can hold."""
        self._context = context
        self._labels = {"model": model, "version": version}
        self._families: list[MetricFamily] = []
        self._running = self._make("num_requests_running", "Requests that are computed", _GAUGE)
        self._waiting = self._make("num_requests_waiting", "Requests that wait for a sequence", _GAUGE)
        self._used = self._make("kv_cache_usage_perc", "Share of the KV cache in use, 1 is all", _GAUGE)
        self._prompt = self._make("prompt_tokens_total", "Tokens of prompts", _COUNTER)
        self._made = self._make("generation_tokens_total", "Generated tokens", _COUNTER)
        text = "Seconds from the arrival of a request to its first token"
        self._first = self._make("time_to_first_token_seconds", text, _HISTOGRAM, _SECONDS)
        text = "Seconds per token after the first: the mean of its request, once per token"
        self._token = self._make("time_per_output_token_seconds", text, _HISTOGRAM, _TOKEN_SECONDS)
        text = "Seconds from the arrival of a request to its end"
        self._whole = self._make("e2e_request_latency_seconds", text, _HISTOGRAM, _REQUEST_SECONDS)
        self._told = (0, 0, 0)

    def _make(self, name: str, text: str, kind: MetricKind, buckets: list[float] | None = None) -> Metric:
        family = MetricFamily(f"vllm:{name}", text, kind)
        self._families.append(family)
        return family.Metric(self._labels, buckets)

    def note_load(self, running: int, waiting: int, tokens: int) -> None:
        """Set the gauges that have changed."""
        values = (running, waiting, tokens)
        told, self._told = self._told, values
        scales = (1, 1, self._context)
        for metric, scale, value, old in zip(
            (self._running, self._waiting, self._used), scales, values, told, strict=True
        ):
            if value != old:
                metric.set(value / scale)

    def ended(self, generation: "Generation") -> None:
        """Count a request."""
        usage = generation.view.usage
        self._prompt.increment(usage.prompt or generation.prompt_tokens)
        self._made.increment(usage.completion or generation.made)
        if generation.first_ns:
            self._first.observe((generation.first_ns - generation.arrived_ns) / 1e9)
        gaps = (usage.completion or generation.made) - 1
        if gaps > 0:
            mean_s = (generation.last_ns - generation.first_ns) / 1e9 / gaps
            number, _ = self._token._check_kind("observe metric", "Observe", _HISTOGRAM)
            RUNTIME.server.tell("observe", id=number, value=mean_s, count=gaps)
        if generation.succeeded:
            self._whole.observe((generation.last_ns - generation.arrived_ns) / 1e9)
