"""The page that GitHub shows beneath a job: Markdown appended to a file which the environment names."""

import os
from pathlib import Path

from tpx.errors import MeasurementError

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def step_summary_path() -> Path | None:
    """Return the file of this job; None outside of a job."""
    path = os.environ.get(STEP_SUMMARY, "")
    return Path(path) if path else None


def append(path: Path, text: str) -> None:
    """Add to the file, which other steps have written to.

    Raises MeasurementError where it cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc
