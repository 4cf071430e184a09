"""The loads of one configuration: more and more until that brings no more throughput, and between two that
were measured the greatest that still keeps the constraints.

Models that are measured together have a sweep each, the later ones inside of the earlier ones, so that their
loads are combined freely.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tpx.analyzer.objectives import satisfies
from tpx.analyzer.results.measurement import (
    LoadPoint,
    Measurement,
    Outcome,
    Trial,
    TrialFailure,
    Variant,
    together,
)
from tpx.analyzer.search.history import Asking, History
from tpx.analyzer.search.loads import LoadSpace, PlateauRule
from tpx.analyzer.search.spec import SearchSpec
from tpx.report.digits import rounded

PLATEAU_WINDOW = 4
PLATEAU_GAIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """How one configuration did."""

    best: float | None = None
    """Its best throughput; None where nothing was measured."""
    failed: bool = False
    """Some trial failed."""

    def ends_growth(self, max_batch_size: int, best_before: float | None) -> str:
        """Why batch sizes larger than this configuration's are not worth trying; empty where they are.

        The best throughput must grow strictly from one size to the next; one load that works is enough.
        """
        if self.best is None:
            return "this one failed" if self.failed else ""
        if best_before is None or self.best > best_before:
            return ""
        return (
            f"max_batch_size {max_batch_size} gives {rounded(self.best)} infer/s, "
            f"a smaller one gave {rounded(best_before)}"
        )


def plateau_gain(throughputs: Sequence[float], rule: PlateauRule = "model-analyzer") -> float | None:
    """The gain over the last four throughputs, or None while there are fewer. All are above 0.

    Model Analyzer's rule: the best of the four over their first. Pooled: a first one that lies above those
    that follow it counts with them as their mean, since more load takes no throughput away before the server
    chokes; one lucky measurement does not end a sweep that still grows.
    """
    if len(throughputs) < PLATEAU_WINDOW:
        return None
    first = len(throughputs) - PLATEAU_WINDOW
    start, later = (throughputs[first], first + 1)
    if rule == "pooled":
        start, later = _first_pool(throughputs, first)
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


def sweep(
    variant: Variant, spaces: Sequence[LoadSpace], max_batch_sizes: Sequence[int], history: History
) -> Asking[Swept]:
    """Ask for trials of one configuration over batch sizes and loads: of the model, or of each of those that
    are measured together, the last one's varying fastest."""
    return _Sweep(variant, spaces, max_batch_sizes, history).batch_sizes(())


class _Sweep:
    """The nested sweeps of one configuration; `chosen` are the loads of the models before."""

    def __init__(
        self,
        variant: Variant,
        spaces: Sequence[LoadSpace],
        max_batch_sizes: Sequence[int],
        history: History,
    ) -> None:
        self._variant = variant
        self._spaces = spaces
        self._max_batch_sizes = max_batch_sizes
        self._history = history

    def batch_sizes(self, chosen: tuple[LoadPoint, ...]) -> Asking[Swept]:
        """Every batch size of one model, each with its loads. A failure ends it."""
        space, greatest = self._spaces[len(chosen)], self._max_batch_sizes[len(chosen)]
        bests: list[float] = []
        for batch_size in space.batch_sizes:
            if batch_size > max(1, greatest):
                self._decide(f"batch size {batch_size} left out: max_batch_size is {greatest}")
                continue
            swept = yield from self._loads(chosen, batch_size)
            if swept.best is not None:
                bests.append(swept.best)
            if swept.failed:
                return Swept(best=max(bests, default=None), failed=True)
            gain = plateau_gain(bests, space.plateau_rule) if space.until_plateau else None
            if gain is not None and gain <= PLATEAU_GAIN:
                self._decide(f"larger batches brought {gain:+.1%} over the last {PLATEAU_WINDOW} batch sizes")
                break
        return Swept(best=max(bests, default=None))

    def _loads(self, chosen: tuple[LoadPoint, ...], batch_size: int) -> Asking[Swept]:
        space = self._spaces[len(chosen)]
        throughputs: list[float] = []
        for value in space.values:
            loads = (*chosen, LoadPoint(kind=space.kind, value=value, batch_size=batch_size))
            inner = len(loads) < len(self._spaces)
            swept = yield from self.batch_sizes(loads) if inner else self._measured(loads)
            if swept.best is None:
                return Swept(best=max(throughputs, default=None), failed=swept.failed)
            throughputs.append(swept.best)
            gain = plateau_gain(throughputs, space.plateau_rule) if space.until_plateau else None
            if gain is not None and gain <= PLATEAU_GAIN:
                self._decide(f"plateau after {loads[-1]}: {gain:+.1%} over the last {PLATEAU_WINDOW} loads")
                break
        else:
            if not chosen:
                self._decide(f"no plateau: all {len(space.values)} loads were measured")
        return Swept(best=max(throughputs))

    def _decide(self, text: str) -> None:
        self._history.decide(text, self._variant.name)

    def _measured(self, loads: Sequence[LoadPoint]) -> Asking[Swept]:
        load = together(loads) if len(loads) > 1 else loads[0]
        outcome = yield Trial(variant=self._variant, load=load)
        if isinstance(outcome, TrialFailure) or outcome.throughput <= 0:
            self._decide(f"stopped at {load}: {_fault(outcome)}")
            return Swept(failed=True)
        return Swept(best=outcome.throughput)


