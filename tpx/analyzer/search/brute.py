"""Brute search: the default first, then every instance count with growing batch sizes.

Order, names and stop rules are Model Analyzer's automatic brute search, so that results of both line up.
"""

from collections.abc import Generator, Sequence

from tpx.analyzer.results.measurement import Decision, Outcome, Trial
from tpx.analyzer.search.known import Known
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

    def _walk(self) -> Generator[Trial, Outcome, None]:
        facts = self._facts
        yield from sweep(self._names.variant({}), self._space.loads, facts.max_batch_size, self._decisions)
        for instances in self._space.instances.steps():
            best: float | None = None
            for batch_size in self._batch_sizes():
                variant = self._names.variant(automatic_delta(facts, instances, batch_size))
                self._tell_unfitting(variant.name, batch_size)
                swept = yield from sweep(variant, self._space.loads, batch_size or 0, self._decisions)
                reason = self._hopeless(batch_size, swept, best)
                if reason:
                    self._decide(variant.name, reason)
                    break
                best = best if swept.best is None else swept.best

    def _batch_sizes(self) -> tuple[int | None, ...]:
        """None alone where the model does not batch."""
        return self._space.max_batch_sizes.doublings() if self._facts.max_batch_size > 0 else (None,)

    def _tell_unfitting(self, variant: str, batch_size: int | None) -> None:
        dropped = [size for size in self._facts.preferred_batch_sizes if batch_size and size > batch_size]
        if dropped:
            sizes = ", ".join(map(str, dropped))
            self._decide(variant, f"without preferred_batch_size {sizes}: max_batch_size is {batch_size}")

    def _hopeless(self, batch_size: int | None, swept: Swept, best: float | None) -> str:
        """Why larger batch sizes are not tried; the throughput must grow strictly from one to the next."""
        if batch_size is None or batch_size == self._batch_sizes()[-1]:
            return ""
        if swept.failed:
            return "larger batch sizes not tried with this instance count: this one failed"
        if best is not None and swept.best is not None and swept.best <= best:
            return (
                f"larger batch sizes not tried with this instance count: max_batch_size {batch_size} gives "
                f"{swept.best:.0f} infer/sec, a smaller one gave {best:.0f}"
            )
        return ""

    def _decide(self, variant: str, text: str) -> None:
        self._decisions.append(Decision(variant=variant, text=text))
