"""`tpx analyze`: tables and the verdict on stdout, progress on stderr."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.measuring import Gate
from tpx.analyzer.profile import Event, ModelPlanned, ModelStarted, Remark, TrialEnded, TrialStarted
from tpx.analyzer.reports.files import write_reports
from tpx.analyzer.reports.tables import tables_for_people, write_csv
from tpx.analyzer.reports.view import ReportView
from tpx.analyzer.results.journal import holds_run, read_last_run
from tpx.analyzer.results.measurement import LoadPoint, Outcome, TrialFailure
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import Finding, ModelVerdict
from tpx.cli.analyze_options import read_with_warnings, show_written
from tpx.cli.analyze_plan import outlook, show_plan
from tpx.cli.commands import COMMANDS, Exit, below
from tpx.cli.help import show
from tpx.cli.launching import measure
from tpx.cli.messages import complain, fitted, terminal_width
from tpx.cli.perf_terminal import EVERY_STEP, every_step
from tpx.errors import MeasurementError, TpxError, UsageError
from tpx.options import nearest
from tpx.perf.loops import event_loop
from tpx.perf.objectives import Compliance
from tpx.report.digits import duration, latency, rounded
from tpx.report.files import STEP_SUMMARY, step_summary_path
from tpx.report.pdf import require_typst
from tpx.report.strangers import harmless, wrapped

if TYPE_CHECKING:
    from rich.status import Status


def main(argv: Sequence[str]) -> int:
    """Run `tpx analyze` with these arguments; return the exit code."""
    try:
        mode, argv = _split_mode(argv)
        if not argv:
            return show(("analyze",))
        name, *words = argv
        if ("analyze", name) not in COMMANDS:
            known = below(("analyze",))
            complain(f"Error: no command 'tpx analyze {name}'{nearest(name, known)}")
            complain(f"Commands: {', '.join(known)}")
            return Exit.FAILED
        return COMMANDS["analyze", name].function()([*words, *mode] if name in WITH_MODE else words)
    except TpxError as exc:
        complain(f"Error: {exc}")
        return Exit.FAILED


def profile(argv: Sequence[str]) -> int:
    """`tpx analyze profile`: measure models under many configurations and report the best of them."""
    config = read_with_warnings(argv)
    if config is None:
        return Exit.OK
    if config.output.dry_run:
        return show_plan(config)
    if config.output.pdf is not None:
        require_typst()
    fault = _run_search(config, ("tpx", "analyze", "profile", *argv))
    run = Run.from_records(read_last_run(config.output.journal_path))
    view = ReportView.of(
        run,
        config.as_settings(),
        repository=config.configurations_path,
        export_path=config.output.export_path,
    )
    written: tuple[tuple[str, Path], ...] = ()
    problem: TpxError | None = None
    try:  # before anything is printed, since the reader of stdout may be gone
        written = _write_reports(view, config)
    except TpxError as exc:
        problem = exc
    print_results(view)
    if fault is not None:
        complain(f"Error: {fault}")
        complain("Everything measured before is kept: continue with --resume.")
    if problem is None:
        show_written(written)
        print(f"Results: {config.output.results_path}")
        print(f"Configurations: {config.configurations_path}")
    elif fault is None:
        raise problem
    else:  # a disk too full for the journal may be too full for the report
        complain(f"note: no report: {problem}")
    if fault is not None:
        return Exit.FAILED
    verdicts = [model.verdict for model in view.models]
    return exit_status(run, verdicts, config.goal.require, allow_partial=config.goal.allow_partial)


def _run_search(config: ProfileSpec, command: tuple[str, ...]) -> MeasurementError | None:
    """Run the search; return the error that cut it short, if any. The journal has what was measured."""
    try:
        with (
            SearchProgress(
                quiet=config.output.quiet, outlook=lambda search: outlook(search, config)
            ) as progress,
            every_step(EVERY_STEP if config.output.verbose else 0),
            asyncio.Runner(loop_factory=event_loop) as runner,
        ):
            runner.run(measure(config, command, progress.observe, progress.say))
    except MeasurementError as exc:
        if not holds_run(config.output.journal_path):
            raise
        return exc
    return None


def analyze(argv: Sequence[str]) -> int:
    """Run `tpx analyze analyze`, Model Analyzer's former name for `profile`."""
    complain("note: analyze is the same as profile, and deprecated")
    return profile(argv)


WITH_MODE = frozenset({"profile", "analyze", "plan", "doctor", "report"})
"""Commands that accept Model Analyzer's global `-m online`."""


