"""What is loaded: every known model, its versions and their states."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from tpx.errors import Code, InvalidRequest, NotFound, NotReady, TpxError
from tpx.serving.model import ServedModel
from tpx.serving.repository.layout import ModelSource, scan, wanted_versions
from tpx.serving.repository.loading import Loader

log = logging.getLogger(__name__)


class State(Enum):
    """States of a version, as the repository index names them."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(slots=True, kw_only=True)
class VersionEntry:
    """One version of a model; `version` 0 stands for a model none of whose versions could be named."""

    version: int
    state: State = State.LOADING
    reason: str = ""
    served: ServedModel | None = None


class ModelRepository:
    """Loads at start what the repositories hold; later answers who serves a name.

    `generation` counts changes of what is served: whoever remembers models compares it.
    """

    def __init__(self, loader: Loader, paths: Sequence[Path], *, load_threads: int) -> None:
        self.paths = paths
        self.generation = 0
        self._loader = loader
        self._load_threads = load_threads
        self._models: dict[str, dict[int, VersionEntry]] = {}

    async def load_all(self) -> None:
        """Load every model; a failure is kept as the state of its version."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(self._load_threads, thread_name_prefix="load") as pool:
            sources = scan(self.paths)
            await asyncio.gather(*(loop.run_in_executor(pool, self._load_model, s) for s in sources))
        self.generation += 1

    def _load_model(self, source: ModelSource) -> None:
        """Load the wanted versions of a model, in a loader thread; all of them or none."""
        entries = self._models[source.name] = {}
        try:
            config = self._loader.read_config(source)
            versions = wanted_versions(config, source.versions)
        except Exception as exc:  # noqa: BLE001 (one worker's loop: the other models load)
            entries[0] = VersionEntry(version=0, state=State.UNAVAILABLE, reason=_reason(exc))
            log.error("failed to load '%s': %s", source.name, _reason(exc))
            return
        for version in versions:
            entries[version] = VersionEntry(version=version)
        loaded = [self._load_version(source, entries[version], config) for version in versions]
        if all(loaded):
            log.info("successfully loaded '%s'", source.name)
            return
        for entry in entries.values():
            if entry.served is not None:
                entry.served.close()
                entry.served = None
                entry.state, entry.reason = State.UNAVAILABLE, "unloaded: another version failed to load"

    def _load_version(self, source: ModelSource, entry: VersionEntry, config: Any) -> bool:
        log.info("loading: %s:%d", source.name, entry.version)
        try:
            entry.served = self._loader.load(source, entry.version, config)
        except Exception as exc:  # noqa: BLE001 (one worker's loop: the other models load)
            entry.state, entry.reason = State.UNAVAILABLE, _reason(exc)
            log.error("failed to load '%s' version %d: %s", source.name, entry.version, entry.reason)
            return False
        entry.state = State.READY
        return True

    def get(self, name: str, version: str = "") -> ServedModel:
        """The model that serves `name`; an empty `version` is the latest that is ready.

        Raises NotFound, NotReady, and InvalidRequest for a version that is no positive number.
        """
        entries = self._models.get(name)
        if entries is None:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        if not version:
            served = max(
                (e.served for e in entries.values() if e.served is not None),
                key=lambda model: model.version,
                default=None,
            )
            if served is None:
                raise NotFound(f"Request for unknown model: '{name}' has no available versions")
            return served
        number = parse_version(version)
        entry = entries.get(number)
        if entry is None:
            raise NotFound(f"Request for unknown model: '{name}' version {number} is not found")
        if entry.served is None:
            raise NotReady(f"Request for unknown model: '{name}' version {number} is not at ready state")
        return entry.served

    def is_ready(self, name: str, version: str = "") -> bool:
        """Whether `get` would give a model. Raises InvalidRequest for a version that is no positive
        number."""
        try:
            self.get(name, version)
        except (NotFound, NotReady):
            return False
        return True

    def all_ready(self) -> bool:
        """Whether every known version is ready."""
        return all(e.state is State.READY for entries in self._models.values() for e in entries.values())

    def failures(self) -> list[str]:
        """Names of the models of which something is not ready."""
        return [
            name
            for name, entries in self._models.items()
            if any(entry.state is not State.READY for entry in entries.values())
        ]

    def served(self) -> list[ServedModel]:
        """Every version that is ready, by name and version."""
        return [
            entry.served
            for _, entries in sorted(self._models.items())
            for _, entry in sorted(entries.items())
            if entry.served is not None
        ]

    def index(self) -> list[tuple[str, VersionEntry]]:
        """Every known version, by name and version."""
        return [
            (name, entry)
            for name, entries in sorted(self._models.items())
            for _, entry in sorted(entries.items())
        ]

    def close(self) -> None:
        """End all instances; nothing may be in flight."""
        for _, entry in self.index():
            served, entry.served = entry.served, None
            if served is not None:
                served.retired = True
                served.close()
                entry.state, entry.reason = State.UNAVAILABLE, "unloaded"
                log.info("successfully unloaded '%s' version %d", served.name, served.version)


def parse_version(text: str) -> int:
    """A version from the text of a request. Raises InvalidRequest."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: not an integer), "
            "version should be an integral value > 0"
        )
    number = int(text) if len(text) <= 20 else 0
    if not 0 < number < 2**63:
        raise InvalidRequest(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number


def _reason(error: Exception) -> str:
    if not isinstance(error, TpxError):
        log.error("a defect while loading", exc_info=error)
        return f"{Code.INTERNAL.value}: {type(error).__name__}: {error}"
    name = error.code.value if error.code is not Code.UNKNOWN else Code.INTERNAL.value
    return f"{name}: {error.message}"
