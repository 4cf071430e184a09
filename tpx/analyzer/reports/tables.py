"""The three tables of a run, with Model Analyzer's columns, order and rounding, for console and CSV."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpx.analyzer.metrics import BACKEND_PARAMETER, BYTES_PER_MB, COLUMNS, METRICS, MeasuredMetric, ram_mb
from tpx.analyzer.objectives import RankedVariant, rank
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.measurement import (
    Configuration,
    GpuUse,
    LoadPoint,
    Measurement,
    Models,
    group_name,
)
from tpx.analyzer.results.pooled import Mean
from tpx.analyzer.results.run import Run
from tpx.protocol import model_config
from tpx.report.digits import rounded
from tpx.report.files import write_text
from tpx.report.text import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasurementRow:
    models: Models
    ranked: RankedVariant
    measurement: Measurement
    passes: bool
    gpu: GpuUse | None = None


def inference_table(
    run: Run, *, with_memory: bool, fields: Sequence[str] = (), marked: bool = False
) -> Table:
    """Return every measurement, best configuration first, each by load; `fields` replace the default columns.

    `marked` adds how often each was measured, whether it was stable, and each configuration's best load.
    """
    rows = list(_iter_rows(run))
    tags = tuple(fields) or (
        *("model_name", "batch_size", _choose_load_tag(rows), "model_config_path", "instance_group"),
        *("max_batch_size", "satisfies_constraints", "perf_throughput", "perf_latency_p99"),
        *(tag for tag in _TOKENS if any(METRICS[tag].value(r.measurement) is not None for r in rows)),
        *(("cpu_used_ram",) if with_memory else ()),
    )
    return _build_table("Models (Inference)", rows, (*tags, *((_MEASURED,) if marked else ())))


def gpu_table(view: ReportView, fields: Sequence[str] = ()) -> Table:
    """Return every measurement on every GPU; no rows without a readable GPU, or for CPU-only models."""
    plain = list(_iter_rows(view.run))
    rows = [replace(r, gpu=gpu) for r in plain if view.shows_gpus(r.models) for gpu in r.measurement.gpus]
    tags = tuple(fields) or (
        *("model_name", "gpu_uuid", "batch_size", _choose_load_tag(plain), "model_config_path"),
        *("instance_group", "satisfies_constraints", *_GPU),
    )
    return _build_table("Models (GPU Metrics)", rows, tags)


def server_table(run: Run, *, with_memory: bool, fields: Sequence[str] = ()) -> Table:
    """Return the server without models, one row per GPU; `with_memory` adds its RAM, even without a GPU."""
    tags = tuple(fields) or ("model_name", "gpu_uuid", *_GPU, *(("cpu_used_ram",) if with_memory else ()))
    server = run.server_only
    gpus: tuple[GpuUse | None, ...] = server.gpus if server else ()
    ram = "" if server is None else _format_rounded(ram_mb(server.memory))
    if ram and not gpus and "cpu_used_ram" in tags:
        gpus = (None,)
    return Table(
        title="Server Only",
        headers=tuple(_find_header(tag) for tag in tags),
        rows=tuple(tuple(_format_server_cell(tag, gpu, ram) for tag in tags) for gpu in gpus),
    )


def _build_table(title: str, rows: Sequence[_MeasurementRow], tags: Sequence[str]) -> Table:
    return Table(
        title=title,
        headers=tuple(_find_header(tag) for tag in tags),
        rows=tuple(tuple(_format_cell(tag, row) for tag in tags) for row in rows),
        minor=frozenset({tags.index("model_name")} if {"model_name", "model_config_path"} <= {*tags} else ()),
    )


def _format_cell(tag: str, row: _MeasurementRow) -> str:
    if tag.startswith(BACKEND_PARAMETER):
        own, key = row.ranked.run.configuration, tag.removeprefix(BACKEND_PARAMETER)
        parameters = model_config.parse(own.text, own.variant.name).parameters
        return str(parameters[key].string_value) if key in parameters else ""
    if tag in _CELLS:
        return _CELLS[tag](row)
    return _format_gpu_cell(tag, row) if tag in _GPU_VALUES else _format_figure(METRICS[tag], row.measurement)


def _format_figure(measured: MeasuredMetric, measurement: Measurement) -> str:
    """Return the total, and the share of each of several models: `421.0, [184.5,236.5]`."""
    total = _format_rounded(measured.value(measurement))
    each = [_format_rounded(measured.value(member)) for member in measurement.members]
    return f"{total}, [{','.join(each)}]" if any(each) else total


def _is_ensemble(configuration: Configuration) -> bool:
    """Return True if only its members compute; business-logic models compute as well."""
    parsed = model_config.parse(configuration.text, configuration.variant.name)
    return bool(parsed.HasField("ensemble_scheduling"))


def _join_values(row: _MeasurementRow, value: Callable[[Configuration], object]) -> str:
    """Return the value of the configuration, or those of models measured together or in an ensemble."""
    configuration = row.ranked.run.configuration
    apart = configuration.members and (row.measurement.members or _is_ensemble(configuration))
    return ",".join(str(value(one)) for one in (configuration.members if apart else (configuration,)))


def _format_names(row: _MeasurementRow) -> str:
    """Return the variant's name; `a_config_5,b_config_4`; `e_config_1: a_config_0, ...` of an ensemble."""
    configuration = row.ranked.run.configuration
    members = [member.variant.name for member in configuration.members]
    if row.measurement.members:
        return ",".join(members)
    if members and _is_ensemble(configuration):
        return f"{row.ranked.name}: {', '.join(members)}"
    return row.ranked.name


