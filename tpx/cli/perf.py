"""`tpx perf`: options in, results on stdout, everything else on stderr, perf_analyzer's exit codes out."""

import asyncio
import os
import resource
from collections.abc import Sequence

from tpx import __version__
from tpx.cli.commands import COMMANDS, Exit
from tpx.cli.interrupts import Interrupts
from tpx.cli.messages import complain
from tpx.cli.perf_terminal import Terminal, every_step, tell
from tpx.errors import MeasurementError, TpxError, UsageError
from tpx.options import nearest
from tpx.perf.loops import event_loop
from tpx.perf.options import SessionSpec
from tpx.perf.options.words import PerfWords, interpret, spelled_out
from tpx.perf.report.model import Report, answer_line, answers_text, load_name, summary
from tpx.perf.run import run
from tpx.perf.settings import without_secrets
from tpx.report.files import STEP_SUMMARY, step_summary_path
from tpx.sources import collect, doubtful_variables, missing_flags, values_of

IN_PROCESS = "tpx.cli.inprocess"
START_ONE = "start one with `tpx serve`, or "
SET_ADDRESS = "set its address with -u"
TRUST_AUTHORITY = (
    "trust its authority with --ssl-https-ca-certificates-file, over gRPC --ssl-grpc-root-certifications-file"
)


def main(argv: Sequence[str]) -> int:
    """Run `tpx perf` with these arguments; return the exit status."""
    config: SessionSpec | None = None
    try:
        if argv[:1] == ["compare"]:
            return COMMANDS["perf", "compare"].function()(argv[1:])
        if "--version" in spelled_out(argv):
            complain(f"Perf Analyzer Version {__version__} (tpx perf)")
            return Exit.OK
        found = _read_config(argv)
        if found is None:
            return Exit.OK
        config, argv = found
        if config.output.pdf is not None:
            from tpx.report.pdf import require_typst  # late

            require_typst()
        _allow_many_connections()
        proxy = config.wire.proxy
        argv = without_secrets(argv, config.target.header, {proxy.written: str(proxy)} if proxy else None)
        with every_step(config.output.verbose):
            if config.output.dry_run:
                return _dry_run(config)
            if config.comparing.flag:
                from tpx.cli.perf_compare import compare_in_turns  # late

                return compare_in_turns(config, argv, IN_PROCESS)
            return _run_and_report(config, argv)
    except TpxError as exc:
        complain(f"Error: {exc}{_suggest_remedy(exc, config)}")
        return Exit.PERF_FAILED


def _run_and_report(config: SessionSpec, argv: Sequence[str]) -> int:
    with asyncio.Runner(loop_factory=event_loop) as runner:
        report = runner.run(_run_session(config))
    if report is None:
        return Exit.INTERRUPTED
    tell(summary(report.summarized) + answer_line(report) + answers_text(report))
    if config.output.files or config.output.step_summary:
        from tpx.perf.report.files import write_files  # late

        try:
            write_files(report, argv)
        except MeasurementError as exc:
            raise MeasurementError("; ".join(filter(None, (report.error, str(exc))))) from exc
        _announce_files(config, report)
    if report.error:
        complain(f"Error: {report.error}")
    return exit_status(report)


def _announce_files(config: SessionSpec, report: Report) -> None:
    """Name on stderr the files that were written, and the levels that perf_analyzer's CSV rule leaves out."""
    if config.output.step_summary and step_summary_path() is None:
        complain(f"note: no step summary: {STEP_SUMMARY} is not set")
    written = [str(path) for _, path in config.output.files if path.exists()]
    if written:
        complain(f"Wrote {', '.join(written)}")
    left_out = [
        f"{load_name(result.level)} ({result.verdict.value.replace('_', ' ')})"
        for result in report.levels
        if not result.meets_limits
    ]
    if config.output.csv is not None and left_out:
        complain(f"note: not in {config.output.csv}, as with perf_analyzer: {', '.join(left_out)}")


def _suggest_remedy(error: TpxError, config: SessionSpec | None) -> str:
    """Return advice for a server that does not listen, or whose certificate is unknown."""
    if config is None or not str(error).startswith("cannot connect"):
        return ""
    # gRPC's C core writes it as OpenSSL's name of the error
    if "certificate verify failed" in str(error).lower().replace("_", " "):
        return f" ({TRUST_AUTHORITY})"
    notice = f"; {config.route.notice}" if config.route.notice else ""
    return f" ({START_ONE if config.service.service_kind == 'triton' else ''}{SET_ADDRESS}{notice})"


def _read_config(argv: Sequence[str]) -> tuple[SessionSpec, Sequence[str]] | None:
    """Return the run and the flags that describe it; None if the options were only to be shown."""
    if argv and not argv[0].startswith("-"):
        raise UsageError(
            f"'{argv[0]}' is neither an option nor a command{nearest(argv[0], ('compare',))}: give the "
            f"model as -m {argv[0]}"
        )
    given = collect(PerfWords, spelled_out(argv), "perf", os.environ)
    for warning in doubtful_variables("perf", os.environ, PerfWords):
        complain(f"Warning: {warning}")
    values = values_of(given)
    if values.get("show_config"):
        from tpx.cli.show_config import describe_options  # late: it needs yaml

        tell(describe_options(PerfWords, given))
    wanted = interpret(values)
    if values.get("show_config"):
        return None
    for warning in wanted.warnings:
        complain(f"Warning: {warning}")
    return wanted.config, [*missing_flags(given), *argv]


def _dry_run(config: SessionSpec) -> Exit:
    from tpx.perf.dry_run import dry_run  # late: it imports every transport

    with asyncio.Runner(loop_factory=event_loop) as runner:
        planned = runner.run(dry_run(config, IN_PROCESS))
    for notice in planned.notices:
        complain(f"WARNING: {notice}")
    tell(planned.text)
    return Exit.OK if planned.good else Exit.PERF_FAILED


def exit_status(report: Report) -> Exit:
    """Return a run's exit code; an interrupted one is OK only with --allow-partial and a measurement."""
    if report.over_budget:
        return Exit.OVER_ERROR_BUDGET
    if report.interrupted:
        accepted = report.config.answers.allow_partial and report.has_valid_requests
        return Exit.OK if accepted else Exit.INTERRUPTED
    if report.error:
        return Exit.PERF_FAILED
    if report.has_dead_level and not (report.config.answers.slo and report.has_valid_requests):
        return Exit.NO_VALID_REQUEST
    if report.breaks_slo:
        return Exit.OBJECTIVE_MISSED
    if report.config.answers.require_stable and report.any_unstable:
        return Exit.UNSTABLE
    return Exit.UNSTABLE if report.only_unstable and not report.config.answers.slo else Exit.OK


async def _run_session(config: SessionSpec) -> Report | None:
    """Return the report, or None if the run was interrupted twice."""
    with Terminal(config) as terminal:
        interrupts = Interrupts(lambda: terminal.measuring, terminal.notice)
        return await interrupts.run(
            run(config, observer=terminal, stop=interrupts.stop, in_process=IN_PROCESS)
        )


def _allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: every connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
