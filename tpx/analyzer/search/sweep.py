"""Sweep the loads of one configuration: increase the load until throughput stops growing, then bisect
for the greatest load that satisfies the constraints. Strategies that sweep every configuration: brute search
in the order, with the names and stop rules of Model Analyzer, and the user's list.

Models measured together have nested sweeps, so that all combinations of their loads are measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpx.analyzer.objectives import satisfies
from tpx.analyzer.results.measurement import (
    LoadPoint,
    Measurement,
    Trial,
    TrialFailure,
    Variant,
    together,
)
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.history import Asking, History, Steps
from tpx.analyzer.search.ranges import LoadSpace
from tpx.analyzer.search.space import Names, loads_of
from tpx.analyzer.search.spec import SearchSpec
from tpx.analyzer.variants import automatic_delta, merge
from tpx.report.digits import rounded

PLATEAU_WINDOW = 4
PLATEAU_GAIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of sweeping one configuration."""

    best: float | None = None
    """Best throughput in infer/s; None if there is no measurement."""
    failed: bool = False
    """True if a trial failed."""

    def ends_growth(self, max_batch_size: int, best_before: float | None) -> str:
        """Return why larger batch sizes are not worth trying; empty while the best throughput grows."""
        if self.best is None:
            return "this one failed" if self.failed else ""
        if best_before is None or self.best > best_before:
            return ""
        return (
            f"max_batch_size {max_batch_size} gives {rounded(self.best)} infer/s, "
            f"a smaller one gave {rounded(best_before)}"
        )


def plateau_gain(throughputs: Sequence[float]) -> float | None:
    """Return the gain over the last four throughputs (all above 0), or None if there are fewer.

    Model Analyzer's rule: the best of the four over the first.
    """
    if len(throughputs) < PLATEAU_WINDOW:
        return None
    first, *later = throughputs[-PLATEAU_WINDOW:]
    return (max(first, *later) - first) / first


