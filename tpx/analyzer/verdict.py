"""The verdict on a model's search, as a sentence and as the figures behind it.

Every report renders this verdict; none draws its own conclusions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tpx.analyzer.conclusion import Conclusion, conclude
from tpx.analyzer.metrics import in_words, metric, shown
from tpx.analyzer.objectives import (
    ModelConstraint,
    RankedVariant,
    describe_limits,
    describe_misses,
    gain_percent,
    limits_of,
    rank,
    score,
    unmeasured,
)
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.run import ModelRun
from tpx.perf.objectives import Compliance
from tpx.perf.statistics.findings import MARGIN, Contrast
from tpx.report.digits import change, change_range, duration, latency, ratio, rounded
from tpx.report.document import Tone


class Finding(Enum):
    """The outcome of a search."""

    BETTER = "better"
    """A variant is certainly better than the default."""
    CHEAPER = "cheaper"
    """A variant is cheaper than the default, and certainly not worse by more than the margin."""
    DEFAULT = "default"
    """The default is certainly the best, or as good as the best."""
    DEFAULT_FAILS = "default fails"
    """A variant satisfies the constraints; the default does not, or could not be measured."""
    UNDECIDED = "undecided"
    """Nothing was shown to be better than the default, nor that nothing is; the default stays for now."""
    NONE_SATISFIES = "none satisfies"
    NOTHING = "nothing"
    """There is no measurement."""


_BADGES: dict[Finding, tuple[str, Tone]] = {
    Finding.BETTER: ("Better configuration found", "good"),
    Finding.CHEAPER: ("Cheaper configuration found", "good"),
    Finding.DEFAULT: ("Default is best", "neutral"),
    Finding.DEFAULT_FAILS: ("Recommended", "good"),
    Finding.UNDECIDED: ("Undecided", "warn"),
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
    conclusion: Conclusion | None = None
    """The conclusion from the final rounds; None with fewer than two, which have no interval."""
    candidate: RankedVariant | None = None
    """The configuration with the best figures, if it is undecided whether it is better than the default."""
    why: str = ""
    """Reason why the outcome is undecided, if the final rounds cannot tell it."""

    @property
    def model(self) -> str:
        return self.run.model

    @property
    def recommended(self) -> str:
        """Name of the recommended configuration; empty if none satisfies the constraints."""
        return self.best.name if self.best is not None and self.best.satisfies else ""

    @property
    def alike(self) -> tuple[str, ...]:
        """Finalists that are not told apart from the recommended configuration."""
        return self.conclusion.alike if self.conclusion else ()

    @property
    def limits(self) -> tuple[ModelConstraint, ...]:
        """Constraints as separate limits."""
        return limits_of(self.goals, self.run.models)

    @property
    def gain(self) -> Contrast | None:
        """The gain of the recommended configuration over the default, by the final rounds."""
        conclusion, best = self.conclusion, self.best
        return conclusion.gains.get(best.name) if conclusion and best and best is not self.default else None

    @property
    def gain_percent(self) -> float | None:
        """The gain over the default on the objectives, each at its own best load."""
        best, default = self.best, self.default
        if best is None or default is None or not (best.satisfies and default.satisfies):
            return None
        gain = self.gain
        return gain_percent(best.figures, default.figures, self.goals) if gain is None else gain.value * 100

    @property
    def badge(self) -> str:
        """The verdict in a few words."""
        if self.finding is Finding.DEFAULT:
            return f"Default {self._rate_default()}"
        return _BADGES[self.finding][0]

    @property
    def tone(self) -> Tone:
        tone = _BADGES[self.finding][1]
        unsure = self.best is not None and not (
            self.best.figures.stable and self.compliance is Compliance.MET
        )
        return "warn" if tone == "good" and unsure else tone

    @property
    def compliance(self) -> Compliance:
        """Status of the recommended configuration's constraints: `met` only if that is certain."""
        return self.best.compliance if self.best else Compliance.VIOLATED

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
        limits, found = describe_limits(asked), self._describe_figures(best)
        under = f", with a {limits}" if limits else ""
        if finding is Finding.NONE_SATISFIES:
            nearest = describe_misses(best.figures, asked)
            return f"no configuration satisfies a {limits}; closest: `{best.name}` ({nearest})"
        if finding is Finding.UNDECIDED:
            return (
                f"nothing was shown to beat the default configuration, which stays for now: {found}{under}"
                f"{self._describe_candidate()}"
            )
        if finding is Finding.DEFAULT:
            return f"the default configuration {self._rate_default()}: {found}{under}"
        if default is None:
            missing = "the default configuration could not be measured"
            return f"`{best.name}` gives {found}{under}; {missing}"
        if not default.satisfies:
            missed = f"the default configuration misses it ({describe_misses(default.figures, asked)})"
            return f"`{best.name}` gives {found}{under}; {missed}"
        figures, apart = self._describe_figures(default), _describe_loads(best, default)
        if finding is Finding.CHEAPER:
            saving = self.conclusion.cheaper if self.conclusion else ""
            bound = f"certainly no more than {MARGIN:.0%} worse{self._interval}"
            return (
                f"`{best.name}` needs {saving} and is {bound} than the default: {found} and {figures}{under}"
            )
        return f"`{best.name}` gives {found}, {self._describe_gain()} ({figures}){apart}{under}"

    def _rate_default(self) -> str:
        """Return `is best`, or how good the default is that stays; only of the finalists if others measured
        higher.
        """
        if len(self.run.measured) == 1:
            return "was the only one measured"
        best = self.conclusion is not None and self.conclusion.is_best
        if self.left_out:
            return "is the best finalist" if best else "is as good as the best finalist"
        return "is best" if best else "is as good as the best"

    def _describe_candidate(self) -> str:
        """Return the fastest configuration measured besides the default, with its interval."""
        candidate, default, goals = self.candidate, self.default, self.goals
        if candidate is None or default is None:
            return f"; {self.why}" if self.why else ""
        text = f"; fastest of the others: `{candidate.name}`, {self._describe_figures(candidate)}"
        gain = self.conclusion.gains.get(candidate.name) if self.conclusion else None
        if gain is None:
            single = gain_percent(candidate.figures, default.figures, goals)
            return f"{text}, {self.why}" + ("" if single is None else f" ({change(single / 100)})")
        if gain.too_noisy:
            return f"{text}, undecided: too noisy to bound within 50%"
        return f"{text}, undecided: {change(gain.value)} ({describe_interval(gain)})"

    def _describe_figures(self, ranked: RankedVariant) -> str:
        """Return the throughput, and a single model's other objectives."""
        parts = [f"{rounded(ranked.figures.throughput)} infer/s"]
        for objective in self.goals.objectives if len(self.run.models) == 1 else ():
            measured = metric(objective.tag)
            value = measured.value(ranked.figures)
            if value is not None and measured.tag != "perf_throughput":
                parts.append(f"{in_words(measured.tag)} {shown(measured, value)}")
        return " and ".join(parts)

    @property
    def _interval(self) -> str:
        return "" if self.gain is None else f" ({describe_interval(self.gain)})"

    def _describe_gain(self) -> str:
        """Return `a 67% gain (99% interval 64 to 70%, 2 rounds) over the default configuration`."""
        gained = round((self.gain_percent or 0.0) / 100, 4)
        objectives = {name: self.goals.of(name).objectives for name in self.run.models}
        if {objective.tag for own in objectives.values() for objective in own} == {"perf_throughput"}:
            if gained > 1:
                return f"{ratio(1 + gained)} the throughput{self._interval} of the default configuration"
            share = f"{gained * 100:.0f}%"
            return f"{article(share)} {share} gain{self._interval} over the default configuration"
        verbs = {"higher": "maximizing", "lower": "minimizing"}
        same_objectives = len(set(objectives.values())) == 1
        aims = " and ".join(
            f"{verbs[metric(o.tag).better]} {in_words(o.tag)}{'' if same_objectives else f' of {name}'}"
            for name, own in (list(objectives.items())[:1] if same_objectives else objectives.items())
            for o in own
        )
        better = ratio(1 + gained) if gained > 1 else f"{gained * 100:.0f}%"
        return f"{better}{self._interval} better than the default configuration at {aims}"

    @property
    def detail(self) -> str:
        """The load and latency behind the sentence, and what is not told apart."""
        best, conclusion = self.best, self.conclusion
        if best is None:
            return self.run.failure_reason
        text = f"at {best.figures.load}"
        if best.figures.p99_ns is not None:
            text += f", p99 {latency(best.figures.p99_ns)}"
        text += "" if best.figures.stable else ", not stable"
        equal = equal_loads(best, self.default, self.goals) if self.default else ""
        if equal and best.satisfies:
            text += f"; under equal load, measured once each: {equal}"
        if conclusion is not None and self.alike and self.finding is not Finding.UNDECIDED:
            text += f"; not told apart from: {', '.join(self.alike)}"
            if best is not self.default and best is not conclusion.leader:
                text += f"; recommended: the cheapest that is certainly within {MARGIN:.0%} of the best"
        missed = self.left_out
        if missed:
            names = ", ".join(f"`{r.name}` ({self._describe_figures(r)})" for r in missed)
            text += f"; measured higher, but only once: {names}"
        return text + self._describe_need()

    def _describe_need(self) -> str:
        """Return how much more would decide what is undecided."""
        conclusion, candidate = self.conclusion, self.candidate
        gain = conclusion.gains.get(candidate.name) if conclusion and candidate else None
        if self.finding is not Finding.UNDECIDED or gain is None or conclusion is None or not gain.needed:
            return ""
        more = gain.needed - gain.repeats
        text = f"; about {gain.needed:,} rounds in all would decide"
        return text + (f", {duration(more * conclusion.round_ns)} more" if conclusion.round_ns else "")

    @property
    def left_out(self) -> tuple[RankedVariant, ...]:
        """Configurations that the final rounds left out, though the search measured them higher."""
        best = self.best
        if best is None or not best.satisfies:
            return ()
        own = score(best.figures, self.goals)
        found = [
            r
            for r in self.ranking
            if r.settled is None and r.satisfies and r is not best and r is not self.candidate
        ]
        higher = [r for r in found if score(r.figures, self.goals) > own]
        return tuple(sorted(higher, key=lambda r: -score(r.figures, self.goals))[:LEFT_OUT_SHOWN])

    @property
    def caution(self) -> str:
        """Reasons not to take the verdict at face value."""
        conclusion, best = self.conclusion, self.best
        if best is None:
            return ""
        parts = []
        if self.finding is Finding.UNDECIDED:
            parts.append("Keep the default for now.")
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
            if limit.compliance(ranked.figures) is Compliance.UNDECIDED
        ]


