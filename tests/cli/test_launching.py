import asyncio
from pathlib import Path
from typing import Any

import pytest

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import check_options
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.results.journal import Journal
from tpx.cli.analyze_options import journal_of
from tpx.cli.launching import open_search
from tpx.errors import UsageError
from tpx.options import build


def spec_in(directory: Path, export_path: Path, **options: Any) -> ProfileSpec:
    (directory / "models" / "net").mkdir(parents=True, exist_ok=True)
    values = {"profile_models": (ModelToProfile(name="net"),), "model_repository": directory / "models"}
    return build(ProfileSpec, {**values, "export_path": export_path, **options})


def leave_run(spec: ProfileSpec) -> dict[str, str]:
    """Write the files of a run; return their contents by path in the export path."""
    variant = spec.configurations_path / "net_config_0" / "config.pbtxt"
    for path in (*spec.output.files[:-2], spec.output.files[-2] / "net" / "page.html", variant):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    spec.output.journal_path.parent.mkdir(parents=True, exist_ok=True)
    spec.output.journal_path.write_text("the journal\n")
    return contents(spec.output.export_path)


def contents(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in directory.rglob("*") if p.is_file()}


def begin(spec: ProfileSpec) -> list[str]:
    said: list[str] = []
    with open_search(spec, lambda _: None, said.append, asyncio.Event()) as search:
        assert search is not None
    return said


@pytest.mark.parametrize("name", ["out", "results"])
def test_a_second_search_moves_all_files_of_the_first_to_an_export_path_of_its_own(
    tmp_path: Path, name: str
) -> None:
    spec = spec_in(tmp_path, tmp_path / name)
    first = leave_run(spec)
    (tmp_path / name / "mine.txt").write_text("not of the run")
    (line,) = begin(check_options(spec))
    (aside,) = (tmp_path / name / "earlier").iterdir()
    place = aside / "results" if name == "results" else aside
    assert f"moved to {place};" in line
    assert contents(place) == first
    assert journal_of(place).read_text() == "the journal\n"
    left = {p for p in contents(tmp_path / name) if not p.startswith("earlier/")}
    journal = spec.output.journal_path.relative_to(tmp_path / name)
    assert left == {"mine.txt", str(journal)}
    assert spec.output.journal_path.read_text() == ""


def test_files_of_a_run_in_an_export_path_called_results_lie_beside_its_report(tmp_path: Path) -> None:
    assert set(leave_run(spec_in(tmp_path, tmp_path / "results"))) == {
        *("report.html", "run.jsonl", "metrics-model-inference.csv", "metrics-model-gpu.csv"),
        *("metrics-server-only.csv", "detailed/net/page.html", "configurations/net_config_0/config.pbtxt"),
    }


def test_a_run_in_progress_is_not_moved(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, tmp_path / "out")
    first = leave_run(spec)
    with (
        Journal(spec.output.journal_path),
        pytest.raises(UsageError, match="being written by another tpx analyze"),
    ):
        begin(spec)
    assert contents(tmp_path / "out") == first


def test_variants_are_replaced_and_the_journal_goes_on_if_that_is_asked_for(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, tmp_path / "out", override_output_model_repository=True)
    leave_run(spec)
    assert begin(spec) == []
    assert not (tmp_path / "out" / "earlier").exists()
    assert list(spec.configurations_path.iterdir()) == []
    assert spec.output.journal_path.read_text() == "the journal\n"


def test_all_that_is_wrong_with_a_run_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "variants" / "mine").mkdir(parents=True)
    wrong = {
        "profile_models": (ModelToProfile(name="nets"),),
        "output_model_repository_path": tmp_path / "variants",
    }
    with pytest.raises(UsageError) as told:
        check_options(spec_in(tmp_path, tmp_path / "file" / "out", **wrong))
    first, *lines = told.value.message.split("\n")
    assert first == "3 things are wrong:"
    assert f"{tmp_path / 'file'} is not a directory" in lines[0]
    assert "--override-output-model-repository" in lines[1]
    assert "no model 'nets' (did you mean 'net'?)" in lines[2]