def _list_loads(row: _MeasurementRow) -> Sequence[LoadPoint]:
    load = row.measurement.load
    return load.members or (load,)


_MEASURED = "Measured"
"""A column in addition to Model Analyzer's; its own header."""


def _describe_certainty(row: _MeasurementRow) -> str:
    """Return `6 times`, `once`, `once, unstable`, and `6 times, best load`."""
    point = row.measurement
    times = f"{len(point.samples)} times" if isinstance(point, Mean) else "once"
    best = point is row.ranked.figures and len(row.ranked.ordered) > 1
    return times + ("" if point.stable else ", unstable") + (", best load" if best else "")


_CELLS: Mapping[str, Callable[[_MeasurementRow], str]] = {
    "model_name": lambda r: group_name(r.models),
    "gpu_uuid": lambda r: r.gpu.uuid if r.gpu else "",
    "batch_size": lambda r: ",".join(str(load.batch_size) for load in _list_loads(r)),
    "concurrency": lambda r: ",".join(str(p.value) for p in _list_loads(r) if p.kind == "concurrency"),
    "request_rate": lambda r: ",".join(str(p.value) for p in _list_loads(r) if p.kind == "request_rate"),
    "model_config_path": _format_names,
    # the model's own instances, without those of the models that business logic calls
    "instance_group": lambda r: _join_values(r, lambda one: one.instance_group.partition("; ")[0]),
    "max_batch_size": lambda r: _join_values(r, lambda one: one.max_batch_size),
    "satisfies_constraints": lambda r: "Yes" if r.passes else "No",
    _MEASURED: _describe_certainty,
}
_GPU = ("gpu_used_memory", "gpu_utilization", "gpu_power_usage")
_GPU_VALUES: Mapping[str, Callable[[GpuUse], float | None]] = {
    "gpu_used_memory": lambda gpu: gpu.used_bytes / BYTES_PER_MB,
    "gpu_free_memory": lambda gpu: (gpu.total_bytes - gpu.used_bytes) / BYTES_PER_MB,
    "gpu_total_memory": lambda gpu: gpu.total_bytes / BYTES_PER_MB,
    "gpu_utilization": lambda gpu: gpu.utilization_percent,
    "gpu_power_usage": lambda gpu: gpu.power_w,
}
_DECIMAL = re.compile(r"\d+\.\d+")
_TOKENS = (
    *("inter_token_latency_p99", "time_to_first_token_p99", "output_token_throughput"),
    *("output_token_throughput_per_user", "goodput"),
)
_SERVER = "triton-server"