LEFT_OUT_SHOWN = 3


def judge(model: ModelRun, goals: Goals) -> ModelVerdict:
    """Return the verdict on one model's search under the run's goals."""
    goals = goals.of(*model.models)
    ranking = rank(model, goals)
    if not ranking or model.unavailable:
        return ModelVerdict(run=model, goals=goals, finding=Finding.NOTHING)
    best = ranking[0]
    default = next((r for r in ranking if r.run.variant.is_default), None)
    found = ModelVerdict(
        run=model, goals=goals, finding=Finding.NONE_SATISFIES, ranking=ranking, best=best, default=default
    )
    if not best.satisfies:
        return found
    conclusion = conclude(ranking, goals)
    found = replace(found, conclusion=conclusion)
    chosen = conclusion.recommended if conclusion else None
    if default is None or not default.satisfies:
        return replace(found, finding=Finding.DEFAULT_FAILS, best=chosen or best)
    lacking = unmeasured(best.figures, goals)
    if chosen is not None and not lacking and (chosen is not default or _stays(conclusion)):
        gain = conclusion.gains[chosen.name] if conclusion else None
        better = gain is not None and gain.different and gain.change > 0
        other = Finding.BETTER if better else Finding.CHEAPER
        return replace(found, finding=Finding.DEFAULT if chosen is default else other, best=chosen)
    if len(model.measured) == 1:
        return replace(found, finding=Finding.DEFAULT)
    others = [r for r in ranking if r is not default and r.satisfies]
    candidate = max(others, key=lambda r: score(r.figures, goals), default=None)
    if conclusion is not None:
        others = [r for r in others if r.name in conclusion.gains]
        candidate = max(others, key=lambda r: conclusion.gains[r.name].change, default=None)
    why = (
        f"{in_words(lacking[0])} was not measured" if lacking else "measured once, not again in final rounds"
    )
    return replace(
        found, finding=Finding.UNDECIDED, best=default, candidate=None if lacking else candidate, why=why
    )


