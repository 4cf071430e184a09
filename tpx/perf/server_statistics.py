"""The server's own statistics of a measurement: the growth of its counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tpx.errors import MeasurementError, TpxError
from tpx.perf.clients.base import Control
from tpx.perf.clients.model import ModelDescription, ModelKey, Snapshot
from tpx.perf.results import ServerBreakdown

MAX_ENSEMBLE_DEPTH = 16


@dataclass(frozen=True, slots=True)
class ModelTree:
    """A model and, if it is an ensemble, the models that it calls."""

    key: ModelKey
    response_cache: bool = False
    composing: tuple["ModelTree", ...] = ()
    sequential: bool = False

    @property
    def takes_sequences(self) -> bool:
        """True if it, or a model that it calls, keeps state per sequence."""
        return self.sequential or any(tree.takes_sequences for tree in self.composing)


async def model_tree(
    control: Control,
    model: ModelDescription,
    key: ModelKey,
    depth: int = 0,
    *,
    calls: Sequence[ModelKey] = (),
) -> ModelTree:
    """Return the model with the steps of an ensemble, and their steps.

    `calls` are further models that it calls by itself (BLS), which no configuration lists. Raises
    MeasurementError if the server does not know one of them.
    """
    if depth > MAX_ENSEMBLE_DEPTH:
        raise MeasurementError(f"ensemble '{model.name}' is nested more than {MAX_ENSEMBLE_DEPTH} deep")
    composing = [
        await model_tree(control, await control.model(step), step, depth + 1)
        for step in dict.fromkeys((*model.steps, *calls))
    ]
    return ModelTree(key, model.response_cache, tuple(composing), model.scheduler == "sequence")


class ServerStatistics:
    """Reads the counters of one model, or of several that are measured at once.

    Every result is None if the server lacks the statistics extension.
    """

    def __init__(self, control: Control, *trees: ModelTree, available: bool) -> None:
        self.trees = trees
        self.available = available
        self._control = control
        self._notices: list[str] = []
        self._given = 0

    async def read(self) -> Snapshot | None:
        """Return the counters now; None, with a notice, if the server does not return them."""
        if not self.available:
            return None
        every = len(self.trees) > 1 or self.trees[0].composing
        try:
            # the empty name requests the statistics of all models at once
            return await self._control.statistics(ModelKey("") if every else self.trees[0].key)
        except TpxError as exc:
            self._add_notice(f"no server-side statistics for a while: {exc}")
            return None

    def between(self, before: Snapshot | None, after: Snapshot | None) -> ServerBreakdown | None:
        """Return the growth between two readings; None if one is missing or no model did anything."""
        if before is None or after is None:
            return None
        found = [b for tree in self.trees if (b := self._build_breakdown(tree, before, after)) is not None]
        if len(self.trees) == 1 or not found:
            return found[0] if found else None
        total: Mapping[str, Any] = {name: sum(getattr(b, name) for b in found) for name in _COUNTERS}
        return ServerBreakdown(model=", ".join(b.model for b in found), version="", **total)

    def _build_breakdown(self, tree: ModelTree, before: Snapshot, after: Snapshot) -> ServerBreakdown | None:
        key = self._find_used_version(tree.key, before, after)
        if key is None:
            return None
        parts = [self._build_breakdown(composing, before, after) for composing in tree.composing]
        grown: dict[str, Any] = {
            name: _compute_growth(after[key], before.get(key, {}), name) for name in _COUNTERS
        }
        return ServerBreakdown(
            model=key.name,
            version=key.version,
            response_cache=tree.response_cache,
            composing=tuple(p for p in parts if p is not None),
            **grown,
        )

    def _find_used_version(self, key: ModelKey, before: Snapshot, after: Snapshot) -> ModelKey | None:
        """Return the key of the version that was used: the given one, or the highest of the active ones."""
        if key.version:
            return key if key in after else None
        active = [
            k
            for k in after
            if k.name == key.name and _compute_growth(after[k], before.get(k, {}), "success_count") > 0
        ]
        if len(active) > 1:
            self._add_notice(
                f"several versions of model '{key.name}' were used during the measurement and -x names none: "
                "the server's figures are those of the highest"
            )
        return max(active, key=lambda k: (len(k.version), k.version), default=None)

    def take_notices(self) -> list[str]:
        """Return the notices since the last call, each only once."""
        fresh, self._given = self._notices[self._given :], len(self._notices)
        return fresh

    def _add_notice(self, text: str) -> None:
        if text not in self._notices:
            self._notices.append(text)


_COUNTERS = tuple(f.name for f in fields(ServerBreakdown) if f.name.endswith(("_count", "_ns")))


def _compute_growth(after: Mapping[str, int], before: Mapping[str, int], counter: str) -> int:
    """Return the growth of a counter. One that fell, because the model was reloaded, counts from zero."""
    start, end = before.get(counter, 0), after.get(counter, 0)
    return end - start if end >= start else end
