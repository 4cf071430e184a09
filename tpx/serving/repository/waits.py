"""Which models wait for others while they are being loaded, and whether one would wait for itself."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tpx.serving.model_id import ModelId
from tpx.serving.repository.dependencies import plan_order


class Waits:
    """Ensembles wait for what they are made of, other models for what they load themselves."""

    def __init__(self) -> None:
        self._waits: list[tuple[ModelId, Collection[ModelId]]] = []

    def are_for(self, model: ModelId) -> bool:
        """Whether somebody waits for a model."""
        return any(model in others for _, others in self._waits)

    @contextmanager
    def begin(self, model: ModelId, others: Collection[ModelId]) -> Iterator[str]:
        """Within this `model` waits for others. Gives the circle that this closes, "" if it closes none: who
        waits in one does so for ever."""
        wait = model, others
        self._waits.append(wait)
        try:
            yield plan_order(self._requirements()).circular.get(model, "")
        finally:
            self._waits.remove(wait)

    def _requirements(self) -> dict[ModelId, set[ModelId]]:
        requires: dict[ModelId, set[ModelId]] = {}
        for model, others in self._waits:
            requires.setdefault(model, set()).update(others)
        return requires
