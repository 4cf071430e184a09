"""Conclusions from the final rounds: what they show of the finalists, when they suffice, which configuration
to recommend, and whether the machine was quiet.

The driver of the search and the verdict ask the same questions here, so they agree on the answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from tpx.analyzer.metrics import gpu_mb, ram_mb
from tpx.analyzer.objectives import RankedVariant, score, window_scores
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.results.pooled import Mean
from tpx.perf.statistics.findings import ALPHA, Contrast, RoundTable
from tpx.report.digits import change

EARLY_ALPHA = 0.01
"""Error probability of every look but the last: each look is another chance to err."""

Cost = tuple[float, ...]
"""Sort key of configurations that are equally good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A configuration of the final rounds."""

    name: str
    is_default: bool
    instances: int
    point: Mean
    """Its figures: the mean of its rounds under one load."""

    @property
    def cost(self) -> Cost:
        """Instances and memory; of those that cost the same, the default, then the lowest p99."""
        number = self.name.rpartition("_")[2]
        return (
            *self.price,
            not self.is_default,
            float(self.point.p99_ns or 0),
            float(number) if number.isdigit() else -1.0,
        )

    @property
    def price(self) -> Cost:
        """Instances, and memory in steps of 10 MB: smaller differences are noise."""
        memory = (ram_mb(self.point.memory) or 0.0) + (gpu_mb(self.point) or 0.0)
        return self.instances, round(memory, -1)


class Evidence:
    """The evidence of the final rounds on two or more finalists, at a level of confidence."""

    def __init__(self, finalists: Sequence[Finalist], goals: Goals, alpha: float = ALPHA) -> None:
        self.alpha = alpha
        self._finalists = finalists
        self._table = RoundTable(
            {f.name: {m.round: window_scores(m, goals) for m in f.point.samples} for f in finalists}
        )
        known = [f for f in finalists if f.name in self._table.names]
        self.leader = max(known or finalists, key=self._level)
        """The finalist with the highest level, chosen by the same data."""
        self.default = next((f for f in finalists if f.is_default), None)

    @classmethod
    def at_look(cls, finalists: Sequence[Finalist], goals: Goals) -> "Evidence":
        """Return the evidence that decided at a look before the last, or else that of the last."""
        early = cls(finalists, goals, EARLY_ALPHA)
        return early if early.decided else cls(finalists, goals)

    def gain(self, finalist: Finalist) -> Contrast:
        """Return the gain over the default, one of as many as there are other finalists."""
        return self.contrast(finalist, self.default or finalist)

    def contrast(self, one: Finalist, other: Finalist) -> Contrast:
        """Return the difference of two finalists, neither chosen for its figures."""
        return self._table.contrast(
            one.name, other.name, alpha=self.alpha, comparisons=max(1, len(self._finalists) - 1)
        )

    def lead(self, finalist: Finalist) -> Contrast:
        """Return the leader's difference from another; any pair might have been this one."""
        count = len(self._finalists)
        return self._table.contrast(
            self.leader.name, finalist.name, alpha=self.alpha, comparisons=max(1, count * (count - 1) // 2)
        )

    def near(self, finalist: Finalist) -> bool:
        """Return True if a finalist is certainly within the margin of the leader."""
        return finalist is self.leader or self.contrast(finalist, self.leader).holds_up

    @property
    def better(self) -> bool:
        """True if the leader is certainly better than the default."""
        gain = self.gain(self.leader)
        return self.default is not None and gain.change > 0 and gain.different

    @property
    def decided(self) -> bool:
        """True if something is recommended, and everything cheaper is certainly worse than the leader; a
        default must be as good as everything else.
        """
        chosen = self.recommended
        if chosen is None or (chosen is self.default and not self.as_good(chosen)):
            return False
        cheaper = [f for f in self._finalists if f.cost < chosen.cost and f is not self.default]
        return all(self.lead(f).different for f in cheaper)

    def as_good(self, finalist: Finalist) -> bool:
        """Return True if no other finalist is better by more than the margin."""
        return all(self.contrast(finalist, f).holds_up for f in self._finalists if f is not finalist)

    @property
    def recommended(self) -> Finalist | None:
        """The cheapest that is certainly within the margin of the leader; None if that is undecided.

        If the leader is not certainly better than the default, the default must be near, too. It is never
        one that may be worse than a default that it replaces.
        """
        default = self.default
        near = [f for f in self._finalists if self.near(f)]
        if default is not None and default not in near:
            if not self.better:
                return None
            near = [
                f for f in near if f is self.leader or (self.gain(f).change > 0 and self.gain(f).different)
            ]
        elif default is not None:
            near = [f for f in near if f is default or self.gain(f).holds_up]
        return min(near, key=lambda f: f.cost)

    def behind(self, share: float) -> list[Finalist]:
        """Return the finalists that are certainly more than a share behind the leader."""
        found = [(f, self.contrast(f, self.leader)) for f in self._finalists if f is not self.leader]
        return [f for f, behind in found if behind.different and behind.high < -share]

    def _level(self, finalist: Finalist) -> float:
        return self._table.level(finalist.name) if finalist.name in self._table.names else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The conclusion from the final rounds of one model's search."""

    recommended: RankedVariant | None
    """The cheapest configuration as good as the best: fewest instances, then least memory, then lowest p99;
    None if it is undecided whether anything is better than the default."""
    leader: RankedVariant
    """The configuration with the best figures."""
    alike: tuple[str, ...]
    """Names of the finalists that are not told apart from the recommended one, or from the leader."""
    gains: Mapping[str, Contrast]
    """Gain of each finalist over the default, by name."""
    is_best: bool
    """True if every other finalist is certainly worse than the recommended one."""
    as_good: bool
    """True if no finalist is better than the recommended one by more than the margin."""
    cheaper: str
    """Saving of the recommended configuration relative to the default; empty if there is none."""
    round_ns: int
    """Duration of one round of all finalists."""
    noise: tuple[str, ...]
    """Disturbances on the machine during the rounds."""


def conclude(ranking: Sequence[RankedVariant], goals: Goals) -> Conclusion | None:
    """Return the conclusion from a ranking; None without two finalists, of which one is the default if that
    satisfies the constraints.
    """
    by_name = {
        r.name: r
        for r in ranking
        if r.settled is not None and r.satisfies and not any(f.round for f in r.run.failures)
    }
    default = next((r for r in ranking if r.run.variant.is_default), None)
    if len(by_name) < 2 or (default is not None and default.satisfies and default.name not in by_name):
        return None
    finalists = [finalist_of(r) for r in by_name.values()]
    evidence = Evidence.at_look(finalists, goals)
    chosen = evidence.recommended
    reference = chosen or evidence.leader
    others = [f for f in finalists if f is not reference]
    own = evidence.default
    against = [evidence.contrast(reference, f) for f in others]
    return Conclusion(
        recommended=by_name[chosen.name] if chosen else None,
        leader=by_name[evidence.leader.name],
        alike=tuple(f.name for f, found in zip(others, against, strict=True) if not found.different),
        gains={} if own is None else {f.name: evidence.gain(f) for f in finalists},
        is_best=all(found.different and found.change > 0 for found in against),
        as_good=evidence.as_good(reference),
        cheaper=_describe_saving(reference, own) if own is not None else "",
        round_ns=round(sum(median(m.cost_ns for m in f.point.samples) for f in finalists)),
        noise=tuple(_describe_noise(by_name.values(), finalists, goals)),
    )


def finalist_of(ranked: RankedVariant) -> Finalist:
    """Return a ranked configuration as a finalist; it must be settled."""
    assert ranked.settled is not None
    return Finalist(
        name=ranked.name,
        is_default=ranked.run.variant.is_default,
        instances=ranked.run.configuration.instances,
        point=ranked.settled,
    )


def _describe_saving(chosen: Finalist, default: Finalist) -> str:
    """Return `1 instance instead of 4`, or `120 MB less memory`; empty if it costs as much as the default."""
    (instances, memory), (before, memory_before) = chosen.price, default.price
    if instances < before:
        return f"{instances:g} instance{'s' * (instances > 1)} instead of {before:g}"
    return f"{memory_before - memory:,.0f} MB less memory" if chosen.price < default.price else ""


STEAL_PERCENT = 5.0
OTHER_PERCENT = 15.0
DRIFT = 0.15
"""Spread between rounds, common to all configurations, above which the machine is considered noisy."""


def _describe_noise(
    ranked: Iterable[RankedVariant], finalists: Sequence[Finalist], goals: Goals
) -> list[str]:
    found = []
    hosts = [m.host for r in ranked for m in r.run.repetitions if m.host is not None]
    if hosts:
        steal = fmean(h.steal_percent for h in hosts)
        other = fmean(h.other_percent for h in hosts)
        if steal > STEAL_PERCENT:
            found.append(f"other guests of the host took {steal:.0f}% of the processors' time")
        if other > OTHER_PERCENT:
            load, cores = fmean(h.load_average for h in hosts), hosts[0].cores
            found.append(
                f"other programs took {other:.0f}% of the processors' time (load average {load:.1f} on "
                f"{cores} cores)"
            )
    # how much faster the fastest round is than the slowest, at least, for every configuration
    scores = [{m.round: score(m, goals) for m in f.point.samples} for f in finalists]
    rounds = set.intersection(*map(set, scores))
    levels = {number: fmean(own[number] for own in scores) for number in rounds}
    drift = 0.0
    if len(levels) > 1 and bool(np.isfinite(list(levels.values())).all()):
        fast, slow = (choose(levels, key=lambda number: levels[number]) for choose in (max, min))
        drift = float(np.expm1(min(own[fast] - own[slow] for own in scores)))
    if drift > DRIFT:
        found.append(f"the final rounds differ by {change(drift).lstrip('+')}, for all configurations alike")
    return found
