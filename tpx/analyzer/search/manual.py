"""Manual search: the configurations that the user listed, the default before them."""

from collections.abc import Mapping, Sequence
from typing import Any

from tpx.analyzer.results.measurement import Decision
from tpx.analyzer.search.known import Known
from tpx.analyzer.search.question import Question
from tpx.analyzer.search.refine import refine_best
from tpx.analyzer.search.space import Names
from tpx.analyzer.search.sweep import sweep
from tpx.analyzer.search.walk import Steps
from tpx.analyzer.variants import merge

FIELD_SHOWN = 60


class ManualSearch:
    """Sweeps the load of each listed change to the default, in the order of the list."""

    def __init__(self, question: Question, known: Known) -> None:
        self._facts = question.facts
        self._default = question.default
        self._deltas = question.deltas or ()
        self._loads = question.space.loads
        self._named = question.named
        self._limits = question.limits
        self._known = known
        self._decisions: list[Decision] = []

    @property
    def decisions(self) -> Sequence[Decision]:
        return self._decisions

    @property
    def configurations_at_most(self) -> int:
        return 1 + len(self._deltas)

    @property
    def loads_at_most(self) -> int:
        return len(self._loads.values) * len(self._loads.batch_sizes)

    def steps(self) -> Steps:
        names = Names(self._facts.model, self._named)
        default = names.variant({})
        yield from sweep(default, self._loads, self._facts.max_batch_size, self._decisions)
        tried: set[str] = set()
        for delta in self._deltas:
            merged = merge(self._default, delta)
            if merged == self._default:
                self._decide(default.name, f"{_shown(delta)} is what the default has: not measured again")
                continue
            variant = names.variant(delta)
            if variant.name in tried:
                continue
            tried.add(variant.name)
            size = int(merged.get("max_batch_size", 0))
            unfitting = _unfitting(merged, size)
            if unfitting:
                self._decide(variant.name, f"left out: {unfitting}")
                continue
            yield from sweep(variant, self._loads, size, self._decisions)
        yield from refine_best(self._loads, self._known, self._limits, self._decisions)
        return "every listed configuration was measured"

    def _decide(self, variant: str, text: str) -> None:
        self._decisions.append(Decision(variant=variant, text=text))


def _unfitting(config: Mapping[str, Any], max_batch_size: int) -> str:
    """Why a configuration cannot be loaded, as far as it can be seen without a server."""
    preferred = (config.get("dynamic_batching") or {}).get("preferred_batch_size", ())
    above = [str(size) for size in preferred if int(size) > max_batch_size]
    if above:
        return f"preferred_batch_size {', '.join(above)} is above max_batch_size {max_batch_size}"
    return ""


def _shown(delta: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}: {value}" for key, value in delta.items())
    return text if len(text) <= FIELD_SHOWN else text[:FIELD_SHOWN] + " ..."
