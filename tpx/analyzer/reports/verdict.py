"""What a run says about a model, in one sentence and in the figures behind it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tpx.analyzer.objectives import RankedVariant, metric, rank
from tpx.analyzer.results.goals import Constraint, Goals
from tpx.analyzer.results.measurement import Measurement
from tpx.analyzer.results.run import ModelRun


class Finding(Enum):
    """How a search came out."""

    BETTER = "better"
    """A variant beats the default."""
    DEFAULT = "default"
    """Nothing beats the default."""
    DEFAULT_FAILS = "default fails"
    """A variant satisfies the constraints, the default does not or could not be measured."""
    NONE_SATISFIES = "none satisfies"
    NOTHING = "nothing"
    """Not one measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one model's search."""

    model: str
    finding: Finding
    sentence: str
    """Without a full stop; configuration names stand between backticks."""
    detail: str
    """The load and latency behind the sentence; empty where there is nothing to add."""
    ranking: tuple[RankedVariant, ...] = ()
    best: RankedVariant | None = None
    """The recommended configuration, or the one nearest to satisfying."""
    default: RankedVariant | None = None
    gain_percent: float | None = None
    """Of the best configuration's throughput over the default's, both at their own best load."""


def judge(model: ModelRun, goals: Goals) -> Verdict:
    """The verdict of one model's search under the run's goals."""
    goals = goals.of(model.model)
    ranking = rank(model, goals)
    if not ranking:
        return Verdict(
            model=model.model, finding=Finding.NOTHING, sentence=_nothing(model), detail=_why_nothing(model)
        )
    best = ranking[0]
    default = next((r for r in ranking if r.run.variant.is_default), None)
    gain = _gain_percent(best, default)
    finding = _finding(best, default)
    return Verdict(
        model=model.model,
        finding=finding,
        sentence=_sentence(model, finding, best, default, goals),
        detail=_detail(best.best),
        ranking=ranking,
        best=best,
        default=default,
        gain_percent=gain,
    )


def is_about_equal(verdict: Verdict, tolerance_percent: float) -> bool:
    """Whether the best configuration gains less than the windows of one stable measurement may differ."""
    gain = verdict.gain_percent
    return verdict.finding is Finding.BETTER and gain is not None and gain < tolerance_percent


def caution(verdict: Verdict, model: ModelRun, tolerance_percent: float) -> str:
    """What speaks against taking the verdict at its word; empty where nothing does."""
    parts = []
    if is_about_equal(verdict, tolerance_percent):
        parts.append(
            f"The gain is less than the {tolerance_percent:g} % by which the windows of one stable "
            "measurement may differ: take the two configurations as equal, and measure again before you "
            "change anything."
        )
    if verdict.best is not None and not verdict.best.best.stable:
        why = verdict.best.best.note or "its windows differ"
        parts.append(f"The best measurement did not become stable: {why.rstrip('.')}.")
    if model.failures and verdict.finding is not Finding.NOTHING:
        parts.append(f"{plural(len(model.failures), 'trial')} failed, with the reasons in the report.")
    return " ".join(parts)


def counts(model: ModelRun) -> str:
    """`41 measurements across 6 configurations`."""
    return (
        f"{plural(model.measurement_count, 'measurement')} across "
        f"{plural(len(model.measured), 'configuration')}"
    )


def describe_constraints(constraints: Sequence[Constraint]) -> str:
    """`p99 latency of at most 10 ms and throughput of at least 50 infer/sec`."""
    words = {"max": "at most", "min": "at least"}
    return " and ".join(
        f"{_in_words(c.tag)} of {words[c.bound]} {c.limit:g} {metric(c.tag).unit}".rstrip()
        for c in constraints
    )


def describe_miss(measurement: Measurement, constraints: Sequence[Constraint]) -> str:
    """`p99 latency 12.4 ms, 24% over`, of the constraints that the measurement does not satisfy."""
    parts = []
    for constraint in constraints:
        measured = metric(constraint.tag)
        value = measured.value(measurement)
        if constraint.satisfied_by(value):
            continue
        if value is None:
            parts.append(f"{_in_words(constraint.tag)} not measured")
        else:
            side = "over" if constraint.bound == "max" else "under"
            percent = constraint.failure_percent(value)
            parts.append(f"{_in_words(constraint.tag)} {value:.1f} {measured.unit}, {percent:.0f}% {side}")
    return "; ".join(parts)


def _finding(best: RankedVariant, default: RankedVariant | None) -> Finding:
    if not best.satisfies:
        return Finding.NONE_SATISFIES
    if best is default:
        return Finding.DEFAULT
    if default is None or not default.satisfies:
        return Finding.DEFAULT_FAILS
    return Finding.BETTER


def _gain_percent(best: RankedVariant, default: RankedVariant | None) -> float | None:
    if default is None or not best.satisfies or not default.satisfies or default.best.throughput <= 0:
        return None
    return (best.best.throughput / default.best.throughput - 1) * 100


def _sentence(
    model: ModelRun, finding: Finding, best: RankedVariant, default: RankedVariant | None, goals: Goals
) -> str:
    start = f"In {counts(model)}, "
    limits = describe_constraints(goals.constraints)
    under = f", with a {limits}" if limits else ""
    throughput = f"{best.best.throughput:.0f} infer/sec"
    if finding is Finding.NONE_SATISFIES:
        nearest = describe_miss(best.best, goals.constraints)
        return f"{start}no configuration satisfies a {limits}; closest: `{best.name}` ({nearest})"
    if finding is Finding.DEFAULT:
        return f"{start}the default configuration is best: {throughput}{under}"
    gives = f"{start}`{best.name}` gives {throughput}"
    gain = _gain_percent(best, default)
    if default is None:
        return f"{gives}{under}; the default configuration could not be measured"
    if gain is None:
        miss = describe_miss(default.best, goals.constraints)
        return f"{gives}{under}; the default configuration misses it ({miss})"
    base = f"{default.best.throughput:.0f} infer/sec"
    return f"{gives}, a {gain:.0f}% gain over the default configuration ({base}){under}"


def _detail(measurement: Measurement) -> str:
    parts = [f"at {measurement.load}"]
    p99_ns = measurement.latency.p99_ns
    if p99_ns is not None:
        parts.append(f"p99 {milliseconds(p99_ns)} ms")
    if not measurement.stable:
        parts.append("not stable")
    return ", ".join(parts)


def _nothing(model: ModelRun) -> str:
    if model.unavailable:
        return f"`{model.model}` cannot be profiled"
    return f"No configuration of `{model.model}` could be measured"


def _why_nothing(model: ModelRun) -> str:
    if model.unavailable:
        return model.unavailable.reason
    if model.failures:
        return model.failures[0].reason
    return model.decisions[0].text if model.decisions else "the run ended before the first measurement"


def _in_words(tag: str) -> str:
    name = metric(tag).name
    return name if name[:3].isupper() else name[0].lower() + name[1:].lower()


def milliseconds(duration_ns: int) -> str:
    """`22.3`, and below one `0.41`."""
    value = duration_ns / 1e6
    return f"{value:,.1f}" if value >= 1 else f"{value:.2f}"


def plural(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
