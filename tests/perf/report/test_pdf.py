"""The page of a run as PDF."""

import sys
from pathlib import Path

import pytest

from tests.perf.report.test_html import LEVELS, full
from tests.perf.report.test_summaries import report
from tests.report.reading import pdf_text
from tpx.cli.perf import main
from tpx.errors import MeasurementError
from tpx.perf.report.files import write_files
from tpx.perf.report.model import Report
from tpx.perf.report.page import build
from tpx.report.pdf import render


def printed(made: Report, path: Path) -> str:
    path.write_bytes(render(build(made, ["-m", "net", "--header", "a b"])))
    return " ".join(pdf_text(path).split())


def test_every_section_of_the_html_page_is_on_paper(tmp_path: Path) -> None:
    text = printed(full(), tmp_path / "a.pdf")
    for said in (
        "Load test: net", "This run was interrupted", "Measured", "53,300 infer/s at concurrency 8",
        "Objectives", "p99<1ms", "violated", "Latency and throughput", "limit 5 ms", "Levels", "6,670",
        "unstable", "over limit", "errors", "Where the time goes", "compute output", "Percentiles",
        "Throughput of every window", "p99 latency of every window",
        "Server", "identity 1", "Server metrics", "GPU-1 utilization %", "Errors", "HTTP 500", "Remarks",
        "Concurrency: 2: it moved", "tpx perf -m net --header 'a b'", "--latency-threshold",
    ):  # fmt: skip
        assert said in text


def test_a_run_that_measured_nothing_has_its_page_too(tmp_path: Path) -> None:
    assert "the server has gone" in printed(report(error="the server has gone"), tmp_path / "a.pdf")


def test_a_pdf_that_cannot_be_written_is_named_and_the_page_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    made = report(*LEVELS[:2], words=("--pdf", str(folder / "a.pdf"), "--html", str(tmp_path / "a.html")))
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(MeasurementError, match=r"cannot write .*gone/a\.pdf"):
        write_files(made, [])
    assert (tmp_path / "a.html").is_file()


def test_a_run_whose_pdf_cannot_be_made_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    assert main(["-m", "net", "-u", "127.0.0.1:9", "--pdf", str(tmp_path / "a.pdf")]) == 99
    assert "typst is not installed, add it with: pip install 'tpx[report]'" in capsys.readouterr().err
