"""Simulate searches on servers with a known truth, and print how often verdicts are wrong, or undecided.

The project's own searches and conclusions run in virtual time: `python tools/certainty.py [SEARCHES]`.
"""

import math
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.analyzer.search.exploring import BATCHING, FIXED, explore, search_spec, space  # noqa: E402
from tests.analyzer.simulated import Noise, SimulatedServer, Surface  # noqa: E402
from tpx.analyzer.objectives import RankedVariant, satisfies, score  # noqa: E402
from tpx.analyzer.results.goals import Constraint, Goals, WeightedObjective  # noqa: E402
from tpx.analyzer.results.measurement import LoadPoint, Measurement, Variant  # noqa: E402
from tpx.analyzer.search.spec import Mode  # noqa: E402
from tpx.analyzer.variants import ModelFacts  # noqa: E402
from tpx.analyzer.verdict import Finding, ModelVerdict, judge  # noqa: E402
from tpx.perf.objectives import Compliance  # noqa: E402
from tpx.perf.statistics.findings import MARGIN  # noqa: E402

SEARCHES = 1000
LOADS = (1, 2, 4, 8, 16, 32)
WINDOW_S = 1.2
QUIET = Noise(spread=0.03, load=0.02, common=0.02)
"""Standard deviations of log throughput: per window, load and round."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A machine, and what is asked of it."""

    noise: Noise
    goals: Goals = field(default_factory=Goals)
    limited: bool = False
    """True for a p99 limit 10% above the true p99 of the default at concurrency 8."""


SETTINGS = {
    "quiet": Setting(QUIET),
    "noisy": Setting(Noise(spread=0.15, load=0.054, common=0.10)),
    "drifting": Setting(replace(QUIET, step=0.04)),
    "quiet, p99 as the objective": Setting(
        replace(QUIET, tail=0.2), Goals(objectives=(WeightedObjective(tag="perf_latency_p99"),))
    ),
    "quiet, a limit of p99": Setting(replace(QUIET, tail=0.2), limited=True),
}
MODES: tuple[tuple[Mode, ModelFacts], ...] = (("brute", FIXED), ("quick", BATCHING), ("budgeted", BATCHING))
Truth = dict[str, Measurement]
"""Figures of each ranked configuration at the load of its figures, without noise."""


@dataclass(slots=True)
class Tally:
    """The outcomes of the searches in one setting."""

    findings: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    missed: list[float] = field(default_factory=list)
    """True gain of the candidate of each undecided search."""
    gaps: list[float] = field(default_factory=list)
    """By how much each recommended configuration is below the true best of the finalists."""
    covered: list[bool] = field(default_factory=list)
    """Whether each gain's interval holds the true gain."""
    rounds: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, verdict: ModelVerdict, truth: Truth, rounds: int, seconds: float) -> None:
        best, default, goals = verdict.best, verdict.default, verdict.goals
        assert best is not None
        assert default is not None
        self.findings[verdict.finding.value] += 1
        self.rounds.append(rounds)
        self.seconds.append(seconds)
        if verdict.compliance is Compliance.MET and not satisfies(truth[best.name], goals):
            self.wrong["limit"] += 1
        worth = {name: math.exp(score(exact, goals)) for name, exact in truth.items()}
        finalists = [r.name for r in verdict.ranking if r.settled is not None and r.satisfies]
        self.wrong[verdict.finding.value] += is_wrong(verdict, best, default, worth, finalists)
        if verdict.finding is Finding.UNDECIDED and verdict.candidate is not None:
            self.missed.append(worth[verdict.candidate.name] / worth[default.name] - 1)
        if verdict.finding in (Finding.BETTER, Finding.CHEAPER, Finding.DEFAULT) and finalists:
            self.gaps.append(1 - worth[best.name] / max(worth[name] for name in finalists))
        if verdict.gain is not None:
            gain = worth[best.name] / worth[default.name] - 1
            self.covered.append(verdict.gain.low <= gain <= verdict.gain.high)


def is_wrong(
    verdict: ModelVerdict,
    best: RankedVariant,
    default: RankedVariant,
    worth: dict[str, float],
    finalists: list[str],
) -> bool:
    """Return True if a verdict claims what is not true; `worth` is the true score of each configuration."""
    if verdict.finding is Finding.BETTER:
        return worth[best.name] <= worth[default.name]
    if verdict.finding is Finding.CHEAPER:
        return worth[best.name] < worth[default.name] / (1 + MARGIN)
    if verdict.finding is Finding.DEFAULT:
        claimed = 1.0 if verdict.conclusion and verdict.conclusion.is_best else 1 + MARGIN
        return any(worth[name] > claimed * worth[default.name] for name in finalists if name != default.name)
    return False


def find_best(surface: Surface, most_batched: int) -> tuple[int, int]:
    """Return the instances and the batch size of the fastest configuration."""
    batches = [2**power for power in range(8)] if most_batched else [0]
    shapes = [(instances, batch) for instances in range(1, 6) for batch in batches]
    return max(
        shapes, key=lambda shape: max(surface.throughput(shape[0], max(1, shape[1]), c) for c in LOADS)
    )


def simulate(setting: Setting, searches: int) -> Tally:
    """Return the outcomes of searches of different servers; of every second one the default is best."""
    tally = Tally()
    for seed in range(searches):
        mode, facts = MODES[seed % len(MODES)]
        surface, most_batched = Surface.drawn(seed), facts.max_batch_size
        default = find_best(surface, most_batched) if seed % 2 else (1 + seed % 5, most_batched)
        exact = SimulatedServer(surface, default=default)
        goals = setting.goals
        if setting.limited:
            own = exact.measure(Variant(models=("m",), name="m_config_default"), LoadPoint(value=8))
            limit_ms = 1.1 * (own.p99_ns or 0) / 1e6
            goals = replace(
                goals, constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=limit_ms),)
            )
        asked = search_spec(facts, within=space(loads=LOADS), goals=goals)
        server = SimulatedServer(
            surface, default=default, noise=setting.noise, seed=seed, measurement_s=WINDOW_S
        )
        found = explore(mode, asked, server)
        verdict = judge(found.model, asked.goals)
        truth = {r.name: exact.measure(r.run.variant, r.figures.load) for r in verdict.ranking}
        tally.add(verdict, truth, max(trial.round for trial in found.trials), server.now_s)
    return tally


def main() -> int:
    searches = int(sys.argv[1]) if len(sys.argv) > 1 else SEARCHES
    headers = (
        *("machine", "another recommended", "of these wrong", "default is best, or as good"),
        *("of these wrong", "undecided", "with a true gain above 10%", "over 5% below the best finalist"),
        *("limit wrongly met", "interval holds the gain", "rounds", "time"),
    )
    for cells in (headers, ("---",) * len(headers)):
        print(f"| {' | '.join(cells)} |")
    for name, setting in SETTINGS.items():
        tally = simulate(setting, searches)
        count, wrong = tally.findings, tally.wrong
        cells = (
            name,
            f"{(count['better'] + count['cheaper']) / searches:.0%}",
            str(wrong["better"] + wrong["cheaper"]),
            f"{count['default'] / searches:.0%}",
            str(wrong["default"]),
            f"{count['undecided'] / searches:.0%}",
            f"{sum(gain > 0.1 for gain in tally.missed) / searches:.1%}",
            f"{sum(gap > MARGIN for gap in tally.gaps) / max(1, len(tally.gaps)):.1%}",
            str(wrong["limit"]),
            f"{fmean(tally.covered):.1%}",
            f"{fmean(tally.rounds):.1f}",
            f"{fmean(tally.seconds):.0f} s",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
