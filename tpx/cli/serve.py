"""`tpx serve`: start a server, print its models and endpoints, and stop it on a signal."""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

# first: deeper in the tree of imports, numpy makes Python map and unmap a chunk of its stack 1,600 times
import numpy  # noqa: F401 (imported for that reason only)

from tpx import __version__
from tpx.cli.interrupts import ServerSignals
from tpx.cli.logs import configure, finish
from tpx.cli.messages import complain, terminal_width
from tpx.cli.startup import log_models, log_options
from tpx.errors import TpxError
from tpx.options import Given, build, fields_of
from tpx.perf.loops import event_loop
from tpx.report.strangers import wrapped
from tpx.serving.endpoints import BoundEndpoint, check_ports
from tpx.serving.heap import keep_few_pools
from tpx.serving.logs import LogControl
from tpx.serving.options import ServeConfig, ServeWords
from tpx.serving.server import InferenceServer
from tpx.sources import collect, doubtful_variables, values_of

if TYPE_CHECKING:
    from tpx.serving.processes.frontend import FrontendSpec
    from tpx.serving.processes.supervisor import EngineSpec

log = logging.getLogger(__name__)

_DEPRECATED = {
    "trace_file": "triton,file=PATH",
    "trace_level": "level=LEVEL",
    "trace_rate": "rate=N",
    "trace_count": "count=N",
    "trace_log_frequency": "triton,log-frequency=N",
}
_OTHER_FILES = 1024
"""Open files reserved for models, shared memory, and the libraries of both."""


def main(argv: Sequence[str]) -> int:
    """Run `tpx serve` with these arguments; return the exit status: 0 after a stop, 1 otherwise."""
    return _report_errors(lambda: _main(argv))


def _main(argv: Sequence[str]) -> int:
    given = collect(ServeWords, argv, "serve", os.environ)
    for warning in doubtful_variables("serve", os.environ, ServeWords):
        complain(f"Warning: {warning}")
    values = values_of(given)
    if values.get("show_config"):
        from tpx.cli.show_config import describe_options  # late: it needs yaml

        print(describe_options(ServeWords, given), end="")
    words = build(ServeWords, values)
    if words.show_config:
        return 0
    _warn_about_options(words, given)
    config = words.server
    if config.repository.describe:  # only the descriptions, warnings and errors
        config = replace(config, logging=replace(config.logging, log_info=False))
    logs = LogControl(config.logging.settings)
    configure(logs)
    config = _choose_models(config)
    if config.repository.describe:
        from tpx.cli.describe import describe  # late: a server needs nothing of perf

        status = _run_coroutine(describe(config, logs))
        finish()
        return status
    _allow_many_connections(config.server.max_connections)
    keep_few_pools()
    if config.server.frontends:
        return _supervise(config, logs)
    status = _run_coroutine(_serve(config, logs))
    finish()
    return status


def _run_coroutine(work: Coroutine[object, object, int]) -> int:
    with asyncio.Runner(loop_factory=event_loop) as runner:
        return runner.run(work)


def _supervise(config: ServeConfig, logs: LogControl) -> int:
    """Run the engine and its frontends in separate processes. Raises UsageError."""
    # late: most servers run in one process; both here, so that no child imports them after its fork
    from tpx.serving.processes.frontend import FrontendProcess
    from tpx.serving.processes.supervisor import ProcessSupervisor

    async def serve_frontend(spec: "FrontendSpec") -> int:
        await FrontendProcess(config, logs, spec).run()
        return 0

    check_ports(config)
    status = ProcessSupervisor(
        config,
        engine=lambda spec: _report_errors(lambda: _run_coroutine(_serve(config, logs, spec))),
        frontend=lambda spec: _report_errors(lambda: _run_coroutine(serve_frontend(spec))),
    ).run()
    finish()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        signal.raise_signal(-status)
    return status


def _report_errors(run: Callable[[], int]) -> int:
    """Return the status of `run`, or 1 after printing its error."""
    try:
        return run()
    except TpxError as exc:
        complain(f"error: creating server: {exc.code.value} - {exc}")
        return 1


