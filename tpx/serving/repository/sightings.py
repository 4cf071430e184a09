"""Models as they are found: in the repositories, fetched from elsewhere, or in what a request brings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpx.errors import InvalidRequest
from tpx.serving.repository import layout
from tpx.serving.repository.layout import ModelSource, Place
from tpx.serving.repository.overrides import Override, OverrideFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A model as it was found, and the files that were made for it."""

    source: ModelSource
    files: OverrideFiles | None = None


def sight(paths: Sequence[Place], config_name: str, name: str, override: Override | None) -> Sighting | None:
    """A model in the repositories, or in what a request brings.

    Raises InvalidRequest, LoadError, and UsageError for a repository that cannot be read.
    """
    if override is None or not override.files:
        source = layout.find(paths, name, config_name=config_name)
        if source is None:
            return None
        return fetched(replace(source, override=override.config) if override else source)
    files = OverrideFiles(override.files)
    versions = layout.versions_in(files.directory)
    source = ModelSource(name=name, directory=files.directory, versions=versions, override=override.config)
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
