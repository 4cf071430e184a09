"""What installed packages add under a name."""

import sys
from pathlib import Path

import pytest

from tests.serving.installed import install
from tpx.errors import LoadError
from tpx.serving.extensions import ExtensionKind, imported, make, names, offer_of, offers

GROUP = "tpx.tests"
THINGS = ExtensionKind(noun="thing", group=GROUP, known={}, needs=())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_group_that_nobody_adds_to_is_empty(site: Path) -> None:
    assert offers(GROUP) == []
    assert make(THINGS, "x") is None
    assert names(THINGS) == []


def test_an_offer_tells_its_package_and_imports_nothing(site: Path) -> None:
    install(site, "some-thing", "raise RuntimeError", {GROUP: {"x": "some_thing:X [extra]"}}, version="2.1")
    [offer] = offers(GROUP)
    assert (offer.name, offer.target, offer.package, offer.version) == (
        "x",
        "some_thing:X",
        "some-thing",
        "2.1",
    )
    assert offer.origin == "the package some-thing 2.1 (entry point some_thing:X)"


def test_two_packages_with_one_name_are_both_told(site: Path) -> None:
    install(site, "first", "X = 1", {GROUP: {"x": "first:X", "y": "first:X"}})
    install(site, "second", "X = 2", {GROUP: {"x": "second:X"}})
    with pytest.raises(LoadError) as caught:
        offer_of(THINGS, "x")
    assert caught.value.message == (
        "thing 'x' is added by the package first 1.0 (entry point first:X) and the package second 1.0 (entry "
        "point second:X): uninstall all but one of them"
    )
    assert offer_of(THINGS, "y") is not None


@pytest.mark.parametrize("damage", ["missing", "empty", "binary"])
def test_damaged_metadata_hides_no_entry_point(site: Path, damage: str) -> None:
    install(site, "odd", "X = 1", {GROUP: {"x": "odd:X"}})
    metadata = site / "odd-1.0.dist-info" / "METADATA"
    if damage == "missing":
        metadata.unlink()
    else:
        metadata.write_bytes(b"" if damage == "empty" else b"\xff\xfe\x00")
    [offer] = offers(GROUP)
    assert (offer.name, offer.target) == ("x", "odd:X")


@pytest.mark.parametrize(
    ("source", "target", "cause"),
    [
        ("", "nowhere_at_all:X", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("", "attributes:X", "AttributeError: module 'attributes' has no attribute 'X'"),
        ("import libcublas_12", "attributes:X", "ModuleNotFoundError: No module named 'libcublas_12'"),
        ("raise SystemExit(3)", "attributes:X", "SystemExit: 3"),
        ("def (", "attributes:X", "SyntaxError: invalid syntax (attributes.py, line 1)"),
        ("", ":X", "ValueError: Empty module name"),
    ],
)
def test_whatever_an_import_raises_is_told(
    site: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str, cause: str
) -> None:
    monkeypatch.delitem(sys.modules, "attributes", raising=False)
    (site / "attributes.py").write_text(source)
    with pytest.raises(LoadError) as caught:
        imported(target)
    assert caught.value.message == cause
