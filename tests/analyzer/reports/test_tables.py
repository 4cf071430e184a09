"""Tables: Model Analyzer's columns, order and rounding, byte by byte."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.analyzer.measuring import changed, make_latency, make_measurement
from tpx.analyzer.reports.tables import (
    for_people,
    gpu_table,
    inference_table,
    server_table,
    tables_for_people,
    write_csv,
)
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.measurement import GpuUse, LoadPoint, Measurement, MemoryUse, ServerOnly
from tpx.analyzer.results.run import Run
from tpx.errors import MeasurementError
from tpx.report.text import Table

Replay = Callable[..., Run]


def measured(variant: str, throughput: float, p99_ms: float, *, gpu: bool = False) -> Measurement:
    return make_measurement(
        variant=variant,
        load=LoadPoint(value=4),
        throughput=throughput,
        latency=make_latency(p99_ns=round(p99_ms * 1e6)),
        memory=MemoryUse(rss_bytes=123_456_789, uss_bytes=98_765_432),
        gpus=(
            GpuUse(
                uuid="GPU-1",
                used_bytes=6_437_000_000,
                total_bytes=16 << 30,
                utilization_percent=31.66,
                power_w=70,
            ),
        )
        if gpu
        else (),
    )


@pytest.fixture
def two(replay: Replay) -> Run:
    table = [measured("alexnet_config_default", 100.06, 9.94), measured("alexnet_config_0", 250.0, 31.25)]
    return replay(table, concurrency=(4,), run_config_search_max_instance_count=1, latency_budget=20.0)


MEMORY = {"collect_cpu_metrics": True}
NAMES = {
    "filename_model_inference": "i.csv",
    "filename_model_gpu": "g.csv",
    "filename_server_only": "s.csv",
}


def test_the_inference_file_has_model_analyzers_bytes(two: Run, tmp_path: Path) -> None:
    write_csv(ReportView.of(two, NAMES), tmp_path / "csv")
    assert (tmp_path / "csv" / "i.csv").read_bytes() == (
        b"Model,Batch,Concurrency,Model Config Path,Instance Group,Max Batch Size,Satisfies Constraints,"
        b"Throughput (infer/sec),p99 Latency (ms)\n"
        b"alexnet,1,4,alexnet_config_default,1:GPU,0,Yes,100.1,9.94\n"
        b"alexnet,1,4,alexnet_config_0,1:GPU,0,No,250.0,31.2\n"
        b"\n"
    )


def test_without_a_gpu_its_files_hold_their_headers(two: Run, tmp_path: Path) -> None:
    write_csv(ReportView.of(two, NAMES), tmp_path)
    assert (tmp_path / "g.csv").read_text() == (
        "Model,GPU UUID,Batch,Concurrency,Model Config Path,Instance Group,Satisfies Constraints,"
        "GPU Memory Usage (MB),GPU Utilization (%),GPU Power Usage (W)\n\n"
    )
    assert (tmp_path / "s.csv").read_text() == (
        "Model,GPU UUID,GPU Memory Usage (MB),GPU Utilization (%),GPU Power Usage (W)\n\n"
    )


def test_every_gpu_of_every_measurement_has_a_row(replay: Replay) -> None:
    table = [measured(f"alexnet_config_{n}", 10.0, 1.0, gpu=True) for n in ("default", "0")]
    run = replay(table, concurrency=(4,), run_config_search_max_instance_count=1)
    rows = gpu_table(ReportView.of(run)).rows
    assert rows[0] == (
        "alexnet", "GPU-1", "1", "4", "alexnet_config_default", "1:GPU", "Yes", "6437.0", "31.7", "70.0",
    )  # fmt: skip
    assert len(rows) == 2


def test_the_servers_memory_is_a_column_on_demand(two: Run) -> None:
    table = inference_table(ReportView.of(two, MEMORY))
    assert table.headers[-1] == "RAM Usage (MB)"
    assert [row[-1] for row in table.rows] == ["98.8", "98.8"]


def test_the_server_without_models_is_named_as_model_analyzer_names_it(two: Run) -> None:
    server = ServerOnly(
        memory=MemoryUse(rss_bytes=50_000_000),
        gpus=(GpuUse(uuid="GPU-1", used_bytes=1_000_000, total_bytes=2_000_000),),
    )
    run = Run(started=two.started, models=(), server_only=server, outcome="complete", elapsed_ns=0)
    assert server_table(ReportView.of(run, MEMORY)).rows == (
        ("triton-server", "GPU-1", "1.0", "", "", "50.0"),
    )
    assert server_table(ReportView.of(run)).rows == (("triton-server", "GPU-1", "1.0", "", ""),)


def test_rows_go_from_the_best_configuration_to_the_worst_each_in_the_order_of_the_load(
    replay: Replay,
) -> None:
    rows = inference_table(ReportView.of(replay())).rows
    assert len(rows) == 41
    best = [row for row in rows if row[3] == "alexnet_config_4"]
    assert [row[2] for row in best] == ["1", "2", "4", "8", "16", "32", "64", "128"][: len(best)]
    assert rows[: len(best)] == tuple(best)
    assert next(row[-2:] for row in best if row[2] == "32") == ("1676.0", "22.3")
    assert list(dict.fromkeys(row[3] for row in rows)) == [
        "alexnet_config_4",
        "alexnet_config_3",
        "alexnet_config_2",
        "alexnet_config_1",
        "alexnet_config_default",
        "alexnet_config_0",
    ]


def test_console_columns_are_aligned(two: Run) -> None:
    lines = inference_table(ReportView.of(two)).to_console().splitlines()
    assert lines[0] == "Models (Inference):"
    assert lines[1].index("Concurrency") == lines[2].index("4 ")
    assert lines[1].index("Satisfies") == lines[2].index("Yes") == lines[3].index("No")


def test_a_directory_that_cannot_be_written_is_named(two: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MeasurementError, match="cannot write"):
        write_csv(ReportView.of(two, NAMES), tmp_path / "file")


def test_columns_are_those_that_were_asked_for(replay: Replay) -> None:
    table = [measured(f"alexnet_config_{n}", 10.0, 1.0, gpu=True) for n in ("default", "0")]
    run = replay(table, concurrency=(4,), run_config_search_max_instance_count=1, final_rounds=0)
    fields = ("model_config_path", "gpu_used_memory", "backend_parameter/threads", "perf_latency_p99")
    chosen = inference_table(ReportView.of(run, {"inference_output_fields": fields}))
    assert chosen.headers == (
        "Model Config Path", "GPU Memory Usage (MB)", "backend_parameter/threads", "p99 Latency (ms)",
    )  # fmt: skip
    assert chosen.rows[0] == ("alexnet_config_default", "6437.0", "", "1.0")
    gpus = gpu_table(ReportView.of(run, {"gpu_output_fields": ("gpu_uuid", "gpu_total_memory")}))
    assert gpus.headers == ("GPU UUID", "GPU Memory Available (MB)")
    assert gpus.rows[0] == ("GPU-1", "17179.9")
    server = ServerOnly(gpus=(GpuUse(uuid="GPU-1", used_bytes=1_000_000, total_bytes=2_000_000),))
    alone = Run(started=run.started, models=(), server_only=server, outcome="complete", elapsed_ns=0)
    assert server_table(ReportView.of(alone, {"server_output_fields": ("gpu_used_memory",)})).rows == (
        ("1.0",),
    )


def test_cells_of_models_measured_together_have_the_whole_and_each_share(replay: Replay) -> None:
    run = replay(concurrency=(4,), run_config_search_max_instance_count=1, final_rounds=0)
    [model] = run.models
    first = model.variants[0]
    loads = (LoadPoint(value=4, batch_size=1), LoadPoint(value=8, batch_size=2))
    members = tuple(
        make_measurement(
            variant=f"{name}_config_0", load=load, throughput=rate, latency=make_latency(p99_ns=p99_ns)
        )
        for name, load, rate, p99_ns in (
            ("a", loads[0], 184.5, 23_900_000),
            ("b", loads[1], 236.5, 17_400_000),
        )
    )
    whole = make_measurement(
        variant="x",
        load=LoadPoint(value=12, members=loads),
        throughput=421.0,
        latency=make_latency(p99_ns=20_650_000),
        members=members,
    )
    configurations = tuple(
        replace(first.configuration, instance_group=group, max_batch_size=batch)
        for group, batch in (("1:GPU", 8), ("2:GPU", 4))
    )
    both = replace(
        first,
        configuration=replace(first.configuration, members=configurations),
        measurements=(whole,),
        repetitions=(),
    )
    together = replace(run, models=(replace(model, variants=(both,)),))
    [row] = inference_table(ReportView.of(together)).rows
    assert row[1:3] == ("1,2", "4,8")
    assert row[4:6] == ("1:GPU,2:GPU", "8,4")
    assert row[7:] == ("421.0, [184.5,236.5]", "20.6, [23.9,17.4]")


def test_loads_of_requests_a_second_have_their_own_column(replay: Replay) -> None:
    run = replay(concurrency=(4,), run_config_search_max_instance_count=1, final_rounds=0)
    [model] = run.models
    rated = [
        replace(
            v,
            measurements=tuple(
                replace(m, load=LoadPoint(value=100, kind="request_rate")) for m in v.measurements
            ),
        )
        for v in model.variants
    ]
    table = inference_table(ReportView.of(replace(run, models=(replace(model, variants=tuple(rated)),))))
    assert table.headers[2] == "Request Rate"
    assert table.rows[0][2] == "100"


def test_on_a_narrow_terminal_a_table_says_once_what_is_the_same_in_every_row(two: Run) -> None:
    table = inference_table(ReportView.of(two))
    assert table.to_console(200) == table.to_console()
    lines = for_people(table).to_console(80).splitlines()
    assert lines == [
        "Models (Inference), all with Model alexnet, Batch 1, Concurrency 4, Instance",
        "Group 1:GPU, Max Batch Size 0:",
        "Model Config Path       Satisfies    Throughput   p99",
        "                        Constraints  (infer/sec)  Latency",
        "                                                  (ms)",
        "alexnet_config_default  Yes          100          9.94",
        "alexnet_config_0        No           250          31.2",
    ]


def test_a_terminal_shows_the_digits_of_the_reports_and_the_file_no_fewer() -> None:
    table = Table(
        title="t",
        headers=("Model v1.25", "Throughput (infer/sec)", "p99 Latency (ms)"),
        rows=(("m_1.25", "16283.1", "0.379"), ("a,b", "421.0, [184.5,236.5]", "")),
    )
    assert for_people(table).rows == (("m_1.25", "16,300", "0.379"), ("a,b", "421, [184,236]", ""))


def test_a_figure_that_no_row_has_is_not_among_what_they_share(two: Run) -> None:
    table = inference_table(ReportView.of(two, MEMORY))
    unseen = replace(table, rows=tuple((*row[:-1], "") for row in table.rows))
    assert "RAM Usage (MB) 98.8" in " ".join(table.to_console(80).split())
    assert "RAM" not in unseen.to_console(80)


def test_a_server_of_which_nothing_is_known_has_no_row(two: Run) -> None:
    unseen = replace(two, server_only=ServerOnly())
    assert server_table(ReportView.of(unseen, MEMORY)).rows == ()


def test_rows_for_people_say_how_often_they_were_measured_and_what_was_not_stable(replay: Replay) -> None:
    """Those of files stay Model Analyzer's."""
    run = replay()
    (model,) = run.models
    shaky = tuple(
        replace(v, measurements=tuple(changed(m, stable=m.load.value != 1) for m in v.measurements))
        for v in model.variants
    )
    view = ReportView.of(replace(run, models=(replace(model, variants=shaky),)), NAMES)
    table, *_ = tables_for_people(view)
    path, load = (table.headers.index(name) for name in ("Model Config Path", "Concurrency"))
    told = {(row[path], row[load]): row[-1] for row in table.rows}
    assert told["alexnet_config_4", "32"] == "6 times, best load"
    assert told["alexnet_config_4", "16"] == "once"
    assert told["alexnet_config_4", "1"] == "once, unstable"
    assert "Measured" not in inference_table(ReportView.of(run)).headers
