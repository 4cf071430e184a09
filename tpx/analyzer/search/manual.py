"""Manual search: the configurations that the user listed, the default before them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tpx.analyzer.results.measurement import Decision, Variant
from tpx.analyzer.search.axes import loads_of, open_grid
from tpx.analyzer.search.known import Asking, Known
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.refine import refine_best
from tpx.analyzer.search.space import Names
from tpx.analyzer.search.sweep import Swept, sweep
from tpx.analyzer.search.walk import Steps
from tpx.analyzer.variants import merge

FIELD_SHOWN = 60
_BATCH_SIZE = "max_batch_size"


class ManualSearch:
    """Sweeps the load of each listed change to the default, in the order of the list.

    Of several models, whether they are measured together or parts of another, what is listed of each is
    combined with what is listed of the others, and so are the loads of those that are measured together.
    """

    def __init__(self, question: Question, known: Known) -> None:
        self._question = question
        self._known = known
        self._decisions: list[Decision] = []
        self._spaces = list(loads_of(question).values())
        self._defaults = {question.facts.model: question.default}
        self._defaults |= {member.facts.model: member.default or {} for member in question.members}
        if question.members:
            grid = open_grid(question)
            self._default = grid.default
            once = {variant.name: variant for variant in map(grid.variant, grid.points())}
            listed: list[tuple[Variant, dict[str, Any]]] = [(variant, {}) for variant in once.values()]
        else:
            names = Names(question.facts.model, question.named, question.default)
            self._default = names.variant({})
            listed = [(names.variant(delta), dict(delta)) for delta in question.deltas or ()]
        self._listed = listed

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._decisions

    @property
    def configurations_at_most(self) -> int:
        return 1 + len(self._listed)

    @property
    def loads_at_most(self) -> int:
        return math.prod(len(space.values) * len(space.batch_sizes) for space in self._spaces)

    def steps(self) -> Steps:
        swept = {self._default.name: (yield from self._sweep(self._default))}
        yield from self._walk(swept)
        loads, limits = self._question.space.loads, self._question.limits
        yield from refine_best(loads, self._known, limits, self._decisions)
        return "every listed configuration was measured"

    def _walk(self, swept: dict[str, Swept]) -> Asking[None]:
        """Every listed change once; with early exit larger batch sizes only while they bring something."""
        beside: dict[str, Any] | None = None
        best, ended = None, False
        for variant, delta in self._listed:
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
            if self._question.early_exit and _BATCH_SIZE in delta:
                reason = swept[variant.name].ends_growth(delta[_BATCH_SIZE], best)
                if reason:
                    self._decide(variant, f"larger batch sizes not tried: {reason}")
                best, ended = swept[variant.name].best or best, bool(reason)

    def _sweep(self, variant: Variant) -> Asking[Swept]:
        loaded = (variant,) if len(self._spaces) == 1 else variant.members
        sizes = [int(self._config(each).get(_BATCH_SIZE, 0)) for each in loaded]
        return sweep(variant, self._spaces, sizes, self._decisions)

    def _unfitting(self, variant: Variant) -> str:
        """Why a configuration cannot be loaded, as far as it can be seen without a server."""
        for config in map(self._config, (variant, *variant.members)):
            size = int(config.get(_BATCH_SIZE, 0))
            preferred = (config.get("dynamic_batching") or {}).get("preferred_batch_size", ())
            above = [str(each) for each in preferred if int(each) > size]
            if above:
                return f"preferred_batch_size {', '.join(above)} is above max_batch_size {size}"
        return ""

    def _config(self, variant: Variant) -> Mapping[str, Any]:
        """JSON of a variant's configuration."""
        merged: Mapping[str, Any] = merge(self._defaults.get(variant.model, {}), variant.delta)
        return merged

    def _decide(self, variant: Variant, text: str) -> None:
        self._decisions.append(Decision(variant=variant.name, text=text))


def _shown(delta: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}: {value}" for key, value in delta.items())
    return text if len(text) <= FIELD_SHOWN else text[:FIELD_SHOWN] + " ..."
