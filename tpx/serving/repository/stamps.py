"""Whether the files of a model have changed since they were last looked at."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpx.serving.repository.layout import ModelSource, Origin

_CONFIGS = "configs"
_NOT_A_MODELS_OWN = "__pycache__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """Digests of names, sizes, inodes and times: equal as long as nobody has touched a file."""

    config: str
    shared: str
    """What all versions have in common: labels, warm-up data and whatever else lies beside them."""
    versions: Mapping[int, str]


def stamps_of(source: ModelSource) -> Stamps:
    """The stamps of a model; a file that is not there has one, too."""
    if source.origin is not None:
        return _stamps_elsewhere(source, source.origin)
    if source.file is not None:
        return Stamps(config="", shared="", versions={1: _digest([source.file])})
    # of the directories that look like a version, those that are none count as shared
    apart = {str(version) for version in source.versions} | {_CONFIGS, "config.pbtxt"}
    entries = sorted(source.directory.iterdir()) if source.directory.is_dir() else []
    return Stamps(
        config=_digest([source.config_path]),
        shared=_digest([entry for entry in entries if entry.name not in apart and _counts(entry.name)]),
        versions={version: _digest([path]) for version, path in source.versions.items()},
    )


def size_of(source: ModelSource, version: int) -> int:
    """Bytes of the files of a version."""
    if source.origin is not None:
        return source.origin.size_bytes(version)
    total = 0
    for place in _below(source.file or source.versions[version]):
        with suppress(OSError):  # gone while we looked, or a dangling link
            total += os.stat(place).st_size  # noqa: PTH116
    return total


def _stamps_elsewhere(source: ModelSource, origin: Origin) -> Stamps:
    chosen = f"configs/{source.config_name}.pbtxt"
    return Stamps(
        config=origin.stamp(chosen if source.config_name and origin.has(chosen) else "config.pbtxt"),
        shared=origin.stamp(""),
        versions={version: origin.stamp(str(version)) for version in source.versions},
    )


def _counts(name: str) -> bool:
    """Whether a name is the model's: what loading itself leaves there must not look like a change."""
    return not name.startswith(".") and name != _NOT_A_MODELS_OWN


def _digest(paths: list[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        for place in _below(path):
            try:
                found = os.stat(place)  # noqa: PTH116 (a string: thousands of files need no thousand Paths)
            except OSError:
                continue  # gone while we looked, or a dangling link
            fact = f"{place}\0{found.st_mtime_ns}\0{found.st_size}\0{found.st_ino}\0"
            digest.update(os.fsencode(fact))
    return digest.hexdigest()


def _below(path: Path) -> Iterator[str]:
    """A file, or all files of a directory, in a fixed order; loops of links are left out."""
    if not path.is_dir():
        yield str(path)
        return
    visited = set()
    for directory, subdirectories, files in os.walk(path, followlinks=True):
        at = os.stat(directory)  # noqa: PTH116
        if (at.st_dev, at.st_ino) in visited:
            subdirectories.clear()
            continue
        visited.add((at.st_dev, at.st_ino))
        subdirectories[:] = sorted(name for name in subdirectories if _counts(name))
        yield from (f"{directory}/{name}" for name in sorted(files) if _counts(name))
