"""Simulate searches on servers with a known truth, and print how often verdicts are wrong, or undecided.

The project's own searches and conclusions run in virtual time: `python tools/certainty.py [SEARCHES]`.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.analyzer.search.exploring import BATCHING, FIXED, explore, search_spec, space  # noqa: E402
from tests.analyzer.simulated import Noise, SimulatedServer, Surface  # noqa: E402
from tpx.analyzer.objectives import RankedVariant  # noqa: E402
from tpx.analyzer.verdict import Finding, ModelVerdict, judge  # noqa: E402
from tpx.perf.statistics.findings import MARGIN  # noqa: E402

SEARCHES = 1000
LOADS = (1, 2, 4, 8, 16, 32)
WINDOW_S = 1.2
NOISES = {
    "quiet": Noise(spread=0.03, load=0.02, common=0.02),
    "noisy": Noise(spread=0.15, load=0.054, common=0.10),
    "drifting": Noise(spread=0.03, load=0.02, common=0.02, step=0.04),
}
"""Standard deviations of log throughput: per window, load, round, and step of a random walk."""
MODES = (("brute", FIXED), ("quick", BATCHING), ("budgeted", BATCHING))
Truth = dict[str, float]
"""Throughput of each ranked configuration at the load of its figures, without noise."""


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
        best, default = verdict.best, verdict.default
        assert best is not None
        assert default is not None
        finalists = [r.name for r in verdict.ranking if r.settled is not None]
        self.findings[verdict.finding.value] += 1
        self.wrong[verdict.finding.value] += is_wrong(verdict, best, default, truth, finalists)
        self.rounds.append(rounds)
        self.seconds.append(seconds)
        if verdict.finding is Finding.UNDECIDED and verdict.candidate is not None:
            self.missed.append(truth[verdict.candidate.name] / truth[default.name] - 1)
        if verdict.finding in (Finding.BETTER, Finding.CHEAPER, Finding.DEFAULT) and finalists:
            self.gaps.append(1 - truth[best.name] / max(truth[name] for name in finalists))
        if verdict.gain is not None:
            gain = truth[best.name] / truth[default.name] - 1
            self.covered.append(verdict.gain.low <= gain <= verdict.gain.high)


def is_wrong(
    verdict: ModelVerdict, best: RankedVariant, default: RankedVariant, truth: Truth, finalists: list[str]
) -> bool:
    """Return True if a verdict claims what is not true."""
    if verdict.finding is Finding.BETTER:
        return truth[best.name] <= truth[default.name]
    if verdict.finding is Finding.CHEAPER:
        return truth[best.name] < truth[default.name] / (1 + MARGIN)
    if verdict.finding is Finding.DEFAULT:
        claimed = 1.0 if verdict.conclusion and verdict.conclusion.is_best else 1 + MARGIN
        return any(truth[name] > claimed * truth[default.name] for name in finalists if name != default.name)
    return False


def find_best(surface: Surface, most_batched: int) -> tuple[int, int]:
    """Return the instances and the batch size of the fastest configuration."""
    batches = [2**power for power in range(8)] if most_batched else [0]
    shapes = [(instances, batch) for instances in range(1, 6) for batch in batches]
    return max(
        shapes, key=lambda shape: max(surface.throughput(shape[0], max(1, shape[1]), c) for c in LOADS)
    )


def simulate(noise: Noise, searches: int) -> Tally:
    """Return the outcomes of searches of different servers; of every second one the default is best."""
    tally = Tally()
    for seed in range(searches):
        mode, facts = MODES[seed % len(MODES)]
        asked = search_spec(facts, within=space(loads=LOADS))
        surface, most_batched = Surface.drawn(seed), facts.max_batch_size
        server = SimulatedServer(
            surface,
            default=find_best(surface, most_batched) if seed % 2 else (1 + seed % 5, most_batched),
            noise=noise,
            seed=seed,
            measurement_s=WINDOW_S,
        )
        found = explore(mode, asked, server)
        verdict = judge(found.model, asked.goals)
        truth = {r.name: server.truth(r.run.variant, r.figures.load) for r in verdict.ranking}
        tally.add(verdict, truth, max(trial.round for trial in found.trials), server.now_s)
    return tally


def main() -> int:
    searches = int(sys.argv[1]) if len(sys.argv) > 1 else SEARCHES
    rows = []
    for name, noise in NOISES.items():
        tally = simulate(noise, searches)
        count = tally.findings
        changed = count["better"] + count["cheaper"]
        wrong = tally.wrong["better"] + tally.wrong["cheaper"]
        large = sum(gain > 0.1 for gain in tally.missed)
        rows.append(
            (
                name,
                f"{changed / searches:.0%}, {wrong} wrong",
                f"{count['default'] / searches:.0%}, {tally.wrong['default']} wrong",
                f"{count['undecided'] / searches:.0%}, {large / searches:.1%}",
                f"{sum(gap > MARGIN for gap in tally.gaps) / max(1, len(tally.gaps)):.1%}",
                f"{fmean(tally.covered):.1%}",
                f"{fmean(tally.rounds):.1f}",
                f"{fmean(tally.seconds):.0f} s",
            )
        )
    headers = (
        *("machine", "another recommended", "default is best, or as good"),
        *("undecided; with a true gain above 10%", "recommended over 5% below the best finalist"),
        *("interval holds the true gain", "rounds", "time"),
    )
    for cells in (headers, ("---",) * len(headers), *rows):
        print(f"| {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
