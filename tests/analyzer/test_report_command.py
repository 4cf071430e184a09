"""`tpx analyze report`: which run, which configurations, in which formats."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tpx.analyzer.results.run import Run
from tpx.cli.analyze import main

Replay = Callable[..., Run]


@pytest.fixture
def run_path(replay: Replay, tmp_path: Path) -> Path:
    """The export path of a finished run."""
    replay(run_config_search_max_instance_count=2)
    return tmp_path


def test_the_whole_run_is_reported_again(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "-e", str(run_path), "-o", "html,csv"]) == 0
    page = (run_path / "report.html").read_text(encoding="utf-8")
    assert "alexnet_config_1" in page
    assert (run_path / "results" / "metrics-model-inference.csv").is_file()
    assert f"Report: {run_path / 'report.html'}" in capsys.readouterr().out


def test_each_named_configuration_has_a_report_where_model_analyzer_has_it(run_path: Path) -> None:
    names = "alexnet_config_default,alexnet_config_0"
    assert main(["-m", "offline", "report", "-n", names, "-e", str(run_path)]) == 0
    detailed = run_path / "reports" / "detailed"
    page = (detailed / "alexnet_config_0" / "detailed_report.html").read_text(encoding="utf-8")
    assert "alexnet_config_0" in page
    assert "alexnet_config_1 at concurrency" not in page
    assert (detailed / "alexnet_config_default" / "detailed_report.html").is_file()


def test_the_run_may_lie_in_a_checkpoint_directory_and_the_options_in_a_file(
    run_path: Path, tmp_path: Path
) -> None:
    (run_path / "results").rename(run_path / "kept")
    (tmp_path / "config.yml").write_text(
        f"checkpoint_directory: {run_path / 'kept'}\nreport_model_configs:\n  - alexnet_config_0\n"
        "output_formats: [csv]\n"
    )
    assert main(["report", "-f", str(tmp_path / "config.yml"), "-e", str(tmp_path / "out")]) == 0
    table = tmp_path / "out" / "reports" / "detailed" / "alexnet_config_0" / "metrics-model-inference.csv"
    assert "alexnet_config_0" in table.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "png"], "there is no 'png': charts are in the HTML page, as SVG"),
        (["-o", "htm"], "there is no 'htm' (did you mean 'html'?)"),
        (["-n", "alexnet_config_11"], "did you mean 'alexnet_config_1'"),
        (["-e", "/nowhere/at/all"], "no run here"),
        (["--plots", "x"], "plots are not supported"),
        (["-f", "/nowhere/at/all.yml"], "No such file"),
        (["--report-model-config", "x", "--frmt"], "Invalid long option '--frmt'"),
    ],
)
def test_what_cannot_be_reported_is_status_two_with_the_reason(
    words: list[str], message: str, run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "-e", str(run_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_plots_of_single_configurations_are_refused_by_name(
    run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "report_model_configs:\n  - alexnet_config_0:\n      plots: {a: {title: A}}\n"
    (tmp_path / "config.yml").write_text(text)
    assert main(["report", "-f", str(tmp_path / "config.yml"), "-e", str(run_path)]) == 2
    assert "expected names: the plots of a configuration are fixed" in capsys.readouterr().err
