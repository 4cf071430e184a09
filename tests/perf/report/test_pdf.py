"""The page of a run on paper, where there is no pango."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.perf.report.test_html import LEVELS, full
from tests.perf.report.test_summaries import report
from tpx.cli.perf import main
from tpx.errors import MeasurementError, Unsupported
from tpx.pages import pdf
from tpx.pages.paper import over_white
from tpx.pages.styles import COLORS
from tpx.perf.report.files import write_files
from tpx.perf.report.model import Report
from tpx.perf.report.page import build
from tpx.perf.report.pdf import draw_page
from tpx.perf.settings import Level

pytest.importorskip("fpdf")


def no_weasyprint() -> None:
    raise Unsupported("no PDF: WeasyPrint lacks a system library")


def no_fpdf() -> None:
    raise Unsupported("no PDF: fpdf2 is not installed")


def drawn(made: Report, path: Path) -> str:
    """The commands of all pages."""
    draw_page(build(made, ["-m", "net", "--header", "a b"]), path)
    return "\n".join(streams(path.read_bytes()))


def streams(content: bytes) -> Iterator[str]:
    for packed in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL):
        try:
            yield zlib.decompress(packed).decode("latin-1")
        except zlib.error:
            continue


def words(commands: str) -> str:
    """What the commands write, unescaped."""
    shown = re.findall(r"\(((?:\\.|[^\\)])*)\) Tj", commands, re.DOTALL)
    return " ".join(re.sub(r"\\(.)", r"\1", text) for text in shown)


def test_every_section_of_the_html_page_is_on_paper(tmp_path: Path) -> None:
    text = words(drawn(full(), tmp_path / "a.pdf"))
    for said in (
        "Load test: net", "This run was interrupted", "Measured", "53333.3 infer/s at concurrency 8",
        "Objectives", "p99<1ms", "broken", "Latency and throughput", "limit 5 ms", "Levels", "6,666.7",
        "unstable", "over limit", "errors", "Where the time goes", "compute output", "Percentiles",
        "Distribution at concurrency: 8", "Throughput of every window", "p99 latency of every window",
        "Server", "identity 1", "Server metrics", "GPU-1 utilization %", "Errors", "HTTP 500", "Remarks",
        "Concurrency: 2: it moved", "tpx perf -m net --header 'a b'", "--latency-threshold",
    ):  # fmt: skip
        assert said in text


def test_a_histogram_has_its_bars_and_its_marks_on_paper(tmp_path: Path) -> None:
    page = build(report(LEVELS[0]), [])
    assert page.histogram is not None
    one = drawn(report(LEVELS[0]), tmp_path / "one.pdf")
    bars = one.count(" re f")
    assert bars >= len(page.histogram.bars)
    assert {mark.text for mark in page.histogram.marks} <= set(words(one).split())


def test_intervals_are_drawn_through_the_points(tmp_path: Path) -> None:
    sure = tuple(replace(level, estimates=None) for level in LEVELS)
    chart = build(report(*LEVELS), []).curve
    assert chart is not None
    assert any(series.whiskers for series in chart.series)
    faded = [over_white(COLORS[series.style], 0.35) for series in chart.series if series.whiskers]
    with_them, without = drawn(report(*LEVELS), tmp_path / "a.pdf"), drawn(report(*sure), tmp_path / "b.pdf")
    for color in faded:
        assert stroke(color) in with_them
        assert stroke(color) not in without


def stroke(color: str) -> str:
    """The beginning of the command that sets the colour of lines."""
    return " ".join(f"{int(color[i : i + 2], 16) / 255:.4f}".rstrip("0") for i in (1, 3, 5)) + " RG"


def test_nothing_measured_and_a_long_sweep_have_their_paper_too(tmp_path: Path) -> None:
    assert "the server has gone" in words(drawn(report(error="the server has gone"), tmp_path / "a.pdf"))
    sweep = [replace(LEVELS[0], level=Level("concurrency", n)) for n in range(1, 81)]
    assert "20 more rows in the HTML report." in words(drawn(report(*sweep), tmp_path / "b.pdf"))


def test_without_weasyprint_the_pdf_is_drawn_and_a_note_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "require_pdf", no_weasyprint)
    path = tmp_path / "a.pdf"
    notes = write_files(report(*LEVELS[:2], words=("--pdf", str(path))), [])
    assert notes == ("PDF: drawn by fpdf2 (no PDF: WeasyPrint lacks a system library)",)
    assert path.read_bytes().startswith(b"%PDF-")


def test_a_drawn_pdf_that_cannot_be_written_is_named_and_the_page_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "require_pdf", no_weasyprint)
    folder = tmp_path / "gone"
    folder.mkdir()
    made = report(*LEVELS[:2], words=("--pdf", str(folder / "a.pdf"), "--html", str(tmp_path / "a.html")))
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(MeasurementError, match=r"cannot write .*gone/a\.pdf"):
        write_files(made, [])
    assert (tmp_path / "a.html").is_file()


def test_a_run_whose_pdf_nothing_can_make_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pdf, "require_pdf", no_weasyprint)
    monkeypatch.setattr(pdf, "require_fpdf", no_fpdf)
    assert main(["-m", "net", "-u", "127.0.0.1:9", "--pdf", str(tmp_path / "a.pdf")]) == 99
    assert "fpdf2 is not installed" in capsys.readouterr().err
