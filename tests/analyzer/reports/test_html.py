"""The report page: complete, well-formed, self-contained, and showing exactly what was measured."""

import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.analyzer.measuring import changed, make_latency, make_measurement
from tests.analyzer.reports.rendered import for_wide_screens, render, view_of
from tests.report.blocks import blocks_of
from tests.report.reading import read
from tpx.analyzer.reports.detail import build_detail
from tpx.analyzer.reports.grids import figure
from tpx.analyzer.results.measurement import LoadPoint, Measurement
from tpx.analyzer.results.run import Run
from tpx.perf.statistics.intervals import Interval
from tpx.report.digits import rounded
from tpx.report.document import Statement

Replay = Callable[..., Run]


def measured(variant: str, concurrency: int, throughput: float, p99_ms: float) -> Measurement:
    return make_measurement(
        variant=variant,
        load=LoadPoint(value=concurrency),
        throughput=throughput,
        latency=make_latency(p99_ns=round(p99_ms * 1e6)),
    )


def test_the_page_is_well_formed_and_its_ids_are_unique(replay: Replay) -> None:
    page = render(replay())
    reader = read(page)
    assert reader.closed
    assert len(reader.ids) == len(set(reader.ids))


def test_the_page_needs_nothing_from_elsewhere(replay: Replay) -> None:
    page = render(replay())
    assert read(page).urls == ["data:,", "#main"]
    assert not re.search(r"https?://|@import|url\(", page)
    assert len(page.encode()) < 2_000_000


@pytest.mark.slow
def test_the_page_of_the_whole_space_stays_below_two_megabytes(replay: Replay) -> None:
    names = ["alexnet_config_default", *(f"alexnet_config_{i}" for i in range(40))]
    table = [measured(name, 2**i, 100.0 * 2**i, 1.0 + i) for name in names for i in range(11)]
    run = replay(table, run_config_search_max_instance_count=40)
    page = render(run)
    assert run.models[0].measurement_count == 451
    assert len(page.encode()) < 2_000_000
    assert read(page).closed


def test_the_table_of_configurations_shows_each_at_its_best_load(replay: Replay) -> None:
    rows = read(render(replay())).rows["model-0-configurations"]
    assert rows[0] == [
        "Configuration",
        "Instances",
        "Concurrency",
        "infer/s",
        "vs default",
        "avg",
        "p99",
        "Measured",
    ]
    assert rows[1] == [
        *("alexnet_config_4", "5:GPU", "32", "1,680\u00b1 50"),
        *("+67%[1.6x to 1.7x]", "22.3 ms\u00b1 0.6", "22.3 ms\u00b1 0.6", "6 times"),
    ]
    assert [row[0] for row in rows[1:]] == [
        "alexnet_config_4",
        "alexnet_config_3",
        "alexnet_config_2",
        "alexnet_config_1",
        "alexnet_config_default",
        "alexnet_config_0",
    ]


def test_every_measurement_is_in_the_page_with_its_load(replay: Replay) -> None:
    run = replay()
    rows = read(render(run)).rows["model-0-measurements"]
    shown = {(row[0], row[1], row[2].partition("\u00b1")[0]) for row in rows[1:]}
    expected = {
        (m.variant, str(m.load.value), rounded(m.throughput))
        for v in run.models[0].variants
        for m in v.measurements
    }
    assert shown == expected
    assert len(rows) == 42


def test_the_verdict_the_change_and_the_search_trace_are_told(replay: Replay) -> None:
    text = " ".join(read(render(replay())).text.split())
    assert "gives 1,680 infer/s, a 67% gain (95% interval 1.6x to 1.7x, 6 rounds) over the default" in text
    assert "at concurrency 32 instead of 8; p99 2.7x" in text
    assert "output/alexnet_config_4/config.pbtxt" in text
    assert "- count: 1" in text
    assert "+ count: 5" in text
    assert "1,680 infer/s plateau after concurrency 128: +1.7% over the last 4 loads" in text, (
        "the reason first"
    )
    assert "Under equal load, as the search measured both once: +55% at concurrency 8" in text
    assert "tpx analyze profile" in text


def test_the_chart_is_valid_svg_with_a_title_a_line_a_configuration_and_its_loads(replay: Replay) -> None:
    page = render(replay(latency_budget=30.0))
    svg = ElementTree.fromstring(page[page.index('<svg class="plot"') : page.index("</svg>") + len("</svg>")])
    lines = [p for p in svg.iter("path") if "line" in p.get("class", "").split()]
    assert len({p.get("stroke") for p in lines}) == 4
    assert len([p for p in svg.iter("path") if p.get("class") == "back"]) == 2
    assert svg.find("title") is not None
    description = svg.findtext("desc") or ""
    assert "alexnet_config_4: 1,680 infer/s, 22.3 ms, at concurrency 32" in description
    labels = [t.text for t in svg.iter("text") if "load" in (t.get("class") or "").split()]
    assert {"8", "16", "32", "64", "128"} <= set(labels)
    assert [t.text for t in svg.iter("text") if t.get("class") == "limit-text"] == ["limit 30 ms"]


def test_names_and_reasons_are_escaped(replay: Replay) -> None:
    default = {"name": "alexnet", "max_batch_size": "<script>alert(1)</script>"}
    page = render(replay(default=default))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_failed_configuration_is_shown_with_its_reason(replay: Replay) -> None:
    table = [measured("alexnet_config_default", c, 100.0, 5.0) for c in (1, 2, 4, 8)]
    page = render(replay(table, run_config_search_max_instance_count=1))
    text = read(page).text
    assert "Failed trials" in text
    assert "'alexnet_config_0' at concurrency 1 was not recorded" in text
    assert "Default was the only one measured" in text


