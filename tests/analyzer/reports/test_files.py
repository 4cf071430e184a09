"""Every report of a run: written where it is expected, linked, and saying what the JSON says."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.analyzer.measuring import make_latency, make_measurement
from tests.analyzer.reports.rendered import for_wide_screens, render, view_of
from tests.analyzer.reports.test_html import measured
from tests.report.reading import pdf_pages, pdf_text, read
from tpx.analyzer.options.measuring import ProfileOutputSpec
from tpx.analyzer.reports.files import junit_text, markdown_text, write_reports
from tpx.analyzer.reports.json import report_json
from tpx.analyzer.results.measurement import EnergyUse, GpuUse, LoadPoint, Measurement, MemoryUse, ServerOnly
from tpx.analyzer.results.run import Run
from tpx.cli.analyze import main
from tpx.errors import MeasurementError
from tpx.perf.report.plots import parts_of
from tpx.report.digits import in_unit
from tpx.report.files import step_summary_path

Replay = Callable[..., Run]

BATCHING = {"name": "alexnet", "max_batch_size": 4, "instance_group": [{"count": 1, "kind": "KIND_GPU"}]}


def rich(variant: str, load: int, throughput: float, avg_ms: float) -> Measurement:
    """A measurement with everything that a report can show."""
    avg_ns = round(avg_ms * 1e6)
    return make_measurement(
        variant=variant,
        load=LoadPoint(value=load),
        throughput=throughput,
        latency=make_latency(avg_ns=avg_ns, p50_ns=avg_ns, p90_ns=avg_ns, p95_ns=avg_ns, p99_ns=avg_ns * 2),
        breakdown={"queue_ns": avg_ns // 4, "compute_infer_ns": avg_ns // 2, "client_send_recv_ns": 50_000},
        duration_ns=10**9,
        memory=MemoryUse(rss_bytes=90_000_000),
        gpus=(GpuUse(uuid="GPU-1", used_bytes=3_000_000_000, total_bytes=16 << 30, power_w=80.0),),
        energy=EnergyUse(duration_ns=10**9, gpu_j=80.0),
    )


@pytest.fixture
def batching(replay: Replay) -> Run:
    """Two instances by two batches, under two loads."""
    names = ["default", "0", "1", "2", "3"]
    table = [
        rich(f"alexnet_config_{name}", load, 100.0 * (number + 1) * load, 5.0 + number)
        for number, name in enumerate(names)
        for load in (1, 2)
    ]
    return replay(
        table,
        default=BATCHING,
        concurrency=(1, 2),
        run_config_search_max_instance_count=2,
        run_config_search_max_model_batch_size=2,
    )


def all_files(directory: Path) -> ProfileOutputSpec:
    return ProfileOutputSpec(
        html=directory / "report.html",
        markdown=directory / "report.md",
        json=directory / "report.json",
        junit=directory / "report.xml",
    )


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_every_file_is_where_it_was_asked_for_and_links_lead_to_files(batching: Run, tmp_path: Path) -> None:
    written = write_reports(view_of(batching, export_path=tmp_path), all_files(tmp_path))
    assert [label for label, _ in written] == ["Report", "Markdown", "JSON", "JUnit", *["Details"] * 4]
    for _, path in written:
        assert path.is_file()
        if path.suffix == ".html":
            for url in read(path.read_text(encoding="utf-8")).urls:
                assert url.startswith(("#", "data:")) or (path.parent / url).is_file(), url


def test_the_cells_of_the_page_are_the_figures_of_the_json(batching: Run) -> None:
    page = render(batching)
    head, *rows = read(page).rows["model-0-configurations"]
    document = report_json(view_of(batching))
    assert document["tpx_analyze_report"] == 2
    configurations = document["models"][0]["configurations"]
    assert [row[0] for row in rows] == [c["name"] for c in configurations]
    columns = {"infer/s": "perf_throughput", "avg": "perf_latency_avg", "p99": "perf_latency_p99"}
    columns |= {"GPU MB": "gpu_used_memory", "RAM MB": "cpu_used_ram", "J/inf": "joules_per_inference"}
    for header, tag in columns.items():
        for row, configuration in zip(rows, configurations, strict=True):
            unit = "ms" if header in ("avg", "p99") else ""
            shown = row[head.index(header)].partition("±")[0].strip()
            assert shown == in_unit(configuration["figures"][tag], unit)
    assert data_of(page) == json.loads(json.dumps(document))


def test_every_chart_is_valid_svg_with_title_and_description(batching: Run) -> None:
    page = render(batching)
    charts = [svg for svg in svgs(for_wide_screens(page)) if svg.get("role") == "img"]
    assert len(charts) == 3, "curves, front, breakdown; memory is flat"
    for chart in charts:
        assert chart.findtext("title")
        assert chart.findtext("desc")


def test_the_parts_of_the_latency_add_up_to_it() -> None:
    for avg_ms in (0.06, 1.0, 7.3):
        measurement = rich("m", 1, 1.0, avg_ms)
        assert sum(parts_of(measurement.result).values()) == measurement.mean_ns
    assert parts_of(measured("m", 1, 1.0, 1.0).result) == {}


def test_without_a_gpu_or_parts_or_rounds_nothing_empty_is_shown(replay: Replay) -> None:
    page = render(replay(final_rounds=0))
    titles = [svg.findtext("title") or "" for svg in svgs(for_wide_screens(page)) if svg.get("role") == "img"]
    assert [title.split()[0] for title in titles] == ["Throughput", "Configurations"]
    for absent in ("GPU MB", "J/inf", "cost/1M", "Told apart", "Where the time goes", "steady the machine"):
        assert absent not in page


def test_money_and_memory_beyond_the_bare_server_need_a_price_and_the_bare_server(batching: Run) -> None:
    idle = GpuUse(uuid="GPU-1", used_bytes=1_000_000_000, total_bytes=16 << 30)
    server = ServerOnly(gpus=(idle,), energy=EnergyUse(duration_ns=10**9, gpu_j=30.0))
    batching.started.settings["price_per_hour"] = 3.6
    run = replace(batching, server_only=server)
    head, first, *_ = read(render(run)).rows["model-0-configurations"]
    row = dict(zip(head, first, strict=True))
    throughput = float(row["infer/s"].partition("\u00b1")[0].replace(",", ""))
    assert float(row["GPU +MB"].replace(",", "")) == 2000
    assert float(row["cost/1M"]) == pytest.approx(1000 / throughput, abs=0.001)
    assert float(row["J/inf"]) == pytest.approx(80 / throughput, abs=0.001)
    assert float(row["J/inf net"]) == pytest.approx(50 / throughput, abs=0.001)


def test_the_command_applies_the_recommended_configuration_of_this_run(batching: Run) -> None:
    page = render(batching, export_path=Path("my runs"))
    assert "tpx analyze apply alexnet_config_3 --export-path &#39;my runs&#39;" in page


def test_data_in_the_page_cannot_end_its_script(replay: Replay) -> None:
    run = replay()
    run.started.settings["note"] = "</script><script>alert(1)"
    page = render(run)
    assert "</script><script>alert" not in page
    assert data_of(page)["settings"]["note"] == "</script><script>alert(1)"


def test_a_configuration_has_a_page_with_its_loads_its_file_and_the_way_back(
    batching: Run, tmp_path: Path
) -> None:
    write_reports(view_of(batching, export_path=tmp_path), all_files(tmp_path))
    path = tmp_path / "reports" / "detailed" / "alexnet_config_3" / "detailed_report.html"
    page = path.read_text(encoding="utf-8")
    reader = read(page)
    assert reader.closed
    assert [row[0] for row in reader.rows["loads"][1:]] == ["1", "2"]
    assert "../../../report.html" in reader.urls
    assert "Recommended" in reader.text
    assert "max_batch_size: 2" in reader.text
    assert not re.search(r"https?://", page)


@pytest.mark.parametrize(("flag", "absent"), [("summaries", "summaries"), ("detailed", "detailed")])
def test_reports_that_are_skipped_are_not_written(
    batching: Run, tmp_path: Path, flag: str, absent: str
) -> None:
    wanted = all_files(tmp_path)
    two = replace(batching, models=batching.models * 2)
    skipped = replace(
        wanted, skip_summary_reports=flag == "summaries", skip_detailed_reports=flag == "detailed"
    )
    write_reports(view_of(two, export_path=tmp_path), skipped)
    assert {p.name for p in (tmp_path / "reports").iterdir()} == {"summaries", "detailed"} - {absent}


def test_the_pdf_of_two_small_models_has_at_most_eight_pages(batching: Run, tmp_path: Path) -> None:
    two = replace(batching, models=batching.models * 2)
    write_reports(
        view_of(two),
        ProfileOutputSpec(pdf=tmp_path / "a.pdf", skip_summary_reports=True, skip_detailed_reports=True),
    )
    assert pdf_pages(tmp_path / "a.pdf") <= 8


def test_the_best_of_all_models_are_compared_where_that_is_asked_for(batching: Run) -> None:
    two = replace(batching, models=batching.models * 2)
    assert "top" not in read(render(two)).rows
    two.started.settings["num_top_model_configs"] = 3
    rows = read(render(two)).rows["top"]
    assert [row[:2] for row in rows[1:]] == [["alexnet", f"alexnet_config_{n}"] for n in (3, 3, 2)]


def test_markdown_has_the_verdict_a_table_and_a_curve(replay: Replay) -> None:
    text = markdown_text(view_of(replay()), "report.html")
    first, *lines = text.splitlines()
    assert first.startswith(
        "### \u2705 alexnet: In 41 measurements across 6 configurations, `alexnet_config_4`"
    )
    rows = [line for line in lines if line.startswith("| `")]
    assert rows[0] == (
        "| `alexnet_config_4` | 5:GPU | 32 | 1,680 \u00b1 50 | +67% \\[1.6x to 1.7x\\] | 22.3 ms \u00b1 0.6 "
        "| 22.3 ms \u00b1 0.6 | 6 times |"
    )
    assert len(rows) == 6
    assert "throughput `\u2581" in text
    assert "[report](report.html)" in text


def test_words_of_a_server_are_no_markup(replay: Replay) -> None:
    run = replay(stop_after=2)
    host = {"Host": "<b>|`evil`*"}
    started = run.started
    cut_off = Run(
        started=type(started)(
            **{
                **{name: getattr(started, name) for name in started.__struct_fields__},
                "provenance": type(started.provenance)(command=(), started="now", versions={}, host=host),
            }
        ),
        models=run.models,
        server_only=None,
        outcome="interrupted",
        elapsed_ns=0,
    )
    text = markdown_text(view_of(cut_off))
    assert "&lt;b&gt;\\|\\`evil\\`\\*" in text
    assert "did not come to its end" in text


def test_an_undecided_verdict_is_no_pass_of_junit(replay: Replay) -> None:
    suite = ElementTree.fromstring(junit_text(view_of(replay(final_rounds=0))))
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    skipped = suite.find(".//skipped")
    assert skipped is not None
    assert "nothing was shown to beat the default" in (skipped.get("message") or "")


def test_a_constraint_that_nothing_meets_is_a_failure_of_junit(replay: Replay) -> None:
    suite = ElementTree.fromstring(junit_text(view_of(replay(latency_budget=0.5))))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "2", "0")
    names = [(case.get("classname"), case.get("name")) for case in suite]
    assert names == [("alexnet", "verdict"), ("alexnet.constraints", "p99 latency of at most 0.5 ms")]
    met = ElementTree.fromstring(junit_text(view_of(replay(latency_budget=500.0))))
    assert (met.get("tests"), met.get("failures")) == ("2", "0")


def test_a_job_of_github_gets_the_summary_behind_what_is_there(
    replay: Replay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert step_summary_path() == summary
    files = ProfileOutputSpec(step_summary=True, skip_summary_reports=True, skip_detailed_reports=True)
    write_reports(view_of(replay(), export_path=tmp_path), files)
    assert summary.read_text().startswith("before\n### \u2705 alexnet")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert step_summary_path() is None


def test_a_run_that_was_cut_off_is_reported_from_its_journal(
    replay: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay()
    journal = tmp_path / "results" / "run.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:12]) + lines[12][:30])
    assert main(["report", "-e", str(tmp_path), "-o", "html,markdown,json,junit,csv"]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "This run did not come to its end" in page
    assert json.loads((tmp_path / "report.json").read_text())["outcome"] == "unfinished"
    assert "Markdown: " in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_named_and_the_others_are_there(
    replay: Replay, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    files = replace(all_files(tmp_path), markdown=tmp_path / "file" / "x.md")
    with pytest.raises(MeasurementError, match=r"cannot write .*x\.md"):
        write_reports(view_of(replay(), export_path=tmp_path), files)
    assert (tmp_path / "report.xml").is_file()


@pytest.mark.slow
def test_every_section_of_the_report_is_on_paper(batching: Run, tmp_path: Path) -> None:
    write_reports(
        view_of(batching, export_path=tmp_path), replace(all_files(tmp_path), pdf=tmp_path / "report.pdf")
    )
    text = " ".join(pdf_text(tmp_path / "report.pdf").split())
    for said in (
        "Model analysis: alexnet", "What to change", "tpx analyze apply", "Throughput and latency",
        "Configurations", "alexnet_config_3", "Trade-offs",
        "Where the time goes", "The final rounds", "How the search went", "All measurements",
        "Where these figures come from", "Machine",
    ):  # fmt: skip
        assert said in text


class Headers(HTMLParser):
    """Tables, and those of their headers that say which direction they head."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = self.captions = 0
        self.unscoped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tables += tag == "table"
        self.captions += tag == "caption"
        if tag == "th" and "scope" not in dict(attrs):
            self.unscoped.append(str(self.getpos()))


def test_headers_say_what_they_head(batching: Run) -> None:
    headers = Headers()
    headers.feed(render(batching))
    assert headers.tables >= 4
    assert headers.unscoped == []
