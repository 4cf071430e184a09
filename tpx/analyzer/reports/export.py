"""Every file of a run, written from the run alone."""

from dataclasses import dataclass
from pathlib import Path

from tpx.analyzer.reports.tables import gpu_table, inference_table, server_table
from tpx.analyzer.results.run import Run
from tpx.errors import MeasurementError


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFiles:
    """Where the three tables go."""

    directory: Path
    inference: str
    gpu: str
    server_only: str
    with_memory: bool
    """Whether the server's RAM is a column."""


def write_csv(run: Run, files: CsvFiles) -> tuple[Path, ...]:
    """The three CSV files; without a GPU those about GPUs hold their header only.

    Raises MeasurementError when one cannot be written.
    """
    tables = {
        files.inference: inference_table(run, with_memory=files.with_memory),
        files.gpu: gpu_table(run),
        files.server_only: server_table(run, with_memory=files.with_memory),
    }
    written = []
    for name, table in tables.items():
        path = files.directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(table.to_csv(), encoding="utf-8")
        except OSError as exc:
            raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc
        written.append(path)
    return tuple(written)
