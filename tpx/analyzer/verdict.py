"""The verdict on a model's search, as a sentence and as the figures behind it.

Every report renders this verdict; none draws its own conclusions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tpx.analyzer.conclusion import EQUIVALENCE, Conclusion, Gain, conclude
from tpx.analyzer.objectives import (
    ModelConstraint,
    RankedVariant,
    describe_limits,
    describe_misses,
    gain_percent,
    in_words,
    limits_of,
    metric,
    rank,
    shown,
    unmeasured,
)
from tpx.analyzer.results.goals import Goals, Standing
from tpx.analyzer.results.run import ModelRun
from tpx.report.digits import latency, percent, rounded
from tpx.report.document import Tone


class Finding(Enum):
    """The outcome of a search."""

    BETTER = "better"
    """A variant beats the default."""
    TIED = "tied"
    """A variant is as good as the default, and is cheaper or slightly better."""
    DEFAULT = "default"
    """Nothing beats the default."""
    DEFAULT_FAILS = "default fails"
    """A variant satisfies the constraints; the default does not, or could not be measured."""
    INCONCLUSIVE = "inconclusive"
    """The final rounds cannot tell if a variant is better than the default."""
    NONE_SATISFIES = "none satisfies"
    NOTHING = "nothing"
    """There is no measurement."""


_BADGES: dict[Finding, tuple[str, Tone]] = {
    Finding.BETTER: ("Better configuration found", "good"),
    Finding.TIED: ("Tied with the default", "neutral"),
    Finding.DEFAULT: ("Default is best", "neutral"),
    Finding.DEFAULT_FAILS: ("Recommended", "good"),
    Finding.INCONCLUSIVE: ("Inconclusive", "warn"),
    Finding.NONE_SATISFIES: ("No configuration satisfies", "bad"),
    Finding.NOTHING: ("Nothing measured", "bad"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVerdict:
    """The outcome of one model's search, in figures and in words."""

    run: ModelRun
    goals: Goals
    finding: Finding
    ranking: tuple[RankedVariant, ...] = ()
    best: RankedVariant | None = None
    """The recommended configuration, or the one closest to satisfying the constraints."""
    default: RankedVariant | None = None
    gain_percent: float | None = None
    """Gain of the best configuration over the default on the objectives, each at its own best load."""
    conclusion: Conclusion | None = None
    """The conclusion from the final rounds; None with fewer than two, which have no interval."""
    inconclusive: str = ""
    """Reason why a gain cannot be trusted; empty if it can."""

    @property
    def model(self) -> str:
        return self.run.model

    @property
    def recommended(self) -> str:
        """Name of the recommended configuration; empty if none satisfies the constraints."""
        return self.best.name if self.best is not None and self.best.satisfies else ""

    @property
    def tied(self) -> tuple[str, ...]:
        return self.conclusion.tied if self.conclusion else ()

    @property
    def limits(self) -> tuple[ModelConstraint, ...]:
        """Constraints as separate limits."""
        return limits_of(self.goals, self.model)

    @property
    def gain(self) -> Gain | None:
        """The gain of the recommended configuration over the default, with its interval."""
        return self.conclusion.gain if self.conclusion else None

    @property
    def badge(self) -> str:
        """The verdict in a few words."""
        if self.finding is Finding.BETTER and self.tied:
            return "Better, tied: the cheapest is recommended"
        if self.finding is Finding.DEFAULT and len(self.run.measured) == 1:
            return "Only the default measured"
        return _BADGES[self.finding][0]

    @property
    def tone(self) -> Tone:
        return _BADGES[self.finding][1]

    @property
    def standing(self) -> Standing:
        """Status of the recommended configuration's constraints: `met` only if that is certain."""
        return self.best.standing if self.best else "missed"

    @property
    def sentence(self) -> str:
        """The verdict as a sentence without a full stop, with configuration names in backticks."""
        if self.run.unavailable:
            return f"`{self.model}` cannot be profiled"
        if self.best is None:
            return f"No configuration of `{self.model}` could be measured"
        measurements = plural(self.run.measurement_count, "measurement")
        configurations = plural(len(self.run.measured), "configuration")
        return f"In {measurements} across {configurations}, {self._describe_finding(self.best)}"

    def _describe_finding(self, best: RankedVariant) -> str:
        finding, default, asked = self.finding, self.default, self.limits
        limits = describe_limits(asked)
        under = f", with a {limits}" if limits else ""
        if finding is Finding.NONE_SATISFIES:
            nearest = describe_misses(best.figures, asked)
            return f"no configuration satisfies a {limits}; closest: `{best.name}` ({nearest})"
        if self.inconclusive:
            return (
                f"no configuration is certain to be better than the default: for `{best.name}`, "
                f"{self.inconclusive}"
            )
        if finding is Finding.DEFAULT:
            better = "is as good as the best" if self.tied else "is best"
            better = "was the only one measured" if len(self.run.measured) == 1 else better
            return f"the default configuration {better}: {self._describe_figures(best)}{under}"
        if default is None:
            missing = "the default configuration could not be measured"
            return f"`{best.name}` gives {self._describe_figures(best)}{under}; {missing}"
        if not default.satisfies:
            missed = f"the default configuration misses it ({describe_misses(default.figures, asked)})"
            return f"`{best.name}` gives {self._describe_figures(best)}{under}; {missed}"
        apart = best.figures.load != default.figures.load
        best_figures, default_figures = (
            f"{self._describe_figures(r)} at {r.figures.load}" if apart else self._describe_figures(r)
            for r in (best, default)
        )
        if finding is Finding.TIED:
            within = f"{EQUIVALENCE * 100 if self.conclusion else self.run.tolerance_percent:g}%"
            both = f"`{best.name}` and the default configuration are tied within {within}"
            return f"{both}: {best_figures} and {default_figures}{under}"
        return f"`{best.name}` gives {best_figures}, {self._describe_gain()} ({default_figures}){under}"

    def _describe_figures(self, ranked: RankedVariant) -> str:
        """Return the throughput, and a single model's other objectives."""
        parts = [f"{rounded(ranked.figures.throughput)} infer/s"]
        for objective in self.goals.objectives if "," not in self.model else ():
            measured = metric(objective.tag)
            value = measured.value(ranked.figures)
            if value is not None and measured.tag != "perf_throughput":
                parts.append(f"{in_words(measured.tag)} {shown(measured, value)}")
        return " and ".join(parts)

    def _describe_gain(self) -> str:
        """Return `a 67% gain [64, 70] over the default configuration`, with the interval if known."""
        gained, found = self.gain_percent or 0.0, self.gain
        interval = "" if found is None else found.interval
        objectives = {name: self.goals.of(name).objectives for name in self.model.split(",")}
        if {objective.tag for own in objectives.values() for objective in own} == {"perf_throughput"}:
            return f"a {gained:.0f}% gain{interval} over the default configuration"
        verbs = {"higher": "maximizing", "lower": "minimizing"}
        same_objectives = len(set(objectives.values())) == 1
        aims = " and ".join(
            f"{verbs[metric(o.tag).better]} {in_words(o.tag)}{'' if same_objectives else f' of {name}'}"
            for name, own in (list(objectives.items())[:1] if same_objectives else objectives.items())
            for o in own
        )
        return f"{gained:.0f}%{interval} better than the default configuration at {aims}"

    @property
    def detail(self) -> str:
        """The load and latency behind the sentence, and the ties."""
        if self.best is None:
            return self.run.failure_reason
        figures, conclusion = self.best.figures, self.conclusion
        text = f"at {figures.load}"
        if figures.latency.p99_ns is not None:
            text += f", p99 {latency(figures.latency.p99_ns)}"
        text += "" if figures.stable else ", not stable"
        equal = equal_loads(self.best, self.default, self.goals) if self.default else ""
        if equal and self.best.satisfies:
            text += f"; under equal load, measured once each: {equal}"
        if conclusion is not None and self.tied:
            text += f"; tied with: {', '.join(self.tied)}"
            sure = " that is certainly not worse than the default" if conclusion.passes_over else ""
            certain = self.finding is not Finding.INCONCLUSIVE
            recommends = certain and self.best is not self.default
            text += f"; recommended: the cheapest of them{sure}" if recommends else ""
        return text

    @property
    def caution(self) -> str:
        """Reasons not to take the verdict at face value."""
        finding, conclusion, best = self.finding, self.conclusion, self.best
        if best is None:
            return ""
        parts = []
        if finding is Finding.INCONCLUSIVE:
            parts.append("Measure again on a quiet machine, or longer, before you change anything.")
        if finding is Finding.TIED and conclusion is None:
            parts.append("Consider them equal, and measure again before you change anything.")
        if conclusion is not None and conclusion.noise:
            parts.append(f"The machine was not quiet: {'; '.join(conclusion.noise)}.")
        if best.satisfies:
            parts += self._describe_borderline(best, "keeps")
        if self.default is not None and not self.default.satisfies:
            parts += self._describe_borderline(self.default, "misses")
        if not best.figures.stable:
            why = best.figures.note or "its windows differ"
            parts.append(f"A measurement of the best did not become stable: {why.rstrip('.')}.")
        if self.run.failures:
            parts.append(f"{plural(len(self.run.failures), 'trial')} failed, with the reasons in the report.")
        return " ".join(parts)

    def _describe_borderline(self, ranked: RankedVariant, verb: str) -> Sequence[str]:
        whose = "the default" if ranked is self.default else f"`{ranked.name}`"
        return [
            f"Borderline: it is not certain that {whose} {verb} {limit}."
            for limit in self.limits
            if limit.standing(ranked.figures) == "borderline"
        ]


