"""What a run says about a model, in one sentence and in the figures behind it."""

from dataclasses import dataclass
from enum import Enum

from tpx.analyzer.conclusion import Conclusion, conclude
from tpx.analyzer.gains import Gain
from tpx.analyzer.limits import describe_limits, describe_misses, figure, in_words, limits_of
from tpx.analyzer.objectives import RankedVariant, gain_percent, metric, rank, unmeasured
from tpx.analyzer.results.goals import Goals
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
    INCONCLUSIVE = "inconclusive"
    """A variant may be better than the default, or not: the repetitions do not tell."""
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
    """Of the best configuration over the default at what is asked for, both at their own best load."""
    conclusion: Conclusion | None = None
    """What the final repetitions say; None where there were none, or one, which has no interval."""
    inconclusive: str = ""
    """Why a gain cannot be believed."""

    @property
    def gain(self) -> Gain | None:
        """Of the recommended configuration over the default, with its interval."""
        return self.conclusion.gain if self.conclusion else None


def judge(model: ModelRun, goals: Goals) -> Verdict:
    """The verdict of one model's search under the run's goals."""
    goals = goals.of(model.model)
    ranking = rank(model, goals)
    if not ranking or model.unavailable:
        return Verdict(
            model=model.model, finding=Finding.NOTHING, sentence=_nothing(model), detail=model.why_nothing
        )
    conclusion = conclude(ranking, goals, model.model)
    best = conclusion.recommended if conclusion else ranking[0]
    default = next((r for r in ranking if r.run.variant.is_default), None)
    finding, gain = _finding(best, default), _gain_percent(best, default, goals)
    inconclusive = ""
    if finding is Finding.BETTER:
        unconfirmed = _unconfirmed(model, best, default, gain)
        inconclusive = unconfirmed or (conclusion.inconclusive if conclusion else "")
    lacking = unmeasured(best.figures, goals) if best.satisfies else ()
    if lacking:  # all are alike then, also where the default comes first
        inconclusive = f"nothing measured {in_words(lacking[0])}"
    finding = Finding.INCONCLUSIVE if inconclusive else finding
    return Verdict(
        model=model.model,
        finding=finding,
        sentence=_sentence(model, finding, best, default, goals, conclusion, inconclusive),
        detail=_detail(best.figures, conclusion, certain=finding is not Finding.INCONCLUSIVE),
        ranking=ranking,
        best=best,
        default=default,
        gain_percent=gain,
        conclusion=conclusion,
        inconclusive=inconclusive,
    )


def is_about_equal(verdict: Verdict, tolerance_percent: float) -> bool:
    """Whether the best configuration gains less than the windows of one stable measurement may differ; never
    where repetitions say how sure the gain is."""
    gain = verdict.gain_percent
    if verdict.gain is not None and verdict.gain.rounds > 1:
        return False
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
    parts += _caution_of_rounds(verdict)
    if verdict.best is not None and not verdict.best.figures.stable:
        why = verdict.best.figures.note or "its windows differ"
        parts.append(f"The best measurement did not become stable: {why.rstrip('.')}.")
    if model.failures and verdict.finding is not Finding.NOTHING:
        parts.append(f"{plural(len(model.failures), 'trial')} failed, with the reasons in the report.")
    return " ".join(parts)


def _caution_of_rounds(verdict: Verdict) -> list[str]:
    conclusion, parts = verdict.conclusion, []
    if verdict.inconclusive:
        parts.append("Measure again on a quiet machine, or longer, before you change anything.")
    if conclusion is None:
        return parts
    if conclusion.noise:
        parts.append(f"The machine was not quiet: {'; '.join(conclusion.noise)}.")
    parts += [
        f"Undetermined whether it keeps {limit}: the repetitions lie on both sides of it."
        for limit in conclusion.undetermined
    ]
    parts += [
        f"Undetermined whether the default misses {limit}: its repetitions lie on both sides of it."
        for limit in conclusion.missed_perhaps
    ]
    return parts


def counts(model: ModelRun) -> str:
    """`41 measurements across 6 configurations`."""
    return (
        f"{plural(model.measurement_count, 'measurement')} across "
        f"{plural(len(model.measured), 'configuration')}"
    )


def _finding(best: RankedVariant, default: RankedVariant | None) -> Finding:
    if not best.satisfies:
        return Finding.NONE_SATISFIES
    if best is default:
        return Finding.DEFAULT
    if default is None or not default.satisfies:
        return Finding.DEFAULT_FAILS
    return Finding.BETTER


def _unconfirmed(
    model: ModelRun, best: RankedVariant, default: RankedVariant | None, percent: float | None
) -> str:
    """Why a gain that the search saw is not believed; empty where it was measured again, or not to be."""
    rounds = {m.round for m in best.run.repetitions}
    made = len(rounds & {m.round for m in default.run.repetitions}) if default else 0
    if made > 1 or not model.final_rounds:
        return ""
    gain = f"the gain of {percent or 0.0:.0f}% is the search's alone"
    return f"{gain}: both were measured again in {made} of {model.final_rounds} final rounds"


