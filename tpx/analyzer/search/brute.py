"""Brute search: the default first, then every instance count with growing batch sizes.

Order, names and stop rules are Model Analyzer's automatic brute search, so that results of both line up.
"""

from collections.abc import Generator, Sequence
from typing import Any

from tpx.analyzer.results.measurement import Decision, Outcome, Trial, Variant
from tpx.analyzer.search.base import Done, SearchSpace
from tpx.analyzer.search.sweep import Swept, sweep
from tpx.analyzer.variants import ModelFacts


class BruteSearch:
    """Walks the whole space, leaving out only what growing load or batch size shows to be of no use."""

    def __init__(self, facts: ModelFacts, space: SearchSpace) -> None:
        self._facts = facts
        self._space = space
        self._decisions: list[Decision] = []
        self._walk = self._steps()
        self._next: Trial | Done = self._advance(None)

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._decisions

    @property
    def configurations_at_most(self) -> int:
        return 1 + len(self._space.instances.steps()) * len(self._batch_sizes())

    @property
    def loads_at_most(self) -> int:
        return len(self._space.loads.values) * len(self._space.loads.batch_sizes)

    def ask(self) -> Trial | Done:
        return self._next

    def tell(self, trial: Trial, outcome: Outcome) -> None:
        if trial != self._next:
            raise ValueError(f"told about {trial}, asked for {self._next}")
        self._next = self._advance(outcome)

    def _advance(self, outcome: Outcome | None) -> Trial | Done:
        try:
            return next(self._walk) if outcome is None else self._walk.send(outcome)
        except StopIteration:
            return Done(reason="the whole space was searched")

    def _steps(self) -> Generator[Trial, Outcome, None]:
        facts = self._facts
        default = Variant(model=facts.model, name=f"{facts.model}_config_default")
        yield from sweep(default, self._space.loads, facts.max_batch_size, self._decisions)
        number = 0
        for instances in self._space.instances.steps():
            best: float | None = None
            for batch_size in self._batch_sizes():
                variant = self._variant(number, instances, batch_size)
                number += 1
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

    def _variant(self, number: int, instances: int, batch_size: int | None) -> Variant:
        delta: dict[str, Any] = {"instance_group": [{"count": instances, "kind": self._facts.instance_kind}]}
        if batch_size is not None:
            delta["max_batch_size"] = batch_size
            if self._facts.can_batch_dynamically:
                delta["dynamic_batching"] = self._batching(batch_size)
        return Variant(model=self._facts.model, name=f"{self._facts.model}_config_{number}", delta=delta)

    def _batching(self, batch_size: int) -> dict[str, Any]:
        """On, and otherwise the default's, without the preferred batch sizes that do not fit."""
        preferred = self._facts.preferred_batch_sizes
        fitting = [size for size in preferred if size <= batch_size]
        return {} if len(fitting) == len(preferred) else {"preferred_batch_size": fitting}

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
