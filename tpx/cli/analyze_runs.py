"""Shared parts of the commands of `tpx analyze`: options with their warnings, the place of a run, its
reports."""

from collections.abc import Sequence
from pathlib import Path

from tpx.analyzer.options import ProfileSpec, read_options
from tpx.analyzer.options.output import JOURNAL
from tpx.analyzer.verdict import plural
from tpx.cli.messages import complain
from tpx.errors import UsageError


def read_with_warnings(argv: Sequence[str]) -> ProfileSpec:
    """The options of a run, once stderr has a line for each that changes nothing."""
    config = read_options(argv)
    for line in config.warnings:
        complain(f"warning: {line}")
    return config


def journal_of(path: Path) -> Path:
    """The run.jsonl that a path means: itself, its directory, or the export path above its results."""
    places = (path, path / JOURNAL, path / "results" / JOURNAL, path / "checkpoints" / JOURNAL)
    for place in places:
        if place.is_file():
            return place
    raise UsageError(f"{path}: no run here: expected {JOURNAL}, results/{JOURNAL} or the file itself")


def show_written(written: Sequence[tuple[str, Path]]) -> None:
    """A line for each report; of single configurations how many there are, and where."""
    details = [path for label, path in written if label == "Details"]
    for label, path in written:
        if label != "Details":
            print(f"{label}: {path}")
    if details:
        print(f"Details: {details[0].parent.parent} ({plural(len(details), 'configuration')})")