def _format_gpu_cell(tag: str, row: _MeasurementRow) -> str:
    """Return the figure of the row's GPU; without one, memory is summed over all GPUs, the rest averaged."""
    gpus = row.measurement.gpus if row.gpu is None else (row.gpu,)
    known = [value for gpu in gpus if (value := _GPU_VALUES[tag](gpu)) is not None]
    if not known:
        return ""
    return _format_rounded(sum(known) if tag.endswith("_memory") else sum(known) / len(known))


def _format_server_cell(tag: str, gpu: GpuUse | None, ram: str) -> str:
    if tag == "model_name":
        return _SERVER
    if tag == "gpu_uuid":
        return gpu.uuid if gpu else ""
    if tag == "cpu_used_ram":
        return ram
    return _format_rounded(_GPU_VALUES[tag](gpu)) if gpu and tag in _GPU_VALUES else ""


def _find_header(tag: str) -> str:
    return METRICS[tag].header if tag in METRICS else COLUMNS.get(tag, tag)


def _choose_load_tag(rows: Sequence[_MeasurementRow]) -> str:
    """Return the load column: request_rate if all loads are request rates, otherwise concurrency."""
    loads = [load for row in rows for load in _list_loads(row)]
    return "request_rate" if loads and all(load.kind == "request_rate" for load in loads) else "concurrency"


def _iter_rows(run: Run) -> Iterator[_MeasurementRow]:
    goals = run.started.goals
    for model in run.models:
        for ranked in rank(model, goals):
            for measurement in ranked.by_load:
                passes = measurement in ranked.passing
                yield _MeasurementRow(
                    models=model.models, ranked=ranked, measurement=measurement, passes=passes
                )


def _format_rounded(value: float | None) -> str:
    """Return a figure with Model Analyzer's one decimal; below 10, with two or, below 1, four."""
    if value is None:
        return ""
    return str(round(float(value), 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 4))


def tables_for_people(view: ReportView) -> tuple[Table, ...]:
    """Return the tables with marked rows, and their figures rounded as in all reports for people."""
    return tuple(map(for_people, tables_of(view, marked=True).values()))


def for_people(table: Table) -> Table:
    """Return the table with its figures rounded."""
    figures = [header.endswith(")") for header in table.headers]

    def cell(text: str, *, figure: bool) -> str:
        return _DECIMAL.sub(lambda found: rounded(float(found[0])), text) if figure else text

    rows = (tuple(cell(t, figure=f) for t, f in zip(row, figures, strict=True)) for row in table.rows)
    return replace(table, rows=tuple(rows))


def tables_of(view: ReportView, *, marked: bool = False) -> Mapping[str, Table]:
    """Return the tables of inference, GPUs and the server without models, by the names of their CSV files."""
    run, settings = view.run, view.settings
    memory = bool(settings.get("collect_cpu_metrics", False))
    inference, gpu, server = (
        tuple(settings.get(f"{kind}_output_fields", ())) for kind in ("inference", "gpu", "server")
    )
    tables = {
        "model-inference": inference_table(run, with_memory=memory, fields=inference, marked=marked),
        "model-gpu": gpu_table(view, gpu),
        "server-only": server_table(run, with_memory=memory, fields=server),
    }
    names = {kind: f"filename_{kind.replace('-', '_')}" for kind in tables}
    return {str(settings.get(names[kind], f"metrics-{kind}.csv")): table for kind, table in tables.items()}


def write_csv(view: ReportView, directory: Path) -> tuple[Path, ...]:
    """Write the three CSV files, each with Model Analyzer's empty line at its end."""
    tables = tables_of(view)
    for name, table in tables.items():
        write_text(directory / name, table.to_csv() + "\n", parents=True)
    return tuple(directory / name for name in tables)
