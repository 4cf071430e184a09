"""Writing a report's files: each completely or not at all, and a failure does not affect the others."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tpx.errors import MeasurementError, TpxError

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """A file of a report: its label, its path (None if not requested), and the function that writes it."""

    label: str
    path: Path | None
    write: Callable[[Path], None]


def file_output(
    label: str, path: Path | None, content: Callable[[], str | bytes], *, parents: bool = False
) -> OutputFile:
    """Return an output whose content is generated when it is written; `parents` creates directories."""
    return OutputFile(
        label=label, path=path, write=lambda place: write_file(place, content(), parents=parents)
    )


def write_each(outputs: Iterable[OutputFile]) -> tuple[tuple[str, Path], ...]:
    """Write the requested files; return labels and paths. Raises MeasurementError naming what failed."""
    written, problems = [], []
    for each in outputs:
        if each.path is None:
            continue
        try:
            each.write(each.path)
            written.append((each.label, each.path))
        except TpxError as exc:
            problems.append(str(exc))
    if problems:
        raise MeasurementError("; ".join(problems))
    return tuple(written)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an OSError into a MeasurementError that names the file."""
    try:
        yield
    except OSError as exc:
        raise MeasurementError(f"cannot write {path}: {exc.strerror or exc}") from exc


def write_file(path: Path, content: str | bytes, *, parents: bool = False) -> None:
    """Write a file, whole or not at all if new. Raises MeasurementError; `parents` creates directories."""
    fresh = not path.exists()
    with writing(path):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        except OSError:
            if fresh:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            raise


def step_summary(path: Path | None, text: Callable[[], str]) -> OutputFile:
    """Return the output that appends Markdown to a job's page, which other steps also write to."""

    def append(place: Path) -> None:
        with writing(place), place.open("a", encoding="utf-8") as file:
            file.write(text())

    return OutputFile(label="Step summary", path=path, write=append)


def step_summary_path() -> Path | None:
    """Return the Markdown file that GitHub shows below a job; None outside of a job."""
    path = os.environ.get(STEP_SUMMARY, "")
    return Path(path) if path else None


def json_text(document: object) -> str:
    """Return indented JSON; numbers that are not finite become null."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
