"""Every file of a run, written from the run alone."""

from dataclasses import dataclass
from pathlib import Path

from tpx.analyzer.reports.manner import Manner
from tpx.analyzer.reports.tables import Table, gpu_table, inference_table, server_table
from tpx.analyzer.results.run import Run
from tpx.report.files import write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFiles:
    """Where the three tables go."""

    directory: Path
    inference: str
    gpu: str
    server_only: str
    with_memory: bool
    """Whether the server's RAM is a column."""
    inference_fields: tuple[str, ...] = ()
    """Tags of other columns than the default ones, of each table."""
    gpu_fields: tuple[str, ...] = ()
    server_fields: tuple[str, ...] = ()
    manner: Manner | None = None
    """None is as the run says itself."""


def tables_of(run: Run, files: CsvFiles) -> tuple[Table, Table, Table]:
    """Of inferences, of GPUs, of the bare server; what the files hold and the console shows."""
    memory = files.with_memory
    return (
        inference_table(run, with_memory=memory, fields=files.inference_fields),
        gpu_table(run, files.gpu_fields, files.manner),
        server_table(run, with_memory=memory, fields=files.server_fields),
    )


def write_csv(run: Run, files: CsvFiles) -> tuple[Path, ...]:
    """The three CSV files; without a GPU those about GPUs hold their header only.

    Raises MeasurementError when one cannot be written.
    """
    names = (files.inference, files.gpu, files.server_only)
    tables = dict(zip(names, tables_of(run, files), strict=True))
    for name, table in tables.items():
        write_text(files.directory / name, table.to_csv(), parents=True)
    return tuple(files.directory / name for name in tables)
