"""Loads under a limit of memory: what models hold, and which of them go to make room for another.

What a model holds is what the process, with its children, has grown by while it was loaded, and at least as
much as its files; loads follow one another, so that what one grows by is not another's. A model that loads
others while it is being loaded lets them pass, and what they hold is not counted as its own. The memory that
requests need while they are computed is not counted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from tpx.errors import Code, LoadError
from tpx.serving.heap import give_memory_back
from tpx.serving.model_id import ModelId
from tpx.serving.repository.admission import Admission
from tpx.serving.repository.decisions import Recipe
from tpx.serving.repository.records import State
from tpx.serving.repository.repository import ModelRepository
from tpx.serving.repository.retirement import Retirement
from tpx.serving.served import Served

log = logging.getLogger(__name__)

T = TypeVar("T")
Outcomes = dict[int, Served | BaseException]

_IDLE_WITHIN_S = 1.0
"""Models in use may be idle in a moment: for so long a load waits for them."""
_LOOK_EVERY_S = 0.01
_CLOSED_WITHIN_S = 30.0
_MOST_MEASURED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that could go: what it holds, when it was last used, and the ensembles that go with it."""

    model: ModelId
    size_bytes: int
    used_ns: int
    with_it: tuple[ModelId, ...] = ()


def plan_eviction(candidates: Collection[Candidate], needed_bytes: int) -> list[Candidate] | None:
    """The least recently used that hold as much; None if all of them do not."""
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.used_ns):
        if needed_bytes <= 0:
            break
        if candidate.size_bytes > 0:
            chosen.append(candidate)
            needed_bytes -= candidate.size_bytes
    return chosen if needed_bytes <= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """What a room asks of model control."""

    repository: ModelRepository
    retirement: Retirement
    held: Callable[[ModelId], bool]
    """Whether a model must stay: somebody changes it, or waits for it."""
    evict: Callable[[ModelId], None]
    """Unload a model, which closes once it has answered what it took."""