def _fault(outcome: Outcome) -> str:
    return outcome.reason if isinstance(outcome, TrialFailure) else "no inference was completed"


def refine_best(spec: SearchSpec, history: History) -> Asking[None]:
    """Refine the best configurations and the default, where there are constraints and no listed loads.

    Loads between the best that keeps the constraints and its neighbours that do not are measured; where not
    even the least load keeps them, smaller ones down to 1.
    """
    if spec.space.loads.listed or not history.goals.all_constraints:
        return
    ranked, finalists = history.ranked(), history.limits.finalists
    for variant in ranked[:finalists] + [v for v in ranked[finalists:] if v.is_default]:
        for batch_size in sorted({m.load.batch_size for m in history.of(variant.name)}):
            for passing, failing in _boundaries(variant, history, batch_size):
                yield from _bisect(variant, history, (passing, failing), spec.refine_steps)


def _boundaries(variant: Variant, history: History, batch_size: int) -> list[tuple[int, LoadPoint]]:
    """Loads (kept, not kept) with nothing measured between them, around the best that is kept; where none is
    kept, 0 stands for it."""
    measured = sorted(
        (m for m in history.of(variant.name) if m.load.batch_size == batch_size), key=lambda m: m.load.value
    )
    keeps = [satisfies(m, history.goals) for m in measured]
    if not measured or all(keeps):
        return []
    if not any(keeps):
        least = measured[0].load
        return [(0, least)] if least.value > 1 and _latency_binds(history) else []
    best = max(range(len(measured)), key=lambda i: history.merit(measured[i]))
    sides = [i for i in (best + 1, best - 1) if 0 <= i < len(measured) and not keeps[i]]
    return [(measured[best].load.value, measured[i].load) for i in sides]


def _latency_binds(history: History) -> bool:
    """Return whether less load can help: some figure has a greatest value."""
    return any(constraint.bound == "max" for constraint in history.goals.all_constraints)


def _bisect(
    variant: Variant, history: History, between: tuple[int, LoadPoint], max_steps: int
) -> Asking[None]:
    passing, failing_load = between
    failing = failing_load.value
    for _ in range(max_steps):
        middle = (passing + failing) // 2
        if middle in (passing, failing) or middle < 1:
            break
        outcome = yield Trial(variant=variant, load=failing_load.scaled(middle))
        kept = isinstance(outcome, Measurement) and satisfies(outcome, history.goals)
        passing, failing = (middle, failing) if kept else (passing, middle)
    word = failing_load.kind.replace("_", " ")
    if passing:
        history.decide(f"the constraints hold at {word} {passing}, not at {failing}", variant.name)
    else:
        history.decide(f"the constraints do not hold down to {word} {failing}", variant.name)
