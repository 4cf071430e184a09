"""Who may change a model, and when: one after the other, and in a round of loads each model once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tpx.serving.model_id import ModelId


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    takers: int = 0


class Turns:
    """A lock for each model that somebody changes."""

    def __init__(self) -> None:
        self._turns: dict[ModelId, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, model: ModelId) -> bool:
        return model in self._turns

    @asynccontextmanager
    async def take(self, model: ModelId) -> AsyncIterator[None]:
        """Alone with a model: who else wants to change it waits."""
        turn = self._turns.setdefault(model, _Turn())
        turn.takers += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.takers -= 1
            if not turn.takers:
                del self._turns[model]


class Round:
    """Loads that belong together: each model once, and each before the ensembles that are made of it."""

    def __init__(self, load: "Callable[[ModelId, Round], Coroutine[Any, Any, None]]") -> None:
        """`load` raises nothing that is to be told."""
        self._load = load
        self._loads: dict[ModelId, asyncio.Task[None]] = {}

    async def load(self, models: Collection[ModelId]) -> None:
        """Load these, but for those that the round has begun, and wait for all of them."""
        for model in models:
            if model not in self._loads:
                self._loads[model] = asyncio.get_running_loop().create_task(self._load(model, self))
        await asyncio.gather(*(self._loads[model] for model in models))
