"""What the names in requests stand for: one model each, or several where repositories are namespaces."""

import asyncio
from collections import Counter
from collections.abc import Iterable

from tpx.serving.model_id import ModelId
from tpx.serving.repository.overrides import Override
from tpx.serving.repository.repository import AmbiguousName, ModelRepository
from tpx.serving.repository.sightings import Repositories


class Names:
    """Looks at what is known, and at what lies in the repositories where that is not all."""

    def __init__(self, repository: ModelRepository, repositories: Repositories) -> None:
        self._repository = repository
        self._repositories = repositories
        self._there: set[str] = set()

    async def on_disk(self, names: Iterable[str]) -> list[ModelId]:
        """The models of these names in the repositories."""
        if not self._repository.namespaces:
            return [ModelId(name) for name in names]
        return await asyncio.get_running_loop().run_in_executor(None, self._repositories.named, names)

    async def to_load(self, name: str, override: Override | None = None) -> list[ModelId]:
        """What a request to load a name means: all models that have it, or the one that its files are for.

        Raises AmbiguousName.
        """
        there = sorted(await self.on_disk([name]))
        if override is not None and override.files:
            there = sorted({*there, *self._repository.named(name)})
            if len(there) > 1:
                raise AmbiguousName(name, len(there))
        return there or [ModelId(name)]

    async def the_one_to_load(self, name: str) -> ModelId:
        """What a request to a model that is not loaded means. Raises AmbiguousName."""
        model, *others = await self.to_load(name)
        if others:
            raise AmbiguousName(name, 1 + len(others))
        return model

    async def to_unload(self, name: str) -> list[ModelId]:
        """What a request to unload a name means: all models that have it."""
        return sorted({*self._repository.all_named(name), *await self.on_disk([name])})

    def notice(self, found: Iterable[ModelId]) -> None:
        """Somebody has looked, and this is what there is."""
        self._there = {name for name, count in Counter(model.name for model in found).items() if count == 1}

    def notice_one(self, model: ModelId) -> None:
        """Somebody has looked for one, and it is there."""
        self._there.add(model.name)

    def is_there(self, name: str) -> bool:
        """Whether there was one model of this name in the repositories when somebody looked."""
        return name in self._there
