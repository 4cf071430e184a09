"""`tpx analyze`: options in, tables and the verdict on stdout, progress on stderr, exit status out."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console

from tpx.analyzer.options import ProfileConfig, read_options
from tpx.analyzer.profile import Event, ModelStarted, Profile, Remark, TrialEnded, TrialStarted
from tpx.analyzer.reports.export import CsvFiles, write_csv
from tpx.analyzer.reports.html import render
from tpx.analyzer.reports.page import duration
from tpx.analyzer.reports.tables import gpu_table, inference_table, server_table
from tpx.analyzer.reports.verdict import Finding, Verdict, caution, judge
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.measurement import Failure
from tpx.analyzer.results.run import Run
from tpx.analyzer.runners.local import LocalRunner
from tpx.analyzer.trial import Bench
from tpx.analyzer.variants import OutputRepository
from tpx.errors import TpxError, UsageError
from tpx.options import nearest
from tpx.pages.html import write_html, write_pdf
from tpx.perf.run import event_loop

if TYPE_CHECKING:
    from rich.status import Status


class Exit(IntEnum):
    """What an analysis says to the shell."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NONE_SATISFIES = 3
    PARTIAL = 6
    """Interrupted; what was measured is valid and written."""


def main(argv: Sequence[str]) -> int:
    """Run `tpx analyze` with these words; returns the exit status."""
    if not argv:
        from tpx.cli.help import show  # late: only help needs typer

        return show(["analyze", "--help"])
    name, *words = argv
    if name not in COMMANDS:
        print(f"Error: no command 'tpx analyze {name}'{nearest(name, COMMANDS)}", file=sys.stderr)
        print(f"Commands: {', '.join(COMMANDS)}", file=sys.stderr)
        return Exit.USAGE
    try:
        return COMMANDS[name](words)
    except UsageError as exc:
        print(f"Error: {exc}", file=sys.stderr)
        return Exit.USAGE
    except TpxError as exc:
        print(f"Error: {exc}", file=sys.stderr)
        return Exit.FAILED


def profile(argv: Sequence[str]) -> int:
    """`tpx analyze profile`: measure models under many configurations and report the best of them."""
    config = read_options(argv)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_measure(config, ("tpx", "analyze", "profile", *argv)))
    run = Run.from_records(read_last_run(config.journal_path))
    verdicts = [judge(model, run.started.goals) for model in run.models]
    _print_results(run, verdicts, with_memory=config.collect_cpu_metrics)
    _write_reports(run, config)
    return exit_status(run, verdicts)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"profile": profile}


def exit_status(run: Run, verdicts: Sequence[Verdict]) -> Exit:
    """The worst of what the models say; an interrupted run is partial if it measured anything."""
    findings = {verdict.finding for verdict in verdicts}
    if run.outcome != "complete":
        return Exit.FAILED if findings == {Finding.NOTHING} else Exit.PARTIAL
    if Finding.NOTHING in findings:
        return Exit.FAILED
    return Exit.NONE_SATISFIES if Finding.NONE_SATISFIES in findings else Exit.OK


async def _measure(config: ProfileConfig, command: tuple[str, ...]) -> None:
    """The run itself; what it finds is in the journal, also when it is interrupted."""
    repository = OutputRepository(
        config.output_model_repository_path,
        config.model_repository,
        override=config.override_output_model_repository,
    )
    with Journal(config.journal_path) as journal, Progress(quiet=config.quiet) as progress:
        runner = LocalRunner(
            config.model_repository or Path(), config.load_settings, ready_timeout_s=config.client_max_retries
        )
        bench = Bench(runner, repository, monitoring_interval_s=config.monitoring_interval)
        search = Profile(config, bench, journal, progress.observe)
        work = asyncio.ensure_future(search.run(command))
        interrupts = Interrupts(search, work, progress)
        interrupts.listen()
        try:
            await work
        except asyncio.CancelledError:
            if interrupts.count < 2:
                raise
        finally:
            interrupts.ignore()


class Interrupts:
    """The first Ctrl-C ends the run after the measurement in progress, the second at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, search: Profile, work: "asyncio.Future[None]", progress: "Progress") -> None:
        self._search = search
        self._work = work
        self._progress = progress
        self.count = 0

    def listen(self) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def ignore(self) -> None:
        for number in self.SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _interrupt(self) -> None:
        self.count += 1
        if self.count == 1:
            self._search.stop()
            self._progress.say("interrupted: finishing this measurement; press Ctrl-C again to stop at once")
        else:
            self._work.cancel()


class Progress:
    """A line on stderr for every measurement, and on a terminal a status line for the one in progress."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._place = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hide()

    def observe(self, event: Event) -> None:
        match event:
            case ModelStarted(model=model):
                self._show(f"loading {model}")
            case TrialStarted():
                self._place = f"[{event.number}/{event.configurations_at_most}] {event.trial.variant.name}"
                self._show(f"{self._place} at {event.trial.load}  {_times(event)}")
            case TrialEnded(trial=trial, outcome=outcome):
                if isinstance(outcome, Failure):
                    self.say(f"{self._place} at {trial.load}: failed: {outcome.reason}")
                elif not self._quiet:
                    p99_ns = outcome.latency.p99_ns
                    p99 = "" if p99_ns is None else f", p99 {p99_ns / 1e6:.2f} ms"
                    stable = "" if outcome.stable else "  (not stable)"
                    self.say(f"{self._place} at {trial.load}: {outcome.throughput:.1f} infer/s{p99}{stable}")
            case Remark(text=text):
                self.say(f"note: {text}")

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        if self._quiet or not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status("")
            self._status.start()
        self._status.update(text.replace("[", r"\["))

    def _hide(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def _times(event: TrialStarted) -> str:
    left = "" if event.remaining_ns is None else f", at most {duration(event.remaining_ns)} left"
    return f"({duration(event.elapsed_ns)}{left})"


def _print_results(run: Run, verdicts: Sequence[Verdict], *, with_memory: bool) -> None:
    tables = [
        inference_table(run, with_memory=with_memory),
        gpu_table(run),
        server_table(run, with_memory=with_memory),
    ]
    for table in tables:
        if table.rows:
            print(table.to_console(), end="\n\n")
    for model, verdict in zip(run.models, verdicts, strict=True):
        print(f"{verdict.sentence}.")
        for line in (verdict.detail, caution(verdict, model, run.started.tolerance_percent)):
            if line:
                print(f"  {line}")
    if run.outcome != "complete":
        print("The run was interrupted: the space was not searched to its end.")


def _write_reports(run: Run, config: ProfileConfig) -> None:
    files = CsvFiles(
        directory=config.results_path,
        inference=config.filename_model_inference,
        gpu=config.filename_model_gpu,
        server_only=config.filename_server_only,
        with_memory=config.collect_cpu_metrics,
    )
    write_csv(run, files)
    page = render(run, config.output_model_repository_path)
    write_html(page, config.html_path)
    print(f"Report: {config.html_path}")
    if config.pdf is not None:
        try:
            write_pdf(page, config.pdf)
            print(f"PDF: {config.pdf}")
        except TpxError as exc:
            print(f"note: {exc}", file=sys.stderr)
    print(f"Results: {config.results_path}")
    print(f"Configurations: {config.output_model_repository_path}")
