"""Brute search: the default first, then every instance count with growing batch sizes.

Order, names and stop rules are Model Analyzer's automatic brute search, so that results of both line up.
"""

from collections.abc import Sequence

from tpx.analyzer.results.measurement import Decision, Variant
from tpx.analyzer.search.known import Asking, Known
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.refine import refine_best
from tpx.analyzer.search.space import Names
from tpx.analyzer.search.sweep import Swept, sweep
from tpx.analyzer.search.walk import Steps
from tpx.analyzer.variants import automatic_delta


class BruteSearch:
    """Walks the whole space, leaving out only what growing load or batch size shows to be of no use."""

    def __init__(self, question: Question, known: Known) -> None:
        self._facts = question.facts
        self._names = Names(question.facts.model, question.named)
        self._space = question.space
        self._limits = question.limits
        self._known = known
        self._decisions: list[Decision] = []

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._decisions

    @property
    def configurations_at_most(self) -> int:
        return 1 + len(self._space.instances.steps()) * len(self._batch_sizes())

    @property
    def loads_at_most(self) -> int:
        return len(self._space.loads.values) * len(self._space.loads.batch_sizes)

    def steps(self) -> Steps:
        yield from self._walk()
        yield from refine_best(self._space.loads, self._known, self._limits, self._decisions)
        return "the whole space was searched"

    def _walk(self) -> Asking[None]:
        facts = self._facts
        yield from self._sweep(self._names.variant({}), facts.max_batch_size)
        for instances in self._space.instances.steps():
            best: float | None = None
            for batch_size in self._batch_sizes():
                variant = self._names.variant(automatic_delta(facts, instances, batch_size))
                self._tell_unfitting(variant.name, batch_size)
                swept = yield from self._sweep(variant, batch_size or 0)
                reason = swept.ends_growth(batch_size or 0, best)
                if reason:
                    if batch_size and batch_size != self._batch_sizes()[-1]:
                        self._decide(
                            variant.name, f"larger batch sizes not tried with this instance count: {reason}"
                        )
                    break
                best = best if swept.best is None else swept.best

    def _sweep(self, variant: Variant, max_batch_size: int) -> Asking[Swept]:
        return sweep(variant, (self._space.loads,), (max_batch_size,), self._decisions)

    def _batch_sizes(self) -> tuple[int | None, ...]:
        """None alone where the model does not batch."""
        return self._space.max_batch_sizes.doublings() if self._facts.max_batch_size > 0 else (None,)

    def _tell_unfitting(self, variant: str, batch_size: int | None) -> None:
        dropped = [size for size in self._facts.preferred_batch_sizes if batch_size and size > batch_size]
        if dropped:
            sizes = ", ".join(map(str, dropped))
            self._decide(variant, f"without preferred_batch_size {sizes}: max_batch_size is {batch_size}")

    def _decide(self, variant: str, text: str) -> None:
        self._decisions.append(Decision(variant=variant, text=text))
