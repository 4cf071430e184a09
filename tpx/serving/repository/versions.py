"""Making versions in threads, while the event loop serves: loading them, and giving them other instances."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from tpx.serving.model import ServedModel
from tpx.serving.repository.loading import Loader, Regroup, Wanted, reason_of
from tpx.serving.repository.room import Room
from tpx.serving.repository.settings import ControlSettings
from tpx.serving.repository.stamps import size_of
from tpx.serving.repository.threads import LoadThreads
from tpx.serving.served import Served

log = logging.getLogger(__name__)

T = TypeVar("T")


class Versions:
    """Makes versions, several at a time; what goes wrong with one is its outcome."""

    def __init__(
        self, loader: Loader, settings: ControlSettings, room: Room | None, stopping: asyncio.Event
    ) -> None:
        self._loader = loader
        self._retries = settings.load_retries
        self._threads = LoadThreads(settings.load_threads)
        self._room = room
        self._stopping = stopping

    def shutdown(self) -> None:
        """Nothing is being made any more."""
        self._threads.shutdown()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What else a load takes long for is done by the threads of loads, too."""
        return await self._threads.run(work)

    @contextmanager
    def asked_by_model(self) -> Iterator[None]:
        """Within this a model waits that may itself be being loaded, in one of the threads."""
        with self._threads.one_more(), self._room.one_more() if self._room is not None else nullcontext():
            yield

    async def load(self, wanted: Wanted, versions: Sequence[int]) -> dict[int, Served | BaseException]:
        """Load versions, under the limit of memory if there is one."""

        async def load() -> dict[int, Served | BaseException]:
            return await self._all({version: self._loading(wanted, version) for version in versions})

        if self._room is None or not versions:
            return await load()
        source = wanted.source
        sizes = await asyncio.get_running_loop().run_in_executor(
            None, lambda: {version: size_of(source, version) for version in versions}
        )
        return await self._room.load(source.model_id, wanted.recipes, sizes, load)

    def may_regroup(self, served: Served, config: Any) -> bool:
        """Whether a version can change its instances as it serves; under a limit of memory, what it holds is
        measured when it is loaded."""
        return self._room is None and isinstance(served, ServedModel) and served.may_regroup(config)

    async def regroup(
        self, wanted: Wanted, serving: Mapping[int, Served]
    ) -> dict[int, Regroup | BaseException]:
        """Make the instances that versions lack; those serve on as they are."""
        return await self._all(
            {
                version: self._regrouping(wanted, served)
                for version, served in serving.items()
                if isinstance(served, ServedModel)
            }
        )

    async def _all(self, work: Mapping[int, Callable[[], T]]) -> dict[int, T | BaseException]:
        outcomes = await asyncio.gather(*map(self._attempt, work.values()), return_exceptions=True)
        return dict(zip(work, outcomes, strict=True))

    async def _attempt(self, work: Callable[[], T]) -> T:
        retries = self._retries
        while True:
            try:
                return await self.in_thread(work)
            except Exception:
                if not retries or self._stopping.is_set():
                    raise
                retries -= 1

    def _loading(self, wanted: Wanted, version: int) -> Callable[[], Served]:
        def load() -> Served:
            model = wanted.source.model_id
            log.info("loading: %s:%d", model, version)
            try:
                return self._loader.load(wanted.source, version, wanted.config)
            except Exception as exc:
                log.error("failed to load '%s' version %d: %s", model, version, reason_of(exc))
                raise

        return load

    def _regrouping(self, wanted: Wanted, served: ServedModel) -> Callable[[], Regroup]:
        def regroup() -> Regroup:
            model, version = wanted.source.model_id, served.version
            log.info("changing the instances of: %s:%d", model, version)
            try:
                return self._loader.regroup(served, wanted.source, wanted.config)
            except Exception as exc:
                why = reason_of(exc)
                log.error("failed to change the instances of '%s' version %d: %s", model, version, why)
                raise

        return regroup