def _stays(conclusion: Conclusion | None) -> bool:
    """Return True if a recommended default is certainly as good as everything else."""
    return conclusion is not None and conclusion.as_good


def describe_interval(gain: Contrast) -> str:
    """Return `99% interval 21 to 48%, 2 rounds`."""
    span = change_range(gain.low, gain.high).replace("+", "")
    return f"{gain.confidence:.0%} interval {span}, {plural(gain.repeats, 'round')}"


def article(text: str) -> str:
    """Return `an` before a figure that begins with a vowel when read: 8, 80, 800, 11 and 18."""
    number = text.partition("%")[0].partition(".")[0]
    return "an" if number.startswith("8") or number in ("11", "18") else "a"


def _describe_loads(best: RankedVariant, default: RankedVariant) -> str:
    """Return ` at concurrency 256 instead of 32; p99 2.9x`: the price of a gain at another load."""
    load, before = best.figures.load, default.figures.load
    if load == before:
        return ""
    known = (load.kind, load.batch_size, len(load.members)) == (before.kind, before.batch_size, 0)
    text = f" at {load} instead of {f'{before.value:,}' if known else before}"
    p99, p99_before = best.figures.p99_ns, default.figures.p99_ns
    price = change(p99 / p99_before - 1) if p99 and p99_before else "0%"
    return text if price == "0%" else f"{text}; p99 {price}"


def plural(count: int, noun: str) -> str:
    """Return `1 trial`, `2 trials`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def equal_loads(best: RankedVariant, default: RankedVariant, goals: Goals) -> str:
    """Return `+2% at concurrency 4, +55% at concurrency 8`: both under each one's best load.

    Empty if these are the same; a load under which the search did not measure both is left out.
    """
    found = []
    loads = (default.figures.load, best.figures.load)
    for load in loads if loads[0] != loads[1] else ():
        pair = [next((m for m in r.run.measurements if m.load == load), None) for r in (best, default)]
        gain = gain_percent(pair[0], pair[1], goals) if pair[0] and pair[1] else None
        if gain is not None:
            found.append(f"{change(gain / 100)} at {load}")
    return ", ".join(found)
