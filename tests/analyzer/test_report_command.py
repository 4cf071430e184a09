"""`tpx analyze report`: which run, which configurations, in which formats."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.reading import pdf_text
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import OF_REPORT, merge_options
from tpx.analyzer.results.run import Run
from tpx.cli.analyze import main
from tpx.cli.analyze_options import ReportConfig
from tpx.errors import UsageError
from tpx.options import fields_of

Replay = Callable[..., Run]
RATE = "{x_axis: concurrency, y_axis: perf_throughput, title: Rate over load}"


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


def test_one_file_may_be_for_profile_and_report(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_path / "config.yml"
    path.write_text(
        f"export_path: {run_path}\nprofile_models: {{alexnet: {{parameters: {{concurrency: [1, 2]}}}}}}\n"
        "perf_analyzer_flags: {percentile: 95}\nreport_model_configs: [alexnet_config_0]\n"
        f"output_formats: [csv]\nplots: {{rate: {RATE}}}\n"
    )
    assert main(["report", "-f", str(path)]) == 0
    assert merge_options(["-f", str(path)]).models.names == ("alexnet",)
    path.write_text(path.read_text() + "report_model_confgs: a\n")
    assert main(["report", "-f", str(path)]) == 1
    assert (
        "unknown key 'report_model_confgs' (did you mean 'report_model_configs'?)" in capsys.readouterr().err
    )
    with pytest.raises(UsageError, match="unknown key 'report_model_confgs'"):
        merge_options(["-f", str(path)])


def test_the_keys_of_report_alone_are_known_to_profile() -> None:
    own = {field.name for field in fields_of(ReportConfig)} - {field.name for field in fields_of(ProfileSpec)}
    assert own == OF_REPORT


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "png"], "there is no 'png': charts are in the HTML page, as SVG"),
        (["-o", ""], "--output-formats names none"),
        (["-o", "htm"], "there is no 'htm' (did you mean 'html'?)"),
        (["-n", "alexnet_config_11"], "did you mean 'alexnet_config_1'"),
        (["-e", "/nowhere/at/all"], "no run found"),
        (["--plots", "x"], "expected plots as `key: value` lines, got str"),
        (["--plots", "{a: {x_axis: batch_size}}"], "a: missing: y_axis"),
        (["--plots", "{a: {x_axes: batch_size}}"], "a: unknown key 'x_axes' (did you mean 'x_axis'?)"),
        (["--plots", "{a: {x_axis: batch_sizes, y_axis: perf_throughput}}"], "did you mean 'batch_size'"),
        (["-n", "alexnet_config_0", "-o", "json"], "--output-formats json covers a whole run"),
        (["-f", "/nowhere/at/all.yml"], "No such file"),
        (["--report-model-config", "x", "--frmt"], "Invalid long option '--frmt'"),
    ],
)
def test_what_cannot_be_reported_is_status_two_with_the_reason(
    words: list[str], message: str, run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "-e", str(run_path), *words]) == 1
    assert message in capsys.readouterr().err


TAIL = "{x_axis: concurrency, y_axis: perf_latency_p99, title: Tail over load, monotonic: true}"


def titles_of(page: Path) -> list[str]:
    return re.findall(r'role="img"[^>]*>\s*<title>([^<]*)</title>', page.read_text(encoding="utf-8"))


def test_plots_are_those_that_are_asked_for_of_all_or_of_one(run_path: Path, tmp_path: Path) -> None:
    names = f"[alexnet_config_0, alexnet_config_1: {{plots: {{tail: {TAIL}}}}}]"
    (tmp_path / "config.yml").write_text(f"report_model_configs: {names}\nplots: {{rate: {RATE}}}\n")
    assert main(["report", "-f", str(tmp_path / "config.yml"), "-e", str(run_path)]) == 0
    detailed = run_path / "reports" / "detailed"
    first = titles_of(detailed / "alexnet_config_0" / "detailed_report.html")
    second = titles_of(detailed / "alexnet_config_1" / "detailed_report.html")
    assert first[-1:] == ["Rate over load"]
    assert second[-1:] == ["Tail over load"]


def test_a_single_configuration_is_a_pdf(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "-e", str(run_path), "-n", "alexnet_config_1", "-o", "pdf"]) == 0
    path = run_path / "reports" / "detailed" / "alexnet_config_1" / "detailed_report.pdf"
    assert capsys.readouterr().out == f"Report: {path}\n"
    text = " ".join(pdf_text(path).split())
    for said in ("alexnet_config_1", "Throughput and latency", "Loads", "config.pbtxt", "instance_group"):
        assert said in text


def test_a_pdf_that_nothing_can_make_is_refused(
    run_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    assert main(["report", "-e", str(run_path), "-o", "html,pdf"]) != 0
    assert "typst is not installed" in capsys.readouterr().err
