"""The options that say what is shown and written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpx.errors import UsageError
from tpx.options import Option
from tpx.perf.settings import refuse

_OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Files, and how much of it is told."""

    verbose: Annotated[
        int,
        Option(
            "show every window, and send and receive times apart; twice: tell on stderr what is asked of the "
            "server and answered, the requests, and each window when it ends",
            ("-v",),
            _OUTPUT,
            counted=True,
        ),
    ] = 0
    dry_run: Annotated[
        bool, Option("say what would be done, send one request, compare the shapes, and end", (), _OUTPUT)
    ] = False
    live: Annotated[
        bool, Option("show how it goes while it is measured, where stderr is a terminal", (), _OUTPUT)
    ] = True
    no_live: Annotated[bool, Option("nothing that moves, also on a terminal", (), _OUTPUT)] = False
    csv: Annotated[Path | None, Option("write perf_analyzer's CSV", ("-f",), _OUTPUT, "FILE")] = None
    verbose_csv: Annotated[bool, Option("further columns in the CSV", (), _OUTPUT)] = False
    profile_export_file: Annotated[
        Path | None,
        Option(
            "write every request with its inputs, outputs and times, for genai-perf; must not exist",
            (),
            _OUTPUT,
            "FILE",
        ),
    ] = None
    json: Annotated[Path | None, Option("write every level as JSON", (), _OUTPUT, "FILE")] = None
    jsonl: Annotated[Path | None, Option("write a line of JSON for every request", (), _OUTPUT, "FILE")] = (
        None
    )
    hdr_log: Annotated[
        Path | None, Option("write a HdrHistogram of each window as a log", (), _OUTPUT, "FILE")
    ] = None
    junit: Annotated[
        Path | None, Option("write a test case for every level and objective", (), _OUTPUT, "FILE")
    ] = None
    markdown: Annotated[Path | None, Option("write a summary for a CI job's page", (), _OUTPUT, "FILE")] = (
        None
    )
    html: Annotated[
        Path | None, Option("write a report with plots that needs no other file", (), _OUTPUT, "FILE")
    ] = None
    pdf: Annotated[Path | None, Option("write the same as PDF (tpx[report])", (), _OUTPUT, "FILE")] = None
    step_summary: Annotated[
        bool,
        Option("add the summary to $GITHUB_STEP_SUMMARY, the page of a GitHub job", (), _OUTPUT),
    ] = False

    @property
    def shows_live(self) -> bool:
        """Whether a terminal shows more than results."""
        return self.live and not self.no_live

    @property
    def files(self) -> tuple[tuple[str, Path], ...]:
        """What is written, by the flag that asks for it."""
        asked = (
            ("-f", self.csv),
            ("--profile-export-file", self.profile_export_file),
            ("--json", self.json),
            ("--jsonl", self.jsonl),
            ("--hdr-log", self.hdr_log),
            ("--junit", self.junit),
            ("--markdown", self.markdown),
            ("--html", self.html),
            ("--pdf", self.pdf),
        )
        return tuple((flag, path) for flag, path in asked if path is not None)

    def check_output(self) -> None:
        """Raise UsageError where a file cannot be written."""
        if self.profile_export_file is not None and self.profile_export_file.exists():
            refuse("--profile-export-file", "Path must not already exist.")
        seen: dict[Path, str] = {}
        for flag, path in self.files:
            place = path.absolute()
            if path.is_dir() or not place.parent.is_dir():
                raise UsageError(f"{flag} {path}: no file can be written there")
            if place in seen:
                raise UsageError(f"{flag} {path}: {seen[place]} writes the same file")
            seen[place] = flag
