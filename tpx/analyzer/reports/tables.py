"""The three tables of a run, with Model Analyzer's columns, order and rounding, for console and CSV."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tpx.analyzer.metrics import BACKEND_PARAMETER, BYTES_PER_MB, COLUMNS, METRICS, ram_mb
from tpx.analyzer.reports.view import ReportView, TableLine
from tpx.analyzer.results.measurement import Configuration, GpuUse, LoadPoint, group_name
from tpx.analyzer.results.pooled import Mean
from tpx.protocol import model_config
from tpx.report.digits import rounded
from tpx.report.files import write_file
from tpx.report.text import Table


def inference_table(view: ReportView, *, marked: bool = False) -> Table:
    """Return every measurement, best configuration first, each by load.

    `marked` adds how often each was measured, whether it was stable, and each configuration's best load.
    """
    lines = list(_iter_lines(view))
    tags = view.fields("inference") or (
        *("model_name", "batch_size", _choose_load_tag(lines), "model_config_path", "instance_group"),
        *("max_batch_size", "satisfies_constraints", "perf_throughput", "perf_latency_p99"),
        *(tag for tag in _TOKENS if any(METRICS[tag].value(r.measurement) is not None for r in lines)),
        *(("cpu_used_ram",) if view.collects_memory else ()),
    )
    return _build_table("Models (Inference)", lines, (*tags, *((_MEASURED,) if marked else ())))


def gpu_table(view: ReportView) -> Table:
    """Return every measurement on every GPU; no rows without a readable GPU, or for CPU-only models."""
    plain = list(_iter_lines(view))
    lines = [replace(r, gpu=gpu) for r in plain if r.view.gpus for gpu in r.measurement.gpus]
    tags = view.fields("gpu") or (
        *("model_name", "gpu_uuid", "batch_size", _choose_load_tag(plain), "model_config_path"),
        *("instance_group", "satisfies_constraints", *_GPU),
    )
    return _build_table("Models (GPU Metrics)", lines, tags)


def server_table(view: ReportView) -> Table:
    """Return the server without models, one row per GPU; its RAM is collected even without a GPU."""
    memory = ("cpu_used_ram",) if view.collects_memory else ()
    tags = view.fields("server") or ("model_name", "gpu_uuid", *_GPU, *memory)
    server = view.run.server_only
    gpus: tuple[GpuUse | None, ...] = server.gpus if server else ()
    ram = "" if server is None else _format_rounded(ram_mb(server.memory))
    if ram and not gpus and "cpu_used_ram" in tags:
        gpus = (None,)
    return Table(
        title="Server Only",
        headers=tuple(map(_find_header, tags)),
        rows=tuple(tuple(_format_server_cell(tag, gpu, ram) for tag in tags) for gpu in gpus),
    )


def _iter_lines(view: ReportView) -> Iterator[TableLine]:
    for model in view.models:
        for ranked in model.verdict.ranking:
            for measurement in ranked.by_load:
                yield TableLine(view=model, ranked=ranked, measurement=measurement)


def _build_table(title: str, lines: Sequence[TableLine], tags: Sequence[str]) -> Table:
    return Table(
        title=title,
        headers=tuple(map(_find_header, tags)),
        rows=tuple(tuple(_format_cell(tag, line) for tag in tags) for line in lines),
        minor=frozenset({tags.index("model_name")} if {"model_name", "model_config_path"} <= {*tags} else ()),
    )


def _format_cell(tag: str, line: TableLine) -> str:
    if tag.startswith(BACKEND_PARAMETER):
        own, key = line.ranked.run.configuration, tag.removeprefix(BACKEND_PARAMETER)
        parameters = model_config.parse(own.text, own.variant.name).parameters
        return str(parameters[key].string_value) if key in parameters else ""
    if tag in _CELLS:
        return _CELLS[tag](line)
    if tag in _GPU_VALUES:
        return _format_gpu_cell(tag, line)
    total, *each = (
        _format_rounded(METRICS[tag].value(m)) for m in (line.measurement, *line.measurement.members)
    )
    # the share of each of several models: `421.0, [184.5,236.5]`
    return f"{total}, [{','.join(each)}]" if any(each) else total


def _is_ensemble(configuration: Configuration) -> bool:
    """Return True if only its members compute; business-logic models compute as well."""
    parsed = model_config.parse(configuration.text, configuration.variant.name)
    return bool(parsed.HasField("ensemble_scheduling"))


def _join_values(line: TableLine, value: Callable[[Configuration], object]) -> str:
    """Return the value of the configuration, or those of models measured together or in an ensemble."""
    configuration = line.ranked.run.configuration
    apart = configuration.members and (line.measurement.members or _is_ensemble(configuration))
    return ",".join(str(value(one)) for one in (configuration.members if apart else (configuration,)))


def _format_names(line: TableLine) -> str:
    """Return the variant's name; `a_config_5,b_config_4`; `e_config_1: a_config_0, ...` of an ensemble."""
    configuration = line.ranked.run.configuration
    members = [member.variant.name for member in configuration.members]
    if line.measurement.members:
        return ",".join(members)
    if members and _is_ensemble(configuration):
        return f"{line.ranked.name}: {', '.join(members)}"
    return line.ranked.name