def judge(model: ModelRun, goals: Goals) -> ModelVerdict:
    """Return the verdict on one model's search under the run's goals."""
    goals = goals.of(model.model)
    ranking = rank(model, goals)
    if not ranking or model.unavailable:
        return ModelVerdict(run=model, goals=goals, finding=Finding.NOTHING)
    conclusion = conclude(ranking, goals)
    best = conclusion.recommended if conclusion else ranking[0]
    default = next((r for r in ranking if r.run.variant.is_default), None)
    gain = None
    if default is not None and best.satisfies and default.satisfies:
        gain = gain_percent(best.figures, default.figures, goals)
    finding, inconclusive = _choose_finding(model, best, default, conclusion, gain), ""
    if finding is Finding.BETTER:
        made = len(best.rounds & default.rounds) if default else 0
        inconclusive = conclusion.inconclusive if conclusion else ""
        if made < 2 and model.final_rounds:
            inconclusive = (
                f"only the search found the gain of {gain or 0.0:.0f}%: both were measured again in {made} "
                f"of {model.final_rounds} final rounds"
            )
    lacking = unmeasured(best.figures, goals) if best.satisfies else ()
    if lacking:  # all configurations tie then, even if the default ranks first
        inconclusive = f"{in_words(lacking[0])} was not measured"
    return ModelVerdict(
        run=model,
        goals=goals,
        finding=Finding.INCONCLUSIVE if inconclusive else finding,
        ranking=ranking,
        best=best,
        default=default,
        gain_percent=gain,
        conclusion=conclusion,
        inconclusive=inconclusive,
    )


