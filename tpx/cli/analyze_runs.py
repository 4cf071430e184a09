"""Shared by the commands of `tpx analyze`: options with warnings, the location of a run, its reports."""

from collections.abc import Sequence
from pathlib import Path

from tpx.analyzer.options import ProfileSpec, read_options
from tpx.analyzer.options.output import JOURNAL
from tpx.analyzer.verdict import plural
from tpx.cli.messages import complain
from tpx.errors import UsageError


def read_with_warnings(argv: Sequence[str]) -> ProfileSpec:
    """Return the options of a run; warn on stderr of each that has no effect."""
    config = read_options(argv)
    for line in config.warnings:
        complain(f"warning: {line}")
    return config


def journal_of(path: Path) -> Path:
    """Return the run.jsonl of a path: itself, or in its directory, or in results below an export path."""
    places = (path, path / JOURNAL, path / "results" / JOURNAL, path / "checkpoints" / JOURNAL)
    for place in places:
        if place.is_file():
            return place
    raise UsageError(
        f"{path}: no run here, neither {JOURNAL} nor results/{JOURNAL}: name the --export-path of "
        "`tpx analyze profile`, or the journal itself"
    )


def show_written(written: Sequence[tuple[str, Path]]) -> None:
    """Print a line per report; of reports of single configurations only their number and directory."""
    details = [path for label, path in written if label == "Details"]
    for label, path in written:
        if label != "Details":
            print(f"{label}: {path}")
    if details:
        print(f"Details: {details[0].parent.parent} ({plural(len(details), 'configuration')})")