def _gain_percent(best: RankedVariant, default: RankedVariant | None, goals: Goals) -> float | None:
    if default is None or not best.satisfies or not default.satisfies:
        return None
    return gain_percent(best.figures, default.figures, goals)


def _sentence(
    model: ModelRun,
    finding: Finding,
    best: RankedVariant,
    default: RankedVariant | None,
    goals: Goals,
    conclusion: Conclusion | None,
    inconclusive: str,
) -> str:
    start = f"In {counts(model)}, "
    asked = limits_of(goals, model.model)
    limits = describe_limits(asked)
    under = f", with a {limits}" if limits else ""
    throughput = _figures_in_words(best, goals, model.model)
    if finding is Finding.NONE_SATISFIES:
        nearest = describe_misses(best.figures, asked)
        return f"{start}no configuration satisfies a {limits}; closest: `{best.name}` ({nearest})"
    if inconclusive:
        return (
            f"{start}no configuration is certain to be better than the default: of `{best.name}` "
            f"{inconclusive}"
        )
    if finding is Finding.DEFAULT:
        better = "best" if conclusion is None or not conclusion.tied else "as good as the best"
        return f"{start}the default configuration is {better}: {throughput}{under}"
    gives = f"{start}`{best.name}` gives {throughput}"
    if default is None:
        return f"{gives}{under}; the default configuration could not be measured"
    if not default.satisfies:
        miss = describe_misses(default.figures, asked)
        return f"{gives}{under}; the default configuration misses it ({miss})"
    base = _figures_in_words(default, goals, model.model)
    return f"{gives}, {_gain_in_words(model.model, best, default, goals, conclusion)} ({base}){under}"


def _figures_in_words(ranked: RankedVariant, goals: Goals, model: str) -> str:
    """The throughput, and what else a single model is asked for."""
    parts = [f"{ranked.figures.throughput:.0f} infer/sec"]
    for objective in goals.of(model).objectives if "," not in model else ():
        measured = metric(objective.tag)
        value = measured.value(ranked.figures)
        if value is not None and measured.tag != "perf_throughput":
            parts.append(f"{in_words(measured.tag)} {figure(value)} {measured.unit}")
    return " and ".join(parts)


def _gain_in_words(
    model: str, best: RankedVariant, default: RankedVariant, goals: Goals, conclusion: Conclusion | None
) -> str:
    """`a 67% gain [64, 70] over the default configuration`; the interval where the repetitions leave one."""
    gain = conclusion.gains.get(best.name) if conclusion else None
    asked = {name: goals.of(name).objectives for name in model.split(",")}
    percent = gain_percent(best.figures, default.figures, goals) or 0.0
    if {objective.tag for own in asked.values() for objective in own} == {"perf_throughput"}:
        return f"a {percent:.0f}% gain{_interval(gain, percent)} over the default configuration"
    verbs = {"higher": "maximizing", "lower": "minimizing"}
    alike = len(set(asked.values())) == 1
    aims = " and ".join(
        f"{verbs[metric(o.tag).better]} {in_words(o.tag)}{'' if alike else f' of {name}'}"
        for name, own in (list(asked.items())[:1] if alike else asked.items())
        for o in own
    )
    return f"{percent:.0f}%{_interval(gain, percent)} better than the default configuration at {aims}"


def _interval(gain: Gain | None, percent: float) -> str:
    if gain is None or gain.rounds < 2:
        return ""
    low, high = f"{gain.low * 100:.0f}", f"{gain.high * 100:.0f}"
    return "" if low == high == f"{percent:.0f}" else f" [{low}, {high}]"


def _detail(measurement: Measurement, conclusion: Conclusion | None, *, certain: bool) -> str:
    parts = [f"at {measurement.load}"]
    p99_ns = measurement.latency.p99_ns
    if p99_ns is not None:
        parts.append(f"p99 {milliseconds(p99_ns)} ms")
    if not measurement.stable:
        parts.append("not stable")
    text = ", ".join(parts)
    if conclusion is not None and conclusion.tied:
        text += f"; tied with: {', '.join(conclusion.tied)}"
        those = "those that surely are no worse than the default" if conclusion.passes_over else "them"
        text += f"; the cheapest of {those} is recommended" if certain else ""
    return text


def _nothing(model: ModelRun) -> str:
    if model.unavailable:
        return f"`{model.model}` cannot be profiled"
    return f"No configuration of `{model.model}` could be measured"


def milliseconds(duration_ns: int) -> str:
    """`22.3`, and below one `0.41`."""
    return figure(duration_ns / 1e6)


def plural(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
