"""Strategies that sweep the loads of every configuration: brute search, and the user's list.

Order, names and stop rules of the brute search are Model Analyzer's, so that their results can be
compared.
"""

from collections.abc import Mapping
from typing import Any

from tpx.analyzer.results.measurement import Variant
from tpx.analyzer.search.axes import open_grid
from tpx.analyzer.search.history import Asking, History, Steps
from tpx.analyzer.search.space import Names, loads_of
from tpx.analyzer.search.spec import SearchSpec
from tpx.analyzer.search.sweep import Swept, refine_best, sweep
from tpx.analyzer.variants import automatic_delta, merge

FIELD_SHOWN = 60
_BATCH_SIZE = "max_batch_size"


def brute(spec: SearchSpec, history: History) -> Steps:
    """Sweep the default, then every instance count with growing batch sizes.

    Larger loads and batch sizes are skipped only if the smaller ones show that they bring nothing.
    """
    facts, space = spec.facts, spec.space
    names = Names(facts.model, spec.named)
    sizes = space.max_batch_sizes.doublings() if facts.max_batch_size > 0 else (None,)
    history.space_size = 1 + len(space.instances.steps()) * len(sizes)
    yield from sweep(names.variant({}), (space.loads,), (facts.max_batch_size,), history)
    for instances in space.instances.steps():
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
    """Sweep the default, then each listed change to it in order.

    For several models, measured together or as parts of another, the lists of all models are combined,
    and so are the loads of models measured together.
    """
    listed = _Listed(spec, history)
    history.space_size = 1 + len(listed.variants)
    yield from listed.measured()
    yield from refine_best(spec, history)


class _Listed:
    """The configurations that the user listed."""

    def __init__(self, spec: SearchSpec, history: History) -> None:
        self._history = history
        self._early_exit = spec.early_exit
        self._spaces = list(loads_of(spec).values())
        self._defaults = {spec.facts.model: spec.default}
        self._defaults |= {member.facts.model: member.default or {} for member in spec.members}
        self.variants: list[tuple[Variant, dict[str, Any]]]
        if spec.members:
            grid = open_grid(spec)
            self._default = grid.default
            once = {variant.name: variant for variant in map(grid.variant, grid.points())}
            self.variants = [(variant, {}) for variant in once.values()]
        else:
            names = Names(spec.facts.model, spec.named, spec.default)
            self._default = names.variant({})
            self.variants = [(names.variant(delta), dict(delta)) for delta in spec.deltas or ()]

    def measured(self) -> Asking[None]:
        """Sweep each configuration once; with early exit, larger batch sizes only while throughput grows."""
        swept = {self._default.name: (yield from self._sweep(self._default))}
        beside: dict[str, Any] | None = None
        best, ended = None, False
        for variant, delta in self.variants:
            others = {key: value for key, value in delta.items() if key != _BATCH_SIZE}
            if others != beside:
                beside, best, ended = others, None, False
            if ended:
                continue
            if variant.is_default and delta:
                self._decide(variant, f"{_shown(delta)} is what the default has: not measured again")
            elif variant.name not in swept:
                unfitting = self._unfitting(variant)
                if unfitting:
                    self._decide(variant, f"left out: {unfitting}")
                    continue
                swept[variant.name] = yield from self._sweep(variant)
            if self._early_exit and _BATCH_SIZE in delta:
                reason = swept[variant.name].ends_growth(delta[_BATCH_SIZE], best)
                if reason:
                    self._decide(variant, f"larger batch sizes not tried: {reason}")
                best, ended = swept[variant.name].best or best, bool(reason)

    def _sweep(self, variant: Variant) -> Asking[Swept]:
        loaded = (variant,) if len(self._spaces) == 1 else variant.members
        sizes = [int(self._config(each).get(_BATCH_SIZE, 0)) for each in loaded]
        return sweep(variant, self._spaces, sizes, self._history)

    def _unfitting(self, variant: Variant) -> str:
        """Return why a configuration cannot be loaded, as far as this is visible without a server;
        empty if none is known.
        """
        for config in map(self._config, (variant, *variant.members)):
            size = int(config.get(_BATCH_SIZE, 0))
            preferred = (config.get("dynamic_batching") or {}).get("preferred_batch_size", ())
            above = [str(each) for each in preferred if int(each) > size]
            if above:
                return f"preferred_batch_size {', '.join(above)} is above max_batch_size {size}"
        return ""

    def _config(self, variant: Variant) -> Mapping[str, Any]:
        """Return JSON of a variant's configuration."""
        merged: Mapping[str, Any] = merge(self._defaults.get(variant.model, {}), variant.delta)
        return merged

    def _decide(self, variant: Variant, text: str) -> None:
        self._history.decide(text, variant.name)


def _shown(delta: Mapping[str, object]) -> str:
    text = ", ".join(f"{key}: {value}" for key, value in delta.items())
    return text if len(text) <= FIELD_SHOWN else text[:FIELD_SHOWN] + " ..."
