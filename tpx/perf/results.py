"""The results of a measurement, as plain values: windows, levels, and their figures."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tpx.perf.clients.model import TensorDescription
from tpx.perf.levels import REQUEST_RATE, Level
from tpx.perf.metrics_page import MetricsFigures
from tpx.perf.objectives import Assessment
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import Batches, LatencySummary

DELIVERED = 0.95
"""Minimum share of a request rate that must be answered for the server to keep up."""
DOMINANT_SHARE = 0.3
"""Share of the median latency from which wake-ups dominate."""


class Verdict(Enum):
    """The outcome of a level."""

    OK = "ok"
    UNSTABLE = "unstable"
    OVER_LIMIT = "over_limit"
    BORDERLINE = "borderline"
    """The requests do not settle on which side of the latency limit the level lies."""
    ERRORS = "errors"
    """No request succeeded, or more failed than the budget allows."""
    CLIENT_BOUND = "client_bound"
    """The load generator itself limited the measurement."""

    @property
    def text(self) -> str:
        return self.value.replace("_", " ")

    @property
    def flag(self) -> str:
        """Severity in reports: `ok`, `warn` or `bad`."""
        if self in (Verdict.OVER_LIMIT, Verdict.ERRORS):
            return "bad"
        return "ok" if self is Verdict.OK else "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """A summary of the data: its size, and the tensors of its first request."""

    streams: int = 1
    steps: int = 1
    tensors: tuple[TensorDescription, ...] = ()
    made: bool = False
    """True if the values are generated."""
    guesses: tuple[str, ...] = ()
    """Shapes that nobody has named (--assume-shapes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """Failed requests of one kind: `code` such as "HTTP 500", and the first one's message, verbatim."""

    code: str
    count: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBreakdown:
    """Growth of a model's server-side counters over a measurement; durations are sums in ns."""

    model: str
    version: str
    inference_count: int = 0
    execution_count: int = 0
    success_count: int = 0
    success_ns: int = 0
    fail_count: int = 0
    queue_count: int = 0
    queue_ns: int = 0
    compute_count: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    cache_hit_count: int = 0
    cache_hit_ns: int = 0
    cache_miss_count: int = 0
    cache_miss_ns: int = 0
    response_cache: bool = False
    """True if the model's configuration enables the response cache."""
    composing: tuple["ServerBreakdown", ...] = ()
    """Models of an ensemble's steps, each with its own composing models."""

    @property
    def mean_batch(self) -> float:
        """Inferences per execution of the model; 0 without executions."""
        return self.inference_count / self.execution_count if self.execution_count else 0.0

    def walk(self, depth: int = 0) -> Iterator[tuple[int, "ServerBreakdown"]]:
        """Yield this model and those that it is composed of, each with its depth."""
        yield depth, self
        for part in self.composing:
            yield from part.walk(depth + 1)

    @property
    def caches_responses(self) -> bool:
        """True if the model, or one that it is composed of, uses the response cache."""
        return any(model.response_cache for _, model in self.walk())

    @property
    def compute_ns(self) -> int:
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns

    @property
    def stages(self) -> dict[str, tuple[int, int]]:
        """Total ns of each stage of a request, and the number of requests that had it."""
        return {
            "queue": (self.queue_ns, self.queue_count),
            "compute_input": (self.compute_input_ns, self.compute_count),
            "compute_infer": (self.compute_infer_ns, self.compute_count),
            "compute_output": (self.compute_output_ns, self.compute_count),
            "cache_hit": (self.cache_hit_ns, self.cache_hit_count),
            "cache_miss": (self.cache_miss_ns, self.cache_miss_count),
        }

    def mean_ns(self, stage: str) -> int:
        """Return the mean time of one of `stages`, over the requests that had it."""
        total_ns, count = self.stages[stage]
        return total_ns // max(count, 1)

    @property
    def accounted_ns(self) -> int:
        """Mean queue, compute and cache times, each over the requests that had it, added up."""
        means = (self.mean_ns(stage) for stage in ("queue", "cache_hit", "cache_miss"))
        return sum(means) + self.compute_ns // max(self.compute_count, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTimes:
    """Mean times per successful request in ns: writing it, waiting for the response, reading the response."""

    send_ns: int
    wait_ns: int
    receive_ns: int

    @property
    def total_ns(self) -> int:
        return self.send_ns + self.wait_ns + self.receive_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyEstimate:
    """A percentile, or the mean if None, with its interval in ns; `note` says why it has no upper bound."""

    percentile: float | None
    interval: Interval
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Confidence intervals of a level's figures, and the batches that they are computed from.

    `throughput` is in inferences per second; `latency` has the mean and every reported percentile.
    `batches` is None in a journal of tpx analyze, which leaves them out.
    """

    throughput: Interval
    latency: tuple[LatencyEstimate, ...]
    batches: Batches | None = None

    def at(self, percentile: float | None) -> LatencyEstimate | None:
        """Return the estimate of a percentile, or of the mean for None; None if it was not computed."""
        return next((e for e in self.latency if e.percentile == percentile), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCheck:
    """The state of the load generator itself during the measurement.

    `cpu_share` is 1 if its event loop never waited; `loop_lag_p99_ns` is how long the loop delayed due
    callbacks, `slip_p99_ns` how late requests were sent.
    """

    cpu_share: float
    loop_lag_p99_ns: int
    slip_p99_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Figures of a level's successful requests that only an open loop has.

    A level's `latency` counts from the time at which a request was due, `service_latency` from when it
    was sent; `slip` is the difference.
    """

    service_latency: LatencySummary
    slip: LatencySummary
    delayed: int
    """Requests sent more than a millisecond late."""
    sent_per_s: float
    skipped: int = 0
    """Requests of the whole level that were skipped because they were late (`--on-late skip`)."""
    connections: int = 0
    """Number of connections at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigure:
    """The distribution of one figure of streamed responses: a time in ns, or a number of tokens.

    `name` is `ttft`, `ttst`, `ttfo`, `itl`, `icl`, `input_tokens` or `output_tokens`: `measure/streams.py`
    defines them. `estimates` has intervals of the mean and the percentiles; none for a mean of levels.
    """

    name: str
    summary: LatencySummary
    estimates: tuple[LatencyEstimate, ...] = ()

    @property
    def mean(self) -> float:
        """The mean, not rounded: a number of tokens is small."""
        return self.estimates[0].interval.value if self.estimates else self.summary.mean_ns

    @property
    def counts_tokens(self) -> bool:
        return self.name.endswith("_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpan:
    """One request in time, in ns since the first of several was due: due, first response, last response."""

    due_ns: int
    first_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that met every bound of `--goodput`: their number, share of all, and rate with interval."""

    requests: int
    share: float
    per_s: Interval
    bounds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """Figures of a level's successful requests if they may have several responses.

    A level's `latency` is that of the last response; `figures` has the time to the first (`ttft`), between
    two (`icl`), and more if the service counts units, such as tokens of a language model. `units` is their
    number; 0 if it counts none.
    """

    responses: int
    responses_per_s: float
    figures: tuple[StreamFigure, ...]
    units: int = 0
    units_per_s: float = 0.0
    prompt_units: int = 0
    cached_units: int = 0
    """Units of the prompts that the service had in its cache."""
    reasoning_units: int = 0
    spans: tuple[RequestSpan, ...] = ()
    """The last requests, if the service counts units; none in a journal of tpx analyze."""

    @property
    def user_units_per_s(self) -> float | None:
        """Units per second that one user gets: the inverse of the usual time between two; None if unknown."""
        between = self.times("itl")
        usual_ns = between.at(50.0) if between else 0
        return 1e9 / usual_ns if usual_ns else None

    def figure(self, name: str) -> StreamFigure | None:
        """Return a figure by its name; None if no request has it."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def times(self, name: str) -> LatencySummary | None:
        """Return the distribution of a figure; None if no request has it."""
        found = self.figure(name)
        return None if found is None else found.summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The outcome of a level's conversations.

    `finished` ones had a response to their last turn; `unsent_turns` were not sent because an earlier
    one failed or the level ended.
    """

    total: int
    finished: int
    unsent_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window of a level; throughput and latency are those of its successful requests."""

    start_ns: int
    end_ns: int
    requests: int
    failed: int
    throughput_infer_per_s: float
    latency: LatencySummary | None
    client_busy: float
    """Share of the window in which the client's event loop was on the processor."""
    stabilizing_percentile: float | None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def latency_ns(self) -> int:
        """Latency at the stabilizing percentile; 0 if no request succeeded."""
        return self.latency.at(self.stabilizing_percentile) if self.latency else 0

    @property
    def dead(self) -> bool:
        """True if every request failed: the server is gone, or rejects the requests."""
        return self.latency is None and self.failed > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFigures:
    """The share of one of several models in a level; `latency` is None if no request succeeded."""

    model: str
    weight: float
    requests: int
    failed: int
    throughput_infer_per_s: float
    latency: LatencySummary | None
    server: ServerBreakdown | None


@dataclass(frozen=True, slots=True)
class WakeUps:
    """The cost of a wake-up, and the share of the median latency that a request's wake-ups take."""

    cost_ns: int
    share: float

    @property
    def warning(self) -> str:
        """Warning for a level whose latency is dominated by wake-ups."""
        return (
            f"Wake-ups dominate: {self}. The figures of this level are as much the machine's as the "
            "server's, and differ from run to run; --poll busy measures without those of the client."
        )

    def __str__(self) -> str:
        return (
            f"a wake-up costs {self.cost_ns / 1000:.1f} usec on this machine, and those of a request are "
            f"{min(self.share, 1) * 100:.0f}% of the p50"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """One load level. Its figures are those of the last `kept_windows` windows, even if it is not
    stable.

    `latency` and `client` are None if no request succeeded. `percentile` is the one used for stability,
    limit and summary; None is the mean.
    """

    level: Level
    batch_size: int
    verdict: Verdict = Verdict.OK
    stable: bool = True
    interrupted: bool = False
    over_budget: bool = False
    """True if more requests failed than --max-errors allows."""
    reason: str = ""
    """Reason why the verdict is not ok, for the user."""
    percentile: float | None = None
    windows: tuple[Window, ...] = ()
    requests: int = 0
    duration_ns: int = 0
    throughput_infer_per_s: float
    latency: LatencySummary | None = None
    client: ClientTimes | None = None
    client_busy: float = 0.0
    server: ServerBreakdown | None = None
    failed: int = 0
    """Failed requests of the whole level; `errors` has them by kind."""
    resent: int = 0
    """Requests of the whole level whose connection closed before a byte of the response, sent again."""
    errors: tuple[ErrorCount, ...] = ()
    seed: int = 0
    """Seed of this level's random draws."""
    kept_windows: int = 0
    """Number of windows, at the end of the level, that the figures are computed over."""
    warmup_windows: int = 0
    """Number of leading windows left out as warm-up."""
    estimates: Estimates | None = None
    """None if no request succeeded."""
    in_flight: float = 0.0
    """Average number of requests in flight: completion rate times service time (Little's law)."""
    client_check: ClientCheck | None = None
    wake_ups: WakeUps | None = None
    """Cost of wake-ups; None if they are a small part of the latency or were not measured."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt the figures, for the user."""
    guesses: tuple[str, ...] = ()
    """Properties of the requests that were guessed; they stand among the warnings, too."""
    slo: tuple[Assessment, ...] = ()
    """Assessment of each objective."""
    members: tuple[MemberFigures, ...] = ()
    """Figures per model, if several are measured at once; the level's own figures are their sum."""
    open_loop: OpenLoop | None = None
    """None for a closed loop, and if no request succeeded."""

    streaming: Streaming | None = None
    """None if each request has one response, and if none had any."""
    goodput: Goodput | None = None
    """None without `--goodput`."""
    metrics: MetricsFigures | None = None
    """None if the server's metrics were not requested."""
    sequences: int | None = None
    """Number of sequences that ended in the kept windows; None if requests do not belong to sequences."""
    sessions: Sessions | None = None
    """None if requests are not turns of conversations."""

    @property
    def meets_slo(self) -> bool:
        """True if every objective is met with confidence; also without objectives."""
        return all(a.met for a in self.slo)

    @property
    def falls_behind(self) -> bool:
        """True if the server does not keep up with a request rate, so that a queue builds up."""
        if self.level.kind is not REQUEST_RATE:
            return False
        return self.throughput_infer_per_s < DELIVERED * self.level.value * self.batch_size

    @property
    def meets_limits(self) -> bool:
        """True if perf_analyzer would have included the level in its results."""
        return self.verdict in (Verdict.OK, Verdict.CLIENT_BOUND) and not self.interrupted

    @property
    def network_ns(self) -> int:
        """Mean time per request between the client's waiting and the server's accounted times, at least 0."""
        if self.client is None or self.server is None or not self.server.success_count:
            return 0
        return max(0, self.client.wait_ns - self.server.accounted_ns)
