"""Where the commands that read a run find it."""

from pathlib import Path

from tpx.analyzer.options.output import JOURNAL
from tpx.errors import UsageError


def journal_of(path: Path) -> Path:
    """The run.jsonl that a path means: itself, its directory, or the export path above its results."""
    places = (path, path / JOURNAL, path / "results" / JOURNAL, path / "checkpoints" / JOURNAL)
    for place in places:
        if place.is_file():
            return place
    raise UsageError(f"{path}: no run here: expected {JOURNAL}, results/{JOURNAL} or the file itself")
