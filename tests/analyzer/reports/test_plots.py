"""How a run is shown: Model Analyzer's mode decides order and plots, `cpu_only` hides what says nothing."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.reports.rendered import for_wide_screens, render, render_detail, view_of
from tests.analyzer.reports.test_files import rich
from tests.report.reading import read
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.reports.charts import Mode, Plot
from tpx.analyzer.reports.files import markdown_text
from tpx.analyzer.reports.tables import gpu_table
from tpx.analyzer.results.measurement import LoadPoint, Measurement
from tpx.analyzer.results.run import Run
from tpx.cli.analyze import main

Replay = Callable[..., Run]

NAME = "alexnet_config_0"
ALL_GPUS = {"always_report_gpu_metrics": True}
BATCHING = {"name": "alexnet", "max_batch_size": 4, "instance_group": [{"count": 1, "kind": "KIND_GPU"}]}


def of_batch(variant: str, batch: int, load: int, throughput: float, avg_ms: float) -> Measurement:
    found = rich(variant, load, throughput, avg_ms)
    return replace(found, load=LoadPoint(value=load, batch_size=batch))


TABLE = [
    of_batch(f"alexnet_config_{name}", batch, load, base + 50 * load * (1 + batch / 4), 4.0 * batch + load)
    for name, base in (("default", 10.0), ("0", 100.0))
    for batch in (1, 4)
    for load in (1, 2)
]


@pytest.fixture
def run(replay: Replay) -> Run:
    return replay(
        TABLE,
        default=BATCHING,
        batch_sizes=(1, 4),
        concurrency=(1, 2),
        run_config_search_max_instance_count=1,
        run_config_search_min_model_batch_size=4,
        run_config_search_max_model_batch_size=4,
        final_rounds=0,
    )


def charts(page: str) -> list[str]:
    return re.findall(r"<h3>([^<]*)</h3>", page)


def column(page: str, table: str, header: str) -> list[str]:
    head, *rows = read(page).rows[table]
    return [row[head.index(header)] for row in rows]


@pytest.mark.parametrize(
    ("mode", "first_columns", "plots"),
    [
        (
            "online",
            ["Concurrency", "Batch"],
            ["GPU memory over p99 latency", "Server memory over p99 latency", "GPU power over p99 latency"],
        ),
        (
            "offline",
            ["Batch", "Concurrency"],
            ["Throughput over batch size", "p99 latency over batch size"],
        ),
    ],
)
def test_the_mode_decides_columns_and_plots_of_a_configuration(
    run: Run, mode: Mode, first_columns: list[str], plots: list[str]
) -> None:
    page = render_detail(run, NAME, {"mode": mode})
    assert read(page).rows["loads"][0][:2] == first_columns
    shown = zip(column(page, "loads", "Concurrency"), column(page, "loads", "Batch"), strict=True)
    assert list(shown) == [("1", "1"), ("2", "1"), ("1", "4"), ("2", "4")]
    assert [title for title in charts(page) if " over " in title] == plots


def test_the_mode_decides_what_is_beside_the_curves_of_the_whole_run(run: Run) -> None:
    modes: tuple[Mode, ...] = ("online", "offline")
    online, offline = (
        [title for title in charts(render(run, {"mode": mode})) if " over " in title] for mode in modes
    )
    assert online == ["GPU memory over p99 latency", "Server memory over p99 latency"]
    assert offline == ["Throughput over batch size"]


def test_a_run_is_shown_in_its_own_mode_unless_the_report_says_otherwise(
    replay: Replay, tmp_path: Path
) -> None:
    replay(TABLE, default=BATCHING, batch_sizes=(1, 4), concurrency=(1, 2), mode="offline")
    page = tmp_path / "report.html"
    assert main(["report", "-e", str(tmp_path)]) == 0
    assert "Throughput over batch size" in charts(page.read_text(encoding="utf-8"))
    assert main(["-m", "online", "report", "-e", str(tmp_path)]) == 0
    assert "Throughput over batch size" not in charts(page.read_text(encoding="utf-8"))


def test_options_given_when_a_run_is_resumed_decide_how_it_is_shown(run: Run) -> None:
    page = render(run, {"mode": "offline", "price_per_hour": 3.6})
    assert "Throughput over batch size" in charts(page)
    assert "cost/1M" in page
    assert "cost/1M" not in render(run)


def test_over_a_load_the_most_throughput_of_each_is_drawn(run: Run) -> None:
    plot = Plot(title="Rate", x_axis="batch_size", y_axis="perf_throughput")
    page = render_detail(run, NAME, plots=(plot,))
    drawn = re.findall(rf"{NAME} at [^:<]*: [0-9.,]+ infer/sec", for_wide_screens(page))
    assert drawn == [
        f"{NAME} at concurrency 2: 225 infer/sec",
        f"{NAME} at concurrency 2, batch 4: 300 infer/sec",
    ]


def test_a_monotonic_plot_leaves_out_what_falls_back(run: Run) -> None:
    rising, falling = (
        render_detail(run, NAME, plots=(plot,))
        for plot in (
            Plot(title="A", x_axis="perf_latency_p99", y_axis="perf_throughput", monotonic=True),
            Plot(title="B", x_axis="perf_throughput", y_axis="gpu_used_memory", monotonic=True),
        )
    )
    assert "A" in charts(rising)
    assert "B" not in charts(falling), "memory stays the same, so that one point is left"


def on_cpu(replay: Replay, **options: Any) -> Run:
    models = (ModelToProfile(name="alexnet", cpu_only=True),)
    return replay(
        TABLE, default=BATCHING, batch_sizes=(1, 4), concurrency=(1, 2), profile_models=models, **options
    )


def test_of_a_model_on_the_cpu_alone_gpus_are_shown_on_demand(replay: Replay, tmp_path: Path) -> None:
    run = on_cpu(replay)
    own, asked = view_of(run), view_of(run, ALL_GPUS)
    for words in ("GPU MB", "GPU memory"):
        assert words not in render(run)
        assert words not in render_detail(run, NAME)
        assert words in render(run, ALL_GPUS)
        assert words in render_detail(run, NAME, ALL_GPUS)
    assert ("GPU MB" in markdown_text(own), "GPU MB" in markdown_text(asked)) == (False, True)
    assert gpu_table(own).rows == ()
    assert len(gpu_table(asked).rows) == run.models[0].measurement_count
    assert main(["report", "-e", str(tmp_path), "--always_report-gpu-metrics"]) == 0
    assert "GPU MB" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_may_ask_itself_for_the_gpus_of_all_models(replay: Replay) -> None:
    assert "GPU MB" in render(on_cpu(replay, always_report_gpu_metrics=True))


def test_of_models_together_gpus_are_shown_if_one_uses_them(run: Run) -> None:
    run.started.settings["profile_models"] = [{"a": {"cpu_only": True}}, "b"]
    assert view_of(run).shows_gpus(("a", "b"))
    assert not view_of(run).shows_gpus(("a",))