def sweep(
    variant: Variant, spaces: Sequence[LoadSpace], max_batch_sizes: Sequence[int], history: History
) -> Asking[Swept]:
    """Sweep client batch sizes and loads; those of models measured together nest, the last is fastest."""
    return _Sweep(variant, spaces, max_batch_sizes, history).batch_sizes(())


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The nested sweeps of one configuration; `chosen` are the loads of the models before the current one."""

    variant: Variant
    spaces: Sequence[LoadSpace]
    max_batch_sizes: Sequence[int]
    history: History

    def batch_sizes(self, chosen: tuple[LoadPoint, ...]) -> Asking[Swept]:
        """Sweep every client batch size of one model with all its loads. A failure ends the sweep."""
        space, greatest = self.spaces[len(chosen)], self.max_batch_sizes[len(chosen)]
        bests: list[float] = []
        for batch_size in space.batch_sizes:
            if batch_size > max(1, greatest):
                text = f"batch size {batch_size} left out: max_batch_size is {greatest}"
                self.history.leave_out(text, self.variant.name)
                continue
            swept = yield from self._sweep_loads(chosen, batch_size)
            if swept.best is not None:
                bests.append(swept.best)
            if swept.failed:
                return Swept(best=max(bests, default=None), failed=True)
            gain = plateau_gain(bests) if space.until_plateau else None
            if gain is not None and gain <= PLATEAU_GAIN:
                self._decide(f"larger batches brought {gain:+.1%} over the last {PLATEAU_WINDOW} batch sizes")
                break
        return Swept(best=max(bests, default=None))

    def _sweep_loads(self, chosen: tuple[LoadPoint, ...], batch_size: int) -> Asking[Swept]:
        space = self.spaces[len(chosen)]
        throughputs: list[float] = []
        for value in space.values:
            loads = (*chosen, LoadPoint(kind=space.kind, value=value, batch_size=batch_size))
            inner = len(loads) < len(self.spaces)
            swept = yield from self.batch_sizes(loads) if inner else self._measure_load(loads)
            if swept.best is None:
                return Swept(best=max(throughputs, default=None), failed=swept.failed)
            throughputs.append(swept.best)
            gain = plateau_gain(throughputs) if space.until_plateau else None
            if gain is not None and gain <= PLATEAU_GAIN:
                self._decide(f"plateau after {loads[-1]}: {gain:+.1%} over the last {PLATEAU_WINDOW} loads")
                break
        else:
            if not chosen:
                self._decide(f"no plateau: all {len(space.values)} loads were measured")
        return Swept(best=max(throughputs))

    def _decide(self, text: str) -> None:
        self.history.decide(text, self.variant.name)

    def _measure_load(self, loads: Sequence[LoadPoint]) -> Asking[Swept]:
        load = together(loads)
        outcome = yield Trial(variant=self.variant, load=load)
        if isinstance(outcome, TrialFailure) or outcome.throughput <= 0:
            why = outcome.reason if isinstance(outcome, TrialFailure) else "no inference was completed"
            self._decide(f"stopped at {load}: {why}")
            return Swept(failed=True)
        return Swept(best=outcome.throughput)


def refine_best(spec: SearchSpec, history: History) -> Asking[None]:
    """Bisect for the greatest load of the best configurations and the default within the constraints.

    If even the least load violates them, try smaller ones down to 1; nothing for listed loads.
    """
    if spec.space.loads.listed or not history.goals.all_constraints:
        return
    ranked, finalists = history.ranked(), history.limits.finalists
    for variant in ranked[:finalists] + [v for v in ranked[finalists:] if v.is_default]:
        for batch_size in sorted({m.load.batch_size for m in history.of(variant.name)}):
            for passing, failing in _find_boundaries(variant, history, batch_size):
                most = spec.space.strategy.run_config_search_max_binary_search_steps
                yield from _bisect(variant, history, (passing, failing), most)


def _find_boundaries(variant: Variant, history: History, batch_size: int) -> list[tuple[int, LoadPoint]]:
    """Return pairs of adjacent loads, satisfied (0 if none is) and violated, around the best satisfied."""
    measured = sorted(
        (m for m in history.of(variant.name) if m.load.batch_size == batch_size), key=lambda m: m.load.value
    )
    keeps = [satisfies(m, history.goals) for m in measured]
    if not measured or all(keeps):
        return []
    if not any(keeps):
        least = measured[0].load
        # less load can help a figure that has an upper bound
        helps = any(constraint.bound == "max" for constraint in history.goals.all_constraints)
        return [(0, least)] if least.value > 1 and helps else []
    best = max(range(len(measured)), key=lambda i: history.merit(measured[i]))
    sides = [i for i in (best + 1, best - 1) if 0 <= i < len(measured) and not keeps[i]]
    return [(measured[best].load.value, measured[i].load) for i in sides]


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


FIELD_SHOWN = 60
_BATCH_SIZE = "max_batch_size"


def brute(spec: SearchSpec, history: History) -> Steps:
    """Sweep the default, then every instance count with batch sizes, while they bring something."""
    facts, space, strategy = spec.facts, spec.space, spec.space.strategy
    names = Names(spec.models, spec.named)
    sizes = strategy.max_batch_sizes if facts.max_batch_size > 0 else (None,)
    history.space_size = 1 + len(strategy.instances) * len(sizes)
    yield from sweep(names.variant({}), (space.loads,), (facts.max_batch_size,), history)
    for instances in strategy.instances:
        best: float | None = None
        for size in sizes:
            variant = names.variant(automatic_delta(facts, instances, size))
            dropped = [str(each) for each in facts.preferred_batch_sizes if size and each > size]
            if dropped:
                text = f"without preferred_batch_size {', '.join(dropped)}: max_batch_size is {size}"
                history.decide(text, variant.name)
            swept = yield from sweep(variant, (space.loads,), (size or 0,), history)
            reason = swept.ends_growth(size or 0, best)
            if reason:
                if size and size != sizes[-1]:
                    text = f"larger batch sizes not tried with this instance count: {reason}"
                    history.decide(text, variant.name)
                break
            best = best if swept.best is None else swept.best
    yield from refine_best(spec, history)


def manual(spec: SearchSpec, history: History) -> Steps:
    """Sweep the default, then each listed change in order; the lists of several models are combined."""
    variants: list[tuple[Variant, Mapping[str, Any]]]
    if spec.members:
        grid = open_grid(spec)
        default = grid.default
        once = {variant.name: variant for variant in map(grid.variant, grid.points())}
        variants = [(variant, {}) for variant in once.values()]
    else:
        names = Names(spec.models, spec.named, spec.default)
        default = names.variant({})
        variants = [(names.variant(delta), delta) for delta in spec.deltas or ()]
    history.space_size = 1 + len(variants)
    yield from _sweep_listed(spec, history, default, variants)
    yield from refine_best(spec, history)


def _sweep_listed(
    spec: SearchSpec,
    history: History,
    default: Variant,
    variants: Sequence[tuple[Variant, Mapping[str, Any]]],
) -> Asking[None]:
    """Sweep each configuration once; with early exit, larger batch sizes only while throughput grows."""
    swept = {default.name: (yield from _sweep_variant(spec, history, default))}
    beside: Mapping[str, Any] | None = None
    best, ended = None, False
    for variant, delta in variants:
        others = {key: value for key, value in delta.items() if key != _BATCH_SIZE}
        if others != beside:
            beside, best, ended = others, None, False
        if ended:
            continue
        if variant.is_default and delta:
            text = ", ".join(f"{key}: {value}" for key, value in delta.items())
            text = text if len(text) <= FIELD_SHOWN else f"{text[:FIELD_SHOWN]} ..."
            history.decide(f"{text} equals the default: not measured again", variant.name)
        elif variant.name not in swept:
            unfitting = _explain_misfit(spec, variant)
            if unfitting:
                history.leave_out(f"left out: {unfitting}", variant.name)
                continue
            swept[variant.name] = yield from _sweep_variant(spec, history, variant)
        if spec.space.strategy.early_exit_enable and _BATCH_SIZE in delta:
            reason = swept[variant.name].ends_growth(delta[_BATCH_SIZE], best)
            if reason:
                history.decide(f"larger batch sizes not tried: {reason}", variant.name)
            best, ended = swept[variant.name].best or best, bool(reason)


def _sweep_variant(spec: SearchSpec, history: History, variant: Variant) -> Asking[Swept]:
    spaces = list(loads_of(spec).values())
    loaded = (variant,) if len(spaces) == 1 else variant.members
    sizes = [int(_merge_config(spec, each).get(_BATCH_SIZE, 0)) for each in loaded]
    return sweep(variant, spaces, sizes, history)


def _explain_misfit(spec: SearchSpec, variant: Variant) -> str:
    """Return why a server could not load a configuration, as far as visible here; empty otherwise."""
    for each in (variant, *variant.members):
        config = _merge_config(spec, each)
        size = int(config.get(_BATCH_SIZE, 0))
        preferred = (config.get("dynamic_batching") or {}).get("preferred_batch_size", ())
        above = [str(n) for n in preferred if int(n) > size]
        if above:
            return f"preferred_batch_size {', '.join(above)} is above max_batch_size {size}"
    return ""


def _merge_config(spec: SearchSpec, variant: Variant) -> Mapping[str, Any]:
    """Return JSON of a variant's configuration."""
    merged: Mapping[str, Any] = merge(spec.defaults.get(variant.model, {}), variant.delta)
    return merged