def _warn_about_options(words: ServeWords, given: Mapping[str, Given]) -> None:
    """Print a line per option that does not do what its name promises or is deprecated."""
    for field in fields_of(ServeWords):
        instead = _DEPRECATED.get(field.name)
        if instead is not None and field.of(words) != field.default:
            complain(
                f"Warning: '{field.flag}' has been deprecated! Please use '--trace-config {instead}' instead."
            )
        if field.option.inert and field.name in given:
            complain(f"Warning: '{field.flag}' has no effect: {field.option.help}")
    repository = words.server.repository
    strict = repository.strict_model_config
    if strict is None:
        return
    complain(
        "Warning: '--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' "
        "instead."
    )
    if repository.disable_auto_complete_config:
        complain(
            f"Warning: Overriding deprecated '--strict-model-config' from {strict} to True in favor of "
            "'--disable-auto-complete-config'!"
        )


def _allow_many_connections(count: int) -> None:
    """Raise the soft limit of open files: every connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _choose_models(config: ServeConfig) -> ServeConfig:
    """Complete options that name no models: serve ./models, or the example models."""
    if config.repository.models or config.repository.model_repository:
        return config
    directory = Path("models")
    if directory.is_dir():
        _print_notice(config, f"No model repository given: serving ./{directory}")
    else:
        from tpx import examples  # late: only this path writes models

        directory = examples.default_directory()
        examples.write(directory)
        where = f"serving the example models in {directory}"
        _print_notice(config, f"No model repository given and no ./models here: {where}")
    return replace(config, repository=replace(config.repository, model_repository=(directory,)))


async def _serve(config: ServeConfig, logs: LogControl, spec: "EngineSpec | None" = None) -> int:
    server = InferenceServer(config, logs, spec)
    signals = ServerSignals(on_now=lambda: _exit_by_signal(server))
    signals.watch()
    started = asyncio.ensure_future(server.start())
    stopping = asyncio.ensure_future(signals.stop.wait())
    await asyncio.wait({started, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        log.info("stopped while models were loading")
        server.control.abandon()
        _exit_at_once(0)
    try:
        endpoints = started.result()
    except TpxError:
        if server.status():
            log_models(server, config)
        raise
    log_models(server, config)
    log_options(server, config)
    for endpoint in endpoints:
        log.info("Started %s at %s", endpoint.service, endpoint.where)
    scheme = "https" if config.http.http_use_ssl else "http"
    _print_notice(config, _format_ready_line(endpoints, scheme, ui=config.has_ui))
    await stopping
    if not await server.stop():
        log.error("Exit timeout expired. Exiting immediately.")
        _exit_at_once(0)
    return 0


def _exit_at_once(status: int) -> NoReturn:
    """End the process while threads load or compute.

    They cannot be interrupted: an orderly exit of the interpreter would wait for them, or free what
    they use.
    """
    finish()
    os._exit(status)


def _exit_by_signal(server: InferenceServer) -> None:
    """End the process by the signal that it received."""
    server.control.abandon()
    finish()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


def _format_ready_line(endpoints: Sequence[BoundEndpoint], scheme: str, *, ui: bool) -> str:
    """Return the line that lists the endpoints."""
    bound = {endpoint.service: endpoint.where for endpoint in endpoints}
    http, grpc, metrics = map(bound.get, ("HTTPService", "GRPCInferenceService", "Metrics Service"))
    parts = [f"{scheme}://{http}/v2"] if http else []
    parts += [f"gRPC {grpc}"] if grpc else []
    parts += [f"metrics http://{metrics}/metrics"] if metrics else []
    parts += [f"page {scheme}://{http}/" if ui else f"docs {scheme}://{http}/v2/docs"] if http else []
    return f"tpx {__version__} is ready: {', '.join(parts)}"


def _print_notice(config: ServeConfig, text: str) -> None:
    """Print a line that is not part of the log; with JSON logs, which programs read, log it."""
    if config.logging.log_format == "json":
        log.info("%s", text)
        return
    with suppress(OSError):  # a full disk or a closed pipe, which the log has reported
        print(wrapped(text, terminal_width()), flush=True)
