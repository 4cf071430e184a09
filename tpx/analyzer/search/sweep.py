"""The load sweep of one configuration: more and more load until it brings no more throughput.

The plateau rule is Model Analyzer's: of the last four throughputs the best gains at most 5 % over the first.
More load cannot take throughput away before the server chokes, so a first point above those that follow it
was lucky: it counts with them as their mean, and does not end a sweep that still grows.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from tpx.analyzer.results.measurement import Decision, Failure, Load, Outcome, Trial, Variant
from tpx.analyzer.search.base import LoadSpace

PLATEAU_WINDOW = 4
PLATEAU_GAIN = 0.05

Decide = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """How one configuration did."""

    best: float | None = None
    """Its best throughput; None where nothing was measured."""
    failed: bool = False
    """The last trial failed: a configuration that breaks under load is no ground to build on."""


Steps = Generator[Trial, Outcome, Swept]


def plateau_gain(throughputs: Sequence[float]) -> float | None:
    """The gain over the last four throughputs, or None while there are fewer. All are above 0."""
    if len(throughputs) < PLATEAU_WINDOW:
        return None
    start, later = _first_pool(throughputs, len(throughputs) - PLATEAU_WINDOW)
    return (max(start, *throughputs[later:]) - start) / start if later < len(throughputs) else 0.0


def _first_pool(values: Sequence[float], place: int) -> tuple[float, int]:
    """The value at a place where neighbours that fall are replaced by their mean (pool adjacent violators),
    and the place behind those that it shares this mean with."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (late, many), (early, more) = pools.pop(), pools.pop()
            pools.append(((late * many + early * more) / (many + more), many + more))
    end = 0
    for mean, count in pools:
        end += count
        if end > place:
            return mean, end
    raise ValueError(f"no value at {place}")


def sweep(variant: Variant, space: LoadSpace, max_batch_size: int, decisions: list[Decision]) -> Steps:
    """Trials of one configuration over batch sizes and loads."""

    def decide(text: str) -> None:
        decisions.append(Decision(variant=variant.name, text=text))

    bests: list[float] = []
    for batch_size in sorted(space.batch_sizes):
        if batch_size > max(1, max_batch_size):
            decide(f"batch size {batch_size} left out: max_batch_size is {max_batch_size}")
            continue
        swept = yield from _loads(variant, space, batch_size, decide)
        if swept.best is not None:
            bests.append(swept.best)
        if swept.failed:
            return Swept(best=max(bests, default=None), failed=True)
        gain = plateau_gain(bests) if space.until_plateau else None
        if gain is not None and gain <= PLATEAU_GAIN:
            decide(f"larger batches brought {gain:+.1%} over the last {PLATEAU_WINDOW} batch sizes")
            break
    return Swept(best=max(bests, default=None))


def _loads(variant: Variant, space: LoadSpace, batch_size: int, decide: Decide) -> Steps:
    throughputs: list[float] = []
    for value in space.values:
        load = Load(kind=space.kind, value=value, batch_size=batch_size)
        outcome = yield Trial(variant=variant, load=load)
        if isinstance(outcome, Failure) or outcome.throughput <= 0:
            decide(f"stopped at {load}: {_fault(outcome)}")
            return Swept(best=max(throughputs, default=None), failed=True)
        throughputs.append(outcome.throughput)
        gain = plateau_gain(throughputs) if space.until_plateau else None
        if gain is not None and gain <= PLATEAU_GAIN:
            decide(f"plateau after {load}: {gain:+.1%} over the last {PLATEAU_WINDOW} loads")
            break
    else:
        decide(f"no plateau: all {len(space.values)} loads were measured")
    return Swept(best=max(throughputs))


def _fault(outcome: Outcome) -> str:
    return outcome.reason if isinstance(outcome, Failure) else "no inference was completed"
