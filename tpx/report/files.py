"""Writing the files of a report: each one or nothing of it, and one that fails costs no other."""

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tpx.errors import MeasurementError, TpxError

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file of a report: what people call it, its place (None where it is not wanted), what writes it."""

    label: str
    path: Path | None
    write: Callable[[Path], None]


def text_output(
    label: str, path: Path | None, text: Callable[[], str], *, parents: bool = False
) -> OutputFile:
    """Return an output whose text is made when it is written."""
    return OutputFile(label=label, path=path, write=lambda place: write_text(place, text(), parents=parents))


def write_each(outputs: Iterable[OutputFile]) -> tuple[tuple[str, Path], ...]:
    """Write the files that are wanted; return their labels and paths.

    Raises MeasurementError naming each that could not be written; the others are there.
    """
    written, problems = [], []
    for output in outputs:
        if output.path is None:
            continue
        try:
            output.write(output.path)
            written.append((output.label, output.path))
        except TpxError as exc:
            problems.append(str(exc))
    if problems:
        raise MeasurementError("; ".join(problems))
    return tuple(written)


def write_text(path: Path, text: str, *, parents: bool = False) -> None:
    """Write a file, with `parents` also the directories above it.

    Raises MeasurementError saying why it could not be written, and leaves no half of a new one.
    """
    fresh = not path.exists()
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        if fresh:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise MeasurementError(f"cannot write {path}: {exc.strerror}") from exc


def step_summary(path: Path | None, text: Callable[[], str]) -> OutputFile:
    """Return the output that adds Markdown to the page of a job, which other steps have written to."""

    def append(place: Path) -> None:
        try:
            with place.open("a", encoding="utf-8") as file:
                file.write(text())
        except OSError as exc:
            raise MeasurementError(f"cannot write {place}: {exc.strerror}") from exc

    return OutputFile(label="Step summary", path=path, write=append)


def step_summary_path() -> Path | None:
    """Return the Markdown file that GitHub shows beneath a job; None outside of a job."""
    path = os.environ.get(STEP_SUMMARY, "")
    return Path(path) if path else None


def json_text(document: object) -> str:
    """Return JSON for programs, indented; what is not a finite number is null."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
