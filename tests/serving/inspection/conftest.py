"""Few backends and features to look at, and a place for packages."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.serving.installed import install
from tpx.serving.backends.table import BACKENDS, KNOWN
from tpx.serving.inspection.isolated import FEATURES


class Site:
    """A directory that Python imports from, here and in child processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, source: str, *, name: str = "mine", package: str = "mine-backend") -> None:
        """Install a package with a backend `Mine`."""
        target = f"{package.replace('-', '_')}:Mine"
        install(self.directory, package, source, {BACKENDS.group: {name: target}})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.setattr(sys, "path", [str(directory), *sys.path])
    return Site(directory)


@contextmanager
def _only(backends: Sequence[str], features: Sequence[str]) -> Iterator[None]:
    """Let tpx have only these for a while; then all again, in the order that messages list."""
    tables = [cast("dict[str, Any]", table) for table in (KNOWN, FEATURES)]
    before = [(known, dict(known)) for known in tables]
    try:
        for known, kept in zip(tables, (backends, features), strict=True):
            for name in known.keys() - set(kept):
                del known[name]
        yield
    finally:
        for known, all_of_it in before:
            known.clear()
            known.update(all_of_it)


@pytest.fixture
def few() -> Iterator[None]:
    """Of what tpx has, one light backend and two features."""
    with _only(["onnxruntime"], ["gpu", "uvloop"]):
        yield


@pytest.fixture
def none() -> Iterator[None]:
    """Of what tpx has, only the feature that is always asked for."""
    with _only([], ["gpu"]):
        yield
