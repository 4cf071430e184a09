"""Repositories at places, as the server opens them."""

from collections.abc import Iterable
from pathlib import Path

from tpx.serving.repository.discovery import Repositories
from tpx.serving.repository.layout import LocalRepository, ModelSource, Repository


def opened(places: Iterable[Path | Repository]) -> list[Repository]:
    """Repositories at these places."""
    return [LocalRepository(place) if isinstance(place, Path) else place for place in places]


def repositories(*places: Path | Repository, config_name: str = "", namespaces: bool = False) -> Repositories:
    """All of them, as one."""
    return Repositories(repositories=opened(places), config_name=config_name, namespaces=namespaces)


def scan(places: Iterable[Path | Repository], *, namespaces: bool = False) -> list[ModelSource]:
    """Every model in them."""
    return list(repositories(*places, namespaces=namespaces).scan().values())
