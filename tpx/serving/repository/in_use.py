"""Models in use besides serving: being loaded or unloaded, or waited for by a load or a request."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

from tpx.errors import InvalidRequest
from tpx.serving.model_id import ModelId
from tpx.serving.repository.ensembles import plan_order

log = logging.getLogger(__name__)


class ModelsInUse:
    """Serializes loads and unloads of each model, and knows who waits for which."""

    def __init__(self) -> None:
        self.awaited: Counter[str] = Counter()
        """Requests that wait for a model or are about to be submitted to it, by name."""
        self._locks: dict[ModelId, asyncio.Lock] = {}
        self._lock_users: Counter[ModelId] = Counter()
        self._dependencies: list[tuple[ModelId, Collection[ModelId]]] = []
        """Models whose load waits for other models."""

    @property
    def busy(self) -> int:
        """Number of models being loaded or unloaded."""
        return len(self._locks)

    def holds(self, model: ModelId) -> bool:
        """Return True if a model is being loaded or unloaded, or if a load or a request waits for it."""
        waits = self.awaited[model.name] > 0 or any(model in others for _, others in self._dependencies)
        return waits or model in self._locks

    @asynccontextmanager
    async def exclusive(self, model: ModelId) -> AsyncIterator[None]:
        """Hold the lock of a model, which serializes its loads and unloads in FIFO order. A lock exists
        only while in use, so that `busy` counts locks.
        """
        lock = self._locks.setdefault(model, asyncio.Lock())
        self._lock_users[model] += 1
        try:
            async with lock:
                yield
        finally:
            self._lock_users[model] -= 1
            if not self._lock_users[model]:
                del self._lock_users[model], self._locks[model]

    @contextmanager
    def depending(self, model: ModelId, others: Collection[ModelId]) -> Iterator[str]:
        """Record that the load of `model` waits for others. Yields the dependency cycle this would
        create, or "": waiting in a cycle would deadlock.
        """
        dependency = model, others
        self._dependencies.append(dependency)
        try:
            requires: dict[ModelId, set[ModelId]] = {}
            for waiting, needed in self._dependencies:
                requires.setdefault(waiting, set()).update(needed)
            yield plan_order(requires).circular.get(model, "")
        finally:
            self._dependencies.remove(dependency)

    @contextmanager
    def called_by(self, caller: ModelId | None, model: ModelId) -> Iterator[None]:
        """Record that the load of `caller`, if any, waits for a model. Raises InvalidRequest for a cycle."""
        if caller is None:
            yield
            return
        with self.depending(caller, [model]) as circle:
            if circle:
                fault = (
                    f"'{caller}' waits for itself while it is being loaded: {circle}; "
                    "load or unload one of them elsewhere than in its initialize"
                )
                log.error("failed to load or unload '%s': %s", model, fault)
                raise InvalidRequest(fault)
            yield

    @contextmanager
    def awaiting(self, name: str) -> Iterator[None]:
        """Record that a request waits for a model."""
        self.awaited[name] += 1
        try:
            yield
        finally:
            self.awaited[name] -= 1
            if not self.awaited[name]:
                del self.awaited[name]