def _split_mode(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Model Analyzer's global option as an option of the command, and the remaining arguments."""
    words = list(argv)
    if not words or not words[0].startswith("-"):
        return [], words
    first = words.pop(0)
    name, equals, value = first.partition("=")
    if name.startswith("-m") and not name.startswith("--") and len(name) > 2:
        name, equals, value = "-m", "=", name[2:] + equals + value
    if name not in ("-m", "--mode"):
        raise UsageError(f"{first}: options follow the command, as in: tpx analyze profile {first}")
    if not equals and not words:
        raise UsageError(f"Missing value for option '{name}'")
    return [f"--mode={value if equals else words.pop(0)}"], words


def exit_status(
    run: Run, verdicts: Sequence[ModelVerdict], require: Sequence[Gate] = (), *, allow_partial: bool = False
) -> Exit:
    """Return the exit code of a run: 0 if a verdict was reached and satisfies `require`.

    A run cut short by Ctrl-C or a lost server is judged by its verdict only with `allow_partial`.
    """
    findings = {verdict.finding for verdict in verdicts}
    if run.outcome != "complete" and not allow_partial:
        return Exit.FAILED if run.reason else Exit.INTERRUPTED
    if Finding.NOTHING in findings:
        return Exit.FAILED
    if "satisfied" in require and any(verdict.compliance is not Compliance.MET for verdict in verdicts):
        return Exit.OBJECTIVE_MISSED
    if "conclusive" in require and Finding.UNDECIDED in findings:
        return Exit.INCONCLUSIVE
    return Exit.OK


class SearchProgress:
    """A line on stderr per measurement, and on a terminal a status line for the current one."""

    def __init__(self, *, quiet: bool, outlook: Callable[[ModelPlanned], str]) -> None:
        """Create the progress; `outlook` estimates the duration of a search."""
        self._quiet = quiet
        self._outlook = outlook
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._place = ""

    def __enter__(self) -> Self:
        self._show_status("starting the server")
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def observe(self, event: Event) -> None:
        match event:
            case ModelStarted(model=model):
                self._show_status(f"loading {model}")
            case ModelPlanned(model=model):
                self._show_status(f"planning the search of {model}")
                if not self._quiet:
                    self.say(self._outlook(event))
            case TrialStarted():
                place = f"final round {event.trial.round}"
                if not event.trial.round:
                    place = f"{event.number}/{event.configurations_at_most}"
                    place = f"configuration {place}" if event.models > 1 else place
                if event.models > 1:
                    place = f"model {event.model_number}/{event.models}, {place}"
                self._place = f"[{place}] {event.trial.variant.name}"
                left = "" if event.remaining_ns is None else f", at most {duration(event.remaining_ns)} left"
                times = f"({duration(event.elapsed_ns)}{left})"
                self._show_status(f"{self._place} at {event.trial.load}  {times}")
            case TrialEnded(trial=trial, outcome=outcome):
                self._report_trial(trial.load, outcome)
            case Remark(text=text):
                self.say(f"note: {text}")

    def _report_trial(self, load: LoadPoint, outcome: Outcome) -> None:
        if isinstance(outcome, TrialFailure):
            self.say(f"{self._place} at {load}: failed: {outcome.reason}")
        elif not self._quiet:
            p99_ns = outcome.p99_ns
            p99 = "" if p99_ns is None else f", p99 {latency(p99_ns)}"
            stable = "" if outcome.stable else "  (not stable)"
            self.say(f"{self._place} at {load}: {rounded(outcome.throughput)} infer/s{p99}{stable}")

    def say(self, text: str) -> None:
        """Print a permanent line."""
        width = self._console.width if self._console.is_terminal else None
        self._console.print(fitted(text, width), markup=False, soft_wrap=True)

    def _show_status(self, text: str) -> None:
        if self._quiet or not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(harmless(text).replace("[", r"\["))


def print_results(view: ReportView) -> None:
    """Print tables, and of each model the verdict with the command that applies it."""
    run, width = view.run, terminal_width()
    for table in tables_for_people(view):
        if table.rows:
            print(table.to_console(width), end="\n\n")
    for model in view.models:
        verdict = model.verdict
        print(wrapped(f"{verdict.sentence}.", width))
        for line in (verdict.detail, verdict.caution):
            if line:
                print(wrapped(f"  {line}", width))
        if model.remedy:
            print(f"Apply it with: {model.remedy}")
    if run.outcome != "complete":
        why = f": {run.reason}" if run.reason else ""
        message = f"The run was interrupted{why}. The search is incomplete: continue with --resume."
        print(wrapped(message, width))


def _write_reports(view: ReportView, config: ProfileSpec) -> tuple[tuple[str, Path], ...]:
    """Write all files of a run; return labels and paths of the reports."""
    write_csv(view, config.output.results_path)
    if config.output.step_summary and step_summary_path() is None:
        complain(f"note: no step summary: {STEP_SUMMARY} is not set")
    return write_reports(view, config.output)
