"""Few backends and features to look at, and a place for packages."""

import sys
from collections.abc import Sequence
from pathlib import Path

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


def _only(monkeypatch: pytest.MonkeyPatch, backends: Sequence[str], features: Sequence[str]) -> None:
    for known, kept in ((KNOWN, backends), (FEATURES, features)):
        for name in [each for each in known if each not in kept]:
            monkeypatch.delitem(known, name)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what tpx has, one light backend and two features."""
    _only(monkeypatch, ["onnxruntime"], ["gpu", "uvloop"])


@pytest.fixture
def none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what tpx has, only the feature that is always asked for."""
    _only(monkeypatch, [], ["gpu"])
