"""The options that say what is shown and written."""

from dataclasses import dataclass
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import option, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """Files, and how much of it is told."""

    verbose: int = option(
        0,
        "show every window, and send and receive times apart; twice: tell on stderr what is asked of the "
        "server and answered, the requests, and each window when it ends",
        "-v",
        counted=True,
    )
    dry_run: bool = option(False, "say what would be done, send one request, compare the shapes, and end")
    live: bool = option(True, "show how it goes while it is measured, where stderr is a terminal")
    no_live: bool = option(False, "nothing that moves, also on a terminal")
    csv: Path | None = option(None, "write perf_analyzer's CSV", "-f", metavar="FILE")
    verbose_csv: bool = option(False, "further columns in the CSV")
    profile_export_file: Path | None = option(
        None,
        "write every request with its inputs, outputs and times, for genai-perf; must not exist",
        metavar="FILE",
    )
    json: Path | None = option(None, "write every level as JSON", metavar="FILE")
    jsonl: Path | None = option(None, "write a line of JSON for every request", metavar="FILE")
    hdr_log: Path | None = option(None, "write a HdrHistogram of each window as a log", metavar="FILE")
    junit: Path | None = option(None, "write a test case for every level and objective", metavar="FILE")
    markdown: Path | None = option(None, "write a summary for a CI job's page", metavar="FILE")
    html: Path | None = option(None, "write a report with plots that needs no other file", metavar="FILE")
    pdf: Path | None = option(None, "write the same as PDF (tpx[report])", metavar="FILE")
    step_summary: bool = option(False, "add the summary to $GITHUB_STEP_SUMMARY, the page of a GitHub job")

    def __post_init__(self) -> None:
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
