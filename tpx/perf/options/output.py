"""The options that say what is shown and written."""

from dataclasses import dataclass
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.settings import refuse

_OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Files, and how much of it is told."""

    verbose: int = option(
        0,
        "show every window, and send and receive times apart; twice: tell on stderr what is asked of the "
        "server and answered, the requests, and each window when it ends",
        "-v",
        section=_OUTPUT,
        counted=True,
    )
    dry_run: bool = option(
        False, "say what would be done, send one request, compare the shapes, and end", section=_OUTPUT
    )
    live: bool = option(
        True, "show how it goes while it is measured, where stderr is a terminal", section=_OUTPUT
    )
    no_live: bool = option(False, "nothing that moves, also on a terminal", section=_OUTPUT)
    csv: Path | None = option(None, "write perf_analyzer's CSV", "-f", section=_OUTPUT, metavar="FILE")
    verbose_csv: bool = option(False, "further columns in the CSV", section=_OUTPUT)
    profile_export_file: Path | None = option(
        None,
        "write every request with its inputs, outputs and times, for genai-perf; must not exist",
        section=_OUTPUT,
        metavar="FILE",
    )
    json: Path | None = option(None, "write every level as JSON", section=_OUTPUT, metavar="FILE")
    jsonl: Path | None = option(
        None, "write a line of JSON for every request", section=_OUTPUT, metavar="FILE"
    )
    hdr_log: Path | None = option(
        None, "write a HdrHistogram of each window as a log", section=_OUTPUT, metavar="FILE"
    )
    junit: Path | None = option(
        None, "write a test case for every level and objective", section=_OUTPUT, metavar="FILE"
    )
    markdown: Path | None = option(
        None, "write a summary for a CI job's page", section=_OUTPUT, metavar="FILE"
    )
    html: Path | None = option(
        None, "write a report with plots that needs no other file", section=_OUTPUT, metavar="FILE"
    )
    pdf: Path | None = option(None, "write the same as PDF (tpx[report])", section=_OUTPUT, metavar="FILE")
    step_summary: bool = option(
        False, "add the summary to $GITHUB_STEP_SUMMARY, the page of a GitHub job", section=_OUTPUT
    )

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