class Room:
    """Keeps what models hold under a limit."""

    def __init__(self, limit_bytes: int, tenancy: Tenancy, resident: Callable[[], int]) -> None:
        self.limit_bytes = limit_bytes
        self._tenancy = tenancy
        self._resident = resident
        self._admission = Admission(1)
        self._sizes: dict[Served, int] = {}
        self._since: dict[Served, int] = {}
        self._measured: dict[Recipe, int] = {}
        self._attributed_bytes = 0  # since the beginning, whether those models are still there or not
        self.refused: set[ModelId] = set()
        """Models that were not loaded for want of room alone."""

    @property
    def used_bytes(self) -> int:
        """What the models hold that serve, or still answer."""
        here = {*self._tenancy.repository.served(), *self._tenancy.retirement.draining}
        self._sizes = {served: size for served, size in self._sizes.items() if served in here}
        self._since = {served: since for served, since in self._since.items() if served in here}
        return sum(self._sizes.values())

    async def load(
        self,
        model: ModelId,
        recipes: Mapping[int, Recipe],
        files_bytes: Mapping[int, int],
        load: Callable[[], Coroutine[Any, Any, Outcomes]],
    ) -> Outcomes:
        """Load versions of a model once there is room; those that do not fit are LoadErrors.

        `files_bytes`: of each version to load.
        """
        async with self._admission:
            self.refused.discard(model)
            expected = sum(max(self._measured.get(recipes[v], 0), size) for v, size in files_bytes.items())
            if not await self._make_room(model, expected):
                return self._refusal(model, files_bytes, expected)
            before = await self._unattributed()
            outcomes = await load()
            grown = await self._unattributed() - before
            sizes = _shares(files_bytes, grown)
            loaded = {v: served for v, served in outcomes.items() if not isinstance(served, BaseException)}
            for version in loaded:
                self._remember(recipes[version], sizes[version])
            held = sum(sizes[version] for version in loaded)
            if held > expected and not await self._make_room(model, held):
                refusal = self._refusal(model, outcomes, held)
                await asyncio.gather(*(_in_thread(served.close) for served in loaded.values()))
                await _in_thread(give_memory_back)
                return refusal
            for version, served in loaded.items():
                self._sizes[served], self._since[served] = sizes[version], time.perf_counter_ns()
            self._attributed_bytes += held
            return outcomes

    def one_more(self) -> AbstractContextManager[None]:
        """Meanwhile the model that is being loaded may do nothing but wait for whoever is within this."""
        return self._admission.one_more()

    async def _unattributed(self) -> int:
        """What the process uses, less what models that were loaded have been found to hold."""
        return await _in_thread(self._resident) - self._attributed_bytes

    def _remember(self, recipe: Recipe, size_bytes: int) -> None:
        self._measured.pop(recipe, None)
        self._measured[recipe] = size_bytes
        if len(self._measured) > _MOST_MEASURED:
            del self._measured[next(iter(self._measured))]

    def _refusal(self, model: ModelId, versions: Iterable[int], needed_bytes: int) -> Outcomes:
        self.refused.add(model)
        error = LoadError(
            f"model '{model}' needs {needed_bytes:,} bytes, and of --model-memory-limit={self.limit_bytes} "
            f"{max(0, self.limit_bytes - self.used_bytes):,} are free; no other models that are idle hold "
            "what is missing: raise the limit, or unload models",
            code=Code.RESOURCE_EXHAUSTED,
        )
        log.error("no room: %s", error.message)
        return dict.fromkeys(versions, error)

    async def _make_room(self, model: ModelId, needed_bytes: int) -> bool:
        """Have models go until as much is free; nothing is unloaded if that would not be enough."""
        if needed_bytes > self.limit_bytes:
            return False
        ends_ns = time.perf_counter_ns() + int(_IDLE_WITHIN_S * 1e9)
        while True:
            missing = self.used_bytes + needed_bytes - self.limit_bytes
            if missing <= 0:
                return True
            chosen = plan_eviction(self._candidates(model), missing)
            if chosen is not None:
                await self._evict(chosen, model)
            elif time.perf_counter_ns() > ends_ns or missing > self.used_bytes:
                return False
            else:
                await asyncio.sleep(_LOOK_EVERY_S)

    def _candidates(self, model: ModelId) -> list[Candidate]:
        """Models that nobody uses now, but for the one that room is made for."""
        serving: dict[ModelId, list[Served]] = {}
        for served in self._tenancy.repository.served():
            serving.setdefault(served.model_id, []).append(served)
        idle = {
            each
            for each, versions in serving.items()
            if each != model and not any(one.engaged for one in versions) and not self._tenancy.held(each)
        }
        out = []
        for each in idle:
            above = {
                other for other, versions in serving.items() if any(each in v.composed_of for v in versions)
            }
            if above <= idle:
                versions = serving[each]
                out.append(
                    Candidate(
                        model=each,
                        size_bytes=sum(self._sizes.get(one, 0) for one in versions),
                        used_ns=max(self._used_ns(one) for one in versions),
                        with_it=tuple(sorted(above)),
                    )
                )
        return out

    def _used_ns(self, served: Served) -> int:
        return max(served.statistics.last_used_ns, self._since.get(served, 0))

    async def _evict(self, chosen: Sequence[Candidate], model: ModelId) -> None:
        now_ns = time.perf_counter_ns()
        for candidate in chosen:
            log.info(
                "'%s' makes room for '%s': %d bytes, used %.1f s ago",
                candidate.model,
                model,
                candidate.size_bytes,
                (now_ns - candidate.used_ns) / 1e9,
            )
            for each in (*candidate.with_it, candidate.model):
                self._tenancy.evict(each)
        await self._closed({candidate.model for candidate in chosen})
        await _in_thread(give_memory_back)

    async def _closed(self, models: Collection[ModelId]) -> None:
        """Wait until models that were unloaded have given back what they held."""
        for _ in range(int(_CLOSED_WITHIN_S / _LOOK_EVERY_S)):
            entries = [entry for each in models for entry in self._tenancy.repository.entries(each)]
            if not any(entry.state is State.UNLOADING for entry in entries):
                return
            await asyncio.sleep(_LOOK_EVERY_S)


def _shares(files_bytes: Mapping[int, int], grown_bytes: int) -> dict[int, int]:
    """What each version holds of what the process has grown by, and at least its files."""
    total = sum(files_bytes.values())
    return {
        version: max(size, grown_bytes * size // total if total else grown_bytes // len(files_bytes))
        for version, size in files_bytes.items()
    }


def resident_bytes() -> int:
    """The memory of this process and its children that is in use now."""
    import psutil  # late: only a limit needs it

    process = psutil.Process()
    total: int = process.memory_info().rss
    for child in process.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.Error:
            continue
    return total


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