def _list_loads(line: TableLine) -> Sequence[LoadPoint]:
    load = line.measurement.load
    return load.members or (load,)


_MEASURED = "Measured"
"""A column in addition to Model Analyzer's; its own header."""


def _describe_certainty(line: TableLine) -> str:
    """Return `6 times`, `once`, `once, unstable`, and `6 times, best load`."""
    point = line.measurement
    times = f"{len(point.samples)} times" if isinstance(point, Mean) else "once"
    best = point is line.ranked.figures and len(line.ranked.ordered) > 1
    return times + ("" if point.stable else ", unstable") + (", best load" if best else "")


_CELLS: Mapping[str, Callable[[TableLine], str]] = {
    "model_name": lambda r: group_name(r.view.verdict.run.models),
    "gpu_uuid": lambda r: r.gpu.uuid if r.gpu else "",
    "batch_size": lambda r: ",".join(str(load.batch_size) for load in _list_loads(r)),
    "concurrency": lambda r: ",".join(str(p.value) for p in _list_loads(r) if p.kind == "concurrency"),
    "request_rate": lambda r: ",".join(str(p.value) for p in _list_loads(r) if p.kind == "request_rate"),
    "model_config_path": _format_names,
    # the model's own instances, without those of the models that business logic calls
    "instance_group": lambda r: _join_values(r, lambda one: one.instance_group.partition("; ")[0]),
    "max_batch_size": lambda r: _join_values(r, lambda one: one.max_batch_size),
    "satisfies_constraints": lambda r: "Yes" if r.measurement in r.ranked.passing else "No",
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


def _format_gpu_cell(tag: str, line: TableLine) -> str:
    """Return the figure of the row's GPU; without one, memory is summed over all GPUs, the rest averaged."""
    gpus = line.measurement.gpus if line.gpu is None else (line.gpu,)
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


def _choose_load_tag(lines: Sequence[TableLine]) -> str:
    """Return the load column: request_rate if all loads are request rates, otherwise concurrency."""
    kinds = {load.kind for line in lines for load in _list_loads(line)}
    return "request_rate" if kinds == {"request_rate"} else "concurrency"


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
    tables = {
        "model-inference": inference_table(view, marked=marked),
        "model-gpu": gpu_table(view),
        "server-only": server_table(view),
    }
    names = {kind: f"filename_{kind.replace('-', '_')}" for kind in tables}
    return {
        str(view.settings.get(names[kind], f"metrics-{kind}.csv")): table for kind, table in tables.items()
    }


def write_csv(view: ReportView, directory: Path) -> tuple[Path, ...]:
    """Write the three CSV files, each with Model Analyzer's empty line at its end."""
    tables = tables_of(view)
    for name, table in tables.items():
        write_file(directory / name, table.to_csv() + "\n", parents=True)
    return tuple(directory / name for name in tables)
