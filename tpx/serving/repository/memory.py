"""Memory of models: with a limit, idle models make room for others.

With a limit, the size of a model is the growth of the process and its children during the load, but at
least the size of its files. Loads run one at a time, so that growth can be attributed to one model. A
model that loads others during its own load lets them in; their memory is not counted as its own. Memory
that requests use while they compute is not counted.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from tpx.errors import Code, LoadError
from tpx.serving.heap import give_memory_back
from tpx.serving.model_id import ModelId
from tpx.serving.repository.ensembles import Ensembles
from tpx.serving.repository.in_use import ModelsInUse
from tpx.serving.repository.records import Fingerprint, VersionState
from tpx.serving.repository.retirement import Retirement
from tpx.serving.repository.table import ModelRepository
from tpx.serving.served import Served

log = logging.getLogger(__name__)

Outcomes = dict[int, Served | BaseException]

_LOOK_EVERY_S = 0.01
_IDLE_WITHIN_S = 1.0
"""Time a load waits for busy models to become idle."""
_CLOSED_WITHIN_S = 30.0
_MOST_MEASURED = 10_000


class Permits(asyncio.Semaphore):
    """Semaphore that admits `count` loads in FIFO order, plus one for each load that waits for another."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._owed = 0

    def release(self) -> None:
        """Admit the next load, unless this permit was lent and is in use twice."""
        if self._owed:
            self._owed -= 1
        else:
            super().release()

    @asynccontextmanager
    async def one_more(self) -> AsyncIterator[None]:
        """Lend the permit of an admitted load, which only waits for the caller, to another load."""
        self.release()
        try:
            yield
        finally:
            # taking it back must not wait: the borrower may be waiting for this load
            if self.locked():
                self._owed += 1
            else:
                await self.acquire()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model that could be unloaded, and the ensembles that depend on it."""

    model: ModelId
    size_bytes: int
    used_ns: int
    dependents: tuple[ModelId, ...] = ()


def plan_eviction(candidates: Collection[Candidate], needed_bytes: int) -> list[Candidate] | None:
    """Return the least recently used models that together hold this much; None if all of them hold less."""
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: c.used_ns):
        if needed_bytes <= 0:
            break
        if candidate.size_bytes > 0:
            chosen.append(candidate)
            needed_bytes -= candidate.size_bytes
    return chosen if needed_bytes <= 0 else None


@dataclass(eq=False)
class ModelMemory:
    """Keeps the memory of models within a limit; a limit of 0 admits every load at once."""

    limit_bytes: int
    _resident: Callable[[], int]
    _repository: ModelRepository
    _retirement: Retirement
    _ensembles: Ensembles
    _in_use: ModelsInUse

    def __post_init__(self) -> None:
        self.permits = Permits(1)
        self._sizes: dict[Served, tuple[int, int]] = {}
        """Size in bytes and time of the load, by version."""
        self._measured: dict[Fingerprint, int] = {}
        self._attributed_bytes = 0
        """Total measured over all loads so far, including models that are gone."""
        self.refused: set[ModelId] = set()
        """Models that were not loaded only because memory was insufficient."""

    @property
    def used_bytes(self) -> int:
        """Bytes held by the models that serve or still drain."""
        loaded = {*self._repository.served(), *self._retirement.draining}
        self._sizes = {served: size for served, size in self._sizes.items() if served in loaded}
        return sum(size for size, _ in self._sizes.values())

    async def load(
        self,
        model: ModelId,
        fingerprints: Mapping[int, Fingerprint],
        size_of: Callable[[int], int],
        load: Callable[[], Coroutine[object, object, Outcomes]],
    ) -> Outcomes:
        """Load the versions of `fingerprints` once there is room; those that do not fit become LoadErrors.

        `size_of` returns the file size of a version in bytes; it blocks.
        """
        if not self.limit_bytes or not fingerprints:
            return await load()
        files_bytes = await asyncio.to_thread(lambda: {version: size_of(version) for version in fingerprints})
        async with self.permits:  # one at a time, so that growth belongs to this model
            self.refused.discard(model)
            expected = sum(
                max(self._measured.get(fingerprints[v], 0), size) for v, size in files_bytes.items()
            )
            if not await self._make_room(model, expected):
                return self._refuse_load(model, fingerprints, expected)
            before = await self._measure_unattributed()
            outcomes = await load()
            sizes = _split_growth(files_bytes, await self._measure_unattributed() - before)
            loaded = {v: served for v, served in outcomes.items() if not isinstance(served, BaseException)}
            for version in loaded:
                self._measured.pop(fingerprints[version], None)
                self._measured[fingerprints[version]] = sizes[version]
                if len(self._measured) > _MOST_MEASURED:
                    del self._measured[next(iter(self._measured))]
            held = sum(sizes[version] for version in loaded)
            # if it turned out larger than expected, unload others, or else this model again
            if held > expected and not await self._make_room(model, held):
                refusal = self._refuse_load(model, outcomes, held)
                await asyncio.gather(*(asyncio.to_thread(served.close) for served in loaded.values()))
                await asyncio.to_thread(give_memory_back)
                return refusal
            for version, served in loaded.items():
                self._sizes[served] = sizes[version], time.perf_counter_ns()
            self._attributed_bytes += held
            return outcomes

    async def _measure_unattributed(self) -> int:
        """Return the memory of the process beyond what was measured for models."""
        return await asyncio.to_thread(self._resident) - self._attributed_bytes

    def _refuse_load(self, model: ModelId, versions: Iterable[int], needed_bytes: int) -> Outcomes:
        self.refused.add(model)
        error = LoadError(
            f"model '{model}' needs {needed_bytes:,} bytes, and of --model-memory-limit={self.limit_bytes} "
            f"{max(0, self.limit_bytes - self.used_bytes):,} are free; unloading idle models would not "
            "free enough: raise the limit, or unload models",
            code=Code.RESOURCE_EXHAUSTED,
        )
        log.error("no room: %s", error.message)
        return dict.fromkeys(versions, error)

    async def _make_room(self, model: ModelId, needed_bytes: int) -> bool:
        """Unload idle models until this much is free. Unload none if that would not be enough."""
        if needed_bytes > self.limit_bytes:
            return False
        ends_ns = time.perf_counter_ns() + int(_IDLE_WITHIN_S * 1e9)
        while True:
            missing = self.used_bytes + needed_bytes - self.limit_bytes
            if missing <= 0:
                return True
            chosen = plan_eviction(self._find_candidates(model), missing)
            if chosen is not None:
                await self._unload_candidates(chosen, model)
            elif time.perf_counter_ns() > ends_ns or missing > self.used_bytes:
                return False
            else:
                await asyncio.sleep(_LOOK_EVERY_S)

    def _find_candidates(self, model: ModelId) -> list[Candidate]:
        """Return the models that are idle now, except the one that needs room."""
        serving: dict[ModelId, list[Served]] = {}
        for served in self._repository.served():
            serving.setdefault(served.model_id, []).append(served)
        idle = {
            each
            for each, versions in serving.items()
            if each != model and not any(one.busy for one in versions) and not self._in_use.holds(each)
        }
        out = []
        for each in idle:
            above = {
                other for other, versions in serving.items() if any(each in v.composed_of for v in versions)
            }
            if above <= idle:  # a busy ensemble keeps its parts loaded
                held = [(one, *self._sizes.get(one, (0, 0))) for one in serving[each]]
                size_bytes = sum(size for _, size, _ in held)
                used_ns = max(max(one.statistics.last_used_ns, since) for one, _, since in held)
                dependents = tuple(sorted(above))
                out.append(
                    Candidate(model=each, size_bytes=size_bytes, used_ns=used_ns, dependents=dependents)
                )
        return out

    async def _unload_candidates(self, chosen: Collection[Candidate], model: ModelId) -> None:
        """Unload models, and wait until they are closed and their memory is freed."""
        now_ns = time.perf_counter_ns()
        for candidate in chosen:
            log.info(
                "unloading '%s' to make room for '%s': %d bytes, last used %.1f s ago",
                candidate.model,
                model,
                candidate.size_bytes,
                (now_ns - candidate.used_ns) / 1e9,
            )
            for each in (*candidate.dependents, candidate.model):
                self._ensembles.unload(each)
        for _ in range(int(_CLOSED_WITHIN_S / _LOOK_EVERY_S)):
            records = [self._repository.record(candidate.model) for candidate in chosen]
            if not any(e.state is VersionState.UNLOADING for record in records for e in record.entries):
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        await asyncio.to_thread(give_memory_back)


def _split_growth(files_bytes: Mapping[int, int], grown_bytes: int) -> dict[int, int]:
    """Split the growth of the process among versions by file size; at least the file size each."""
    total = sum(files_bytes.values())
    return {
        version: max(size, grown_bytes * size // total if total else grown_bytes // len(files_bytes))
        for version, size in files_bytes.items()
    }