def test_a_gain_of_single_measurements_is_undecided(replay: Replay) -> None:
    table = [measured("alexnet_config_default", c, 100.0, 5.0) for c in (1, 2, 4, 8)]
    table += [measured("alexnet_config_0", c, 103.0, 5.0) for c in (1, 2, 4, 8)]
    text = " ".join(
        read(render(replay(table, run_config_search_max_instance_count=1, final_rounds=0))).text.split()
    )
    assert "Undecided" in text
    assert (
        "fastest of the others: alexnet_config_0, 103 infer/s, measured once, not again in final rounds (+3%)"
        in text
    )
    assert "Better configuration found" not in text


def test_an_interrupted_run_says_so(replay: Replay) -> None:
    page = render(replay(stop_after=3))
    assert "This run was interrupted" in read(page).text


def test_no_measurement_at_all_still_makes_a_page(replay: Replay) -> None:
    reader = read(render(replay([], run_config_search_max_instance_count=1)))
    assert reader.closed
    assert "Nothing measured" in reader.text
    assert "model-0-configurations" not in reader.ids


@pytest.mark.parametrize(
    ("low", "high", "note"),
    [
        (90.0, 110.0, "\u00b1 10"),
        (80.0, 160.0, "80 to 160"),
        (0.0, 260.0, "\u00b1 over 50%"),
        (99.99, 100.01, ""),
    ],
)
def test_an_interval_is_told_by_its_ends_where_the_value_is_not_in_its_middle(
    low: float, high: float, note: str
) -> None:
    assert figure(100.0, "", Interval(value=0.0, low=low, high=high)).note == note


def test_under_the_same_load_both_are_as_the_search_measured_them(replay: Replay) -> None:
    """What was repeated in the final rounds must not be held against what was measured once."""
    run = replay()
    (model,) = run.models
    slower = tuple(
        replace(
            v, repetitions=tuple(changed(m, throughput_infer_per_s=m.throughput / 2) for m in v.repetitions)
        )
        if v.variant.is_default
        else v
        for v in model.variants
    )
    page = render(replace(run, models=(replace(model, variants=slower),)))
    text = " ".join(read(page).text.split())
    assert "under equal load, measured once each: +55% at concurrency 8" in text
    assert "+210" not in text


@pytest.mark.slow
def test_the_page_of_many_models_shows_of_each_what_there_is_room_for(replay: Replay) -> None:
    names = ["alexnet_config_default", *(f"alexnet_config_{i}" for i in range(5))]
    table = [
        measured(n, 2**k, 100.0 * (i + 1) * (k + 1) + k, 5.0 + k)
        for i, n in enumerate(names)
        for k in range(9)
    ]
    run = replay(table, concurrency=tuple(2**k for k in range(9)))
    models = tuple(replace(run.models[0], models=(f"m{i}",)) for i in range(15))
    page = render(replace(run, models=models))
    assert len(read(page).rows["model-0-measurements"]) == 1 + 600 // 15
    assert "The first 40 of 54 measurements; all of them are in the JSON of the run" in page
    assert re.search(r"the others \(the 40 of 4\d with the most throughput\)", page)
    alone = render(run)
    assert len(read(alone).rows["model-0-measurements"]) == 55
    assert "with the most throughput" not in alone


def test_what_the_run_is_not_sure_of_is_recommended_on_no_page(replay: Replay) -> None:
    """Without its final rounds the gain is the search's alone."""
    run = replay()
    (model,) = run.models
    unsure = replace(model, variants=tuple(replace(v, repetitions=()) for v in model.variants))
    badges = [
        block.badge
        for each in (model, unsure)
        for block in blocks_of(build_detail(view_of(replace(run, models=(each,))), "alexnet_config_4"))
        if isinstance(block, Statement)
    ]
    assert badges == ["Recommended", "Measured"]


def test_the_chart_tells_what_the_final_rounds_confirm_from_what_was_measured_once(replay: Replay) -> None:
    words = "Faint ones were measured once, by the search"
    page = render(replay())
    assert words in read(page).text
    svg = for_wide_screens(page)
    confirmed, once = re.findall(r'class="dot s0"[^>]*?(opacity="0.5")?><title>', svg), 'opacity="0.5"'
    assert 0 < confirmed.count(once) < len(confirmed)
    assert words not in read(render(replay(final_rounds=0))).text


def test_each_repeated_load_of_an_only_configuration_is_drawn_and_listed(replay: Replay) -> None:
    run = replay([measured("alexnet_config_default", 2**k, 100.0 * 2**k, 5.0) for k in range(3)])
    (model,) = run.models
    default = next(each for each in model.variants if each.variant.is_default)
    rounds = tuple(replace(m, round=n) for n in (1, 2) for m in default.measurements)
    only = replace(model, variants=(replace(default, repetitions=rounds),))
    page = render(replace(run, models=(only,)))
    dots = re.findall(r'class="dot s0"[^>]*?(opacity="0.5")?><title>', for_wide_screens(page))
    assert dots
    assert not any(dots)
    assert "Faint" not in read(page).text
    _, *rows = read(page).rows["model-0-repetitions"]
    assert sorted((row[0], row[2]) for row in rows) == sorted(
        (number, load) for number in ("1", "2") for load in ("1", "2", "4")
    )
