"""Models as they are found: in the repositories, fetched from elsewhere, or in what a request brings."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tpx.errors import InvalidRequest, UsageError
from tpx.serving.model_id import ModelId
from tpx.serving.repository import layout
from tpx.serving.repository.layout import ModelSource, Place
from tpx.serving.repository.overrides import MAX_NAME_BYTES, Override, OverrideFiles
from tpx.serving.repository.stamps import Stamps, stamps_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A model as it was found, and the files that were made for it."""

    source: ModelSource
    files: OverrideFiles | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The models of the repositories at one moment."""

    stamps: Mapping[ModelId, Stamps | None]
    """None for a model that cannot be told what it is."""
    duplicates: Mapping[ModelId, str]
    """Those that several repositories have, with the places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """The repositories of a server. A look at them takes its time: it is for threads.

    Every look raises UsageError for a repository that cannot be read.
    """

    paths: Sequence[Place]
    config_name: str = ""
    namespaces: bool = False
    """Whether a model is known by its repository, too."""

    def scan(self) -> dict[ModelId, ModelSource]:
        """All models."""
        found = layout.scan(self.paths, config_name=self.config_name, namespaces=self.namespaces)
        return {source.model_id: source for source in found}

    def scan_readable(self) -> tuple[dict[ModelId, ModelSource], list[str]]:
        """All models of the repositories that can be read, and why the others cannot."""
        with suppress(UsageError):
            return self.scan(), []
        readable, faults = [], []
        for path in self.paths:
            try:
                layout.scan([path], config_name=self.config_name)
                readable.append(path)
            except UsageError as exc:
                faults.append(exc.message)
        return replace(self, paths=readable).scan(), faults

    def look(self) -> Look:
        """All models, as polling compares them."""
        found = self.scan()
        return Look(
            stamps={model: None if source.fault else stamps_of(source) for model, source in found.items()},
            duplicates={model: source.fault for model, source in found.items() if source.duplicate},
        )

    def names(self) -> dict[ModelId, str]:
        """All models, each with the fault of not being unique, or ""."""
        return layout.names(self.paths, namespaces=self.namespaces)

    def named(self, names: Iterable[str]) -> list[ModelId]:
        """The models of these names; a repository that cannot be read is left out."""
        if not self.namespaces:
            return [ModelId(name) for name in names]
        return [model for name in names for model in layout.find_all(self.paths, name)]

    def sight(self, model: ModelId, override: Override | None = None) -> Sighting | None:
        """A model in the repositories, or in what a request brings. Raises InvalidRequest, LoadError."""
        if override is None or not override.files:
            source = layout.find(self.paths, model, config_name=self.config_name)
            if source is None:
                return None
            return fetched(replace(source, override=override.config) if override else source)
        _check_new_name(model.name)
        files = OverrideFiles(override.files)
        source = ModelSource(
            name=model.name,
            namespace=model.namespace,
            directory=files.directory,
            versions=layout.versions_in(files.directory),
            override=override.config,
        )
        return Sighting(source=source, files=files)


def fetched(source: ModelSource) -> Sighting:
    """A model on a disk of this machine, with the files that were made for that. Raises LoadError."""
    if source.origin is None or source.fault:
        return Sighting(source=source)
    files = OverrideFiles({}, source.origin.private_parent)
    try:
        return Sighting(source=source.fetched(files.directory), files=files)
    except BaseException:
        files.remove()
        raise


def check_name(name: str) -> None:
    """Raise InvalidRequest for a name that no model can have, lest it be taken for a path."""
    if not name.strip():
        raise InvalidRequest("Model name cannot be empty. Please enter a valid name to deploy.")
    if ".." in name or "/" in name:
        raise InvalidRequest(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )


def _check_new_name(name: str) -> None:
    """Raise InvalidRequest for a name that a model in a repository could not have."""
    if name.startswith(".") or not name.isprintable() or len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise InvalidRequest(
            f"invalid model name {name[:100]!r}, a model that comes with its files needs a name of at most "
            f"{MAX_NAME_BYTES} bytes, all of it printable, that does not begin with a dot"
        )