def plural(count: int, noun: str) -> str:
    """Return `1 trial`, `2 trials`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _choose_finding(
    model: ModelRun,
    best: RankedVariant,
    default: RankedVariant | None,
    conclusion: Conclusion | None,
    percent_gained: float | None,
) -> Finding:
    if not best.satisfies:
        return Finding.NONE_SATISFIES
    if best is default:
        return Finding.DEFAULT
    if default is None or not default.satisfies:
        return Finding.DEFAULT_FAILS
    gain = conclusion.gain if conclusion else None
    if gain is not None and gain.rounds > 1:
        return Finding.TIED if gain.tied else Finding.BETTER
    small = percent_gained is not None and percent_gained < model.tolerance_percent
    return Finding.TIED if small and not model.final_rounds else Finding.BETTER


def equal_loads(best: RankedVariant, default: RankedVariant, goals: Goals) -> str:
    """Return `a tie at concurrency 4 (+2%), +55% at concurrency 8`: both under each one's best load.

    Empty if these are the same; a load under which the search did not measure both is left out.
    """
    found = []
    loads = (default.figures.load, best.figures.load)
    for load in loads if loads[0] != loads[1] else ():
        pair = [next((m for m in r.run.measurements if m.load == load), None) for r in (best, default)]
        gain = gain_percent(pair[0], pair[1], goals) if pair[0] and pair[1] else None
        if gain is not None:
            text = percent(gain / 100)
            tied = abs(gain / 100) <= EQUIVALENCE
            found.append(f"a tie at {load} ({text})" if tied else f"{text} at {load}")
    return ", ".join(found)
