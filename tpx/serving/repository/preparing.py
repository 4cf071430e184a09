"""A model as its repository agents leave it: other files than those in the repository, or the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tpx.serving.repository.agents.custody import Custody
from tpx.serving.repository.decisions import Recipe
from tpx.serving.repository.layout import ModelSource, versions_in
from tpx.serving.repository.stamps import Stamps


def prepare(source: ModelSource, written: Any, custody: Custody, agent_directory: Path) -> ModelSource:
    """Have the agents of the ModelConfig `written` prepare a model; they see all of its files.

    Where they have made other files without a configuration, the one written is theirs, too. Raises
    LoadError.
    """
    parent = None
    if source.origin is not None:
        parent = source.origin.private_parent
        for version in source.versions:
            source.origin.fetch_version(source.directory, version)
    place = custody.load(written, source.directory, agent_directory, parent)
    if place == source.directory:
        return replace(source, origin=None)
    moved = replace(source, origin=None, directory=place, versions=versions_in(place))
    return moved if moved.has_config else replace(moved, override=written)


def recipe_of(source: ModelSource, written: Any, stamps: Stamps) -> Recipe:
    """What all versions of a model with agents are made from: everything that the agents have seen."""
    files = (f"{version} {stamp}" for version, stamp in sorted(stamps.versions.items()))
    return Recipe(
        config=written.SerializeToString(deterministic=True),
        groups=b"",
        directory=source.place if source.origin is not None else str(source.directory),
        shared=stamps.shared,
        files="\n".join(files),
    )
