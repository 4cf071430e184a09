"""Builds a run of `tpx analyze` from its options: runner, trials, journal, and handling of Ctrl-C."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tpx.analyzer.nodes import nodes_of
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import check_same_run
from tpx.analyzer.options.measuring import CONFIGURATIONS, JOURNAL, results_in
from tpx.analyzer.probes import gpu_names
from tpx.analyzer.profile import Observer, Profile
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.measurement import Models
from tpx.analyzer.results.run import RunRecords
from tpx.analyzer.runners.docker import Container, find_docker
from tpx.analyzer.runners.load import LoadGenerator
from tpx.analyzer.runners.loader import ServedRunner
from tpx.analyzer.runners.local import LocalServers, find_program
from tpx.analyzer.runners.servers import (
    Addresses,
    Launch,
    ModelControl,
    RemoteServer,
    Runner,
    ServerControl,
    StartServer,
)
from tpx.analyzer.trial import TrialRunner, Trials
from tpx.analyzer.variants import OutputRepository
from tpx.cli.interrupts import Interrupts
from tpx.cli.messages import complain
from tpx.errors import UsageError

IN_PROCESS = "tpx.cli.inprocess"
EARLIER = "earlier"
"""Directory in the export path for earlier runs."""
Say = Callable[[str], None]


async def measure(config: ProfileSpec, command: tuple[str, ...], observe: Observer, say: Say) -> None:
    """Run all trials that are not in the journal yet. Every result is in the journal, however the run
    ends.

    The first Ctrl-C ends the run after the measurement in progress, the third at once, as in Model Analyzer.
    """
    interrupts = Interrupts(
        lambda: True,
        say,
        notices=(
            "interrupted: finishing this measurement; two more Ctrl-C stop at once",
            "still finishing this measurement; one more Ctrl-C stops at once, and loses it alone",
        ),
    )
    with open_search(config, observe, say, interrupts.stop) as search:
        if search is not None:
            await interrupts.run(search.run(command))


@contextmanager
def open_search(
    config: ProfileSpec, observe: Observer, say: Say, stop: asyncio.Event
) -> Iterator[Profile | None]:
    """Open everything a run needs: runner, repository of variants and journal. Yields None if it is
    complete. Once `stop` is set, it ends after the current measurement.
    """
    earlier = _read_earlier_run(config, say) if config.output.continues else None
    if earlier is not None and earlier.complete:
        hint = "; --retry-failed retries the failed trials" if earlier.failures else ""
        say(f"the run is complete: there is nothing to resume{hint}")
        yield None
        return
    if earlier is None and not config.models.override_output_model_repository:
        _set_aside_earlier_run(config, say)
    repository = OutputRepository(
        config.configurations_path,
        None if config.server.triton_launch_mode == "remote" else config.models.model_repository,
        override=config.models.override_output_model_repository,
        keep=earlier is not None,
    )
    with Journal(config.output.journal_path) as journal, ExitStack() as stack:
        trials: Trials
        if config.server.triton_launch_mode == "ray":
            trials = stack.enter_context(nodes_of(config, open_trials, repository, say))
        else:
            trials = open_trials(config, repository)
        yield Profile(config, trials, journal, observe, earlier, stop)


def open_trials(config: ProfileSpec, repository: OutputRepository) -> TrialRunner:
    """Return the TrialRunner for this machine."""
    return TrialRunner(
        open_runner(config),
        repository,
        monitoring_interval_s=config.watch.monitoring_interval,
        tolerance=config.axes.accuracy_tolerance,
        gpus=config.server.chosen_gpus,
    )


def _set_aside_earlier_run(config: ProfileSpec, say: Say) -> None:
    """Move all files of the run in this export path into a directory there, which is an export path, too.

    Raises UsageError if that run is still in progress.
    """
    output, journal = config.output, config.output.journal_path
    if not journal.exists() or not journal.stat().st_size:
        return
    ended = datetime.fromtimestamp(journal.stat().st_mtime, UTC)
    parent = output.export_path / EARLIER / f"{ended:%Y-%m-%dT%H-%M-%S}"
    aside = parent / output.export_path.name if output.results_path == output.export_path else parent
    moves = {path: aside / path.relative_to(output.export_path) for path in output.files}
    if config.models.output_model_repository_path is None:
        moves[config.configurations_path] = aside / CONFIGURATIONS
    moves[journal] = results_in(aside) / JOURNAL  # last: if a move fails, the next run moves the rest
    with Journal(journal):  # no other process writes it
        try:
            for source, target in moves.items():
                if source.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(source, target)
        except OSError as exc:
            raise UsageError(f"cannot move the earlier run to {aside}: {exc.strerror}") from exc
    say(f"note: the earlier run was moved to {aside}; --resume -e {aside} continues it if it is unfinished")


def _read_earlier_run(config: ProfileSpec, say: Say) -> RunRecords:
    path = config.output.journal_path
    earlier = RunRecords(read_last_run(path) if path.exists() else ())
    check_same_run(earlier, config.as_settings(), path)
    if config.output.retry_failed:
        failures = earlier.failures
        say(f"failed before and retried: {failures}" if failures else "nothing failed before")
        if failures:
            earlier.retry_failed()
    return earlier


def open_runner(config: ProfileSpec) -> Runner:
    """Return the runner of a launch mode. Raises UsageError if this machine cannot provide it."""
    if config.server.triton_launch_mode == "inprocess":
        from tpx.analyzer.runners.inprocess import InProcessRunner  # late: it imports the server

        return InProcessRunner(
            (config.models.model_repository or Path()).absolute(),
            replace(_make_load_generator(config), in_process=IN_PROCESS),
            limit_s=config.measurement.perf_analyzer_timeout,
        )

    return ServedRunner(
        _choose_starter(config),
        lambda addresses: open_control(config, addresses),
        _make_load_generator(config),
        launch=lambda models: launch_of(config, models),
        timeout_s=config.server.client_max_retries,
        limit_s=config.measurement.perf_analyzer_timeout,
        reloads=not config.server.reload_model_disable,
    )


def open_control(config: ProfileSpec, addresses: Addresses) -> ModelControl:
    """Return the model control of a server; one that is started here always speaks HTTP, too."""
    if config.server.triton_launch_mode != "remote":
        return ServerControl(addresses.http)
    wire = next(iter(config.sessions.values())).wire
    if config.server.client_protocol == "grpc":
        return ServerControl(addresses.grpc, "grpc", wire)
    return ServerControl(addresses.http, "http", wire)


def remote_addresses(config: ProfileSpec) -> Addresses:
    """Return the addresses of the server that is already running."""
    return Addresses(
        http=config.server.triton_http_endpoint,
        grpc=config.server.triton_grpc_endpoint,
        metrics_url=config.server.triton_metrics_url,
    )


def _make_load_generator(config: ProfileSpec) -> LoadGenerator:
    """Return the load generator, which passes the results of every level to the requested outputs."""
    file = config.measurement.perf_output_path
    if file is None and not config.measurement.perf_output:
        return LoadGenerator(sessions=config.sessions, most_windows=config.most_windows)

    def tell(text: str) -> None:
        if config.measurement.perf_output:
            complain(text)
        if file is not None:
            with file.open("a", encoding="utf-8") as written:
                written.write(text + "\n")

    return LoadGenerator(sessions=config.sessions, most_windows=config.most_windows, tell=tell)


def launch_of(config: ProfileSpec, names: Models) -> Launch:
    """Return the launch settings of a server for one model, or for several.

    A model's own settings replace those of the run; settings of several models are not merged.
    """
    models = [model for model in config.models.profile_models if model.name in names]
    flags = [model.triton_server_flags for model in models if model.triton_server_flags is not None]
    variables = [m.triton_server_environment for m in models if m.triton_server_environment is not None]
    arguments = [model.triton_docker_args for model in models if model.triton_docker_args is not None]
    return Launch(
        flags=next(iter(flags), config.server.triton_server_flags),
        environment=next(iter(variables), config.server.triton_server_environment),
        docker_args=next(iter(arguments), config.docker.triton_docker_args),
    )


def _choose_starter(config: ProfileSpec) -> StartServer:
    """Return the function that starts, or connects to, the server of a launch mode."""
    if config.server.triton_launch_mode == "remote":
        addresses = remote_addresses(config)
        control = open_control(config, addresses)
        return RemoteServer(addresses, control, addresses.of(config.server.client_protocol)).start
    models = (config.models.model_repository or Path()).absolute()
    interval_ms = round(config.watch.monitoring_interval * 1000)
    if config.server.triton_launch_mode == "docker":
        none_here = config.server.chosen_gpus is None and not gpu_names()
        return Container(
            docker=find_docker(),
            image=config.docker.triton_docker_image,
            models=models,
            mounts=config.docker.triton_docker_mounts,
            labels=config.docker.triton_docker_labels,
            shm_size=config.docker.triton_docker_shm_size,
            gpus=() if none_here else config.server.chosen_gpus,
            metrics_interval_ms=interval_ms,
            log=config.server.triton_output_path,
        ).start
    return LocalServers(
        models=models,
        program=config.server.triton_server_path and find_program(config.server.triton_server_path),
        log=config.server.triton_output_path,
        gpus=config.server.chosen_gpus,
        metrics_interval_ms=interval_ms,
    ).start
