"""`tpx analyze doctor`: check that a run with these options can work before hours are spent on it.

Each check is a fact with its remedy, about something that would stop a run or spoil its figures; they
change nothing.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpx.analyzer.nodes import nodes_of
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import occupied
from tpx.analyzer.options.measuring import unwritable
from tpx.analyzer.runners.servers import ModelControl
from tpx.analyzer.variants import OutputRepository
from tpx.cli.analyze_options import read_or_show
from tpx.cli.commands import Exit
from tpx.cli.launching import open_control, open_runner, open_trials, remote_addresses
from tpx.cli.messages import show
from tpx.errors import MeasurementError, TpxError, Unsupported
from tpx.options import nearest
from tpx.perf.clients.proxies import open_page
from tpx.perf.loops import event_loop
from tpx.processors import schedulable_processors
from tpx.protocol import model_config
from tpx.report.pdf import require_typst

ROOM_BYTES = 1 << 30
BUSY_SHARE = 0.5
"""Load average per processor above which figures are unreliable."""
METRICS_TIMEOUT_S = 3.0
MISSING_MODEL = "tpx-doctor-asks-whether-models-load-by-request"
"""A model that no repository has: a request to load it reveals the control mode and changes nothing."""


class CheckState(Enum):
    """The outcome of a check."""

    OK = "ok"
    DOUBTFUL = "doubtful"
    """A run is possible, but lacks something or measures badly."""
    FAILED = "failed"


OK, DOUBTFUL, FAILED = CheckState
_STYLES = {OK: "green", DOUBTFUL: "yellow", FAILED: "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One fact about something that a run needs."""

    what: str
    state: CheckState
    found: str
    remedy: str = ""


class Reader(Protocol):
    """Reads a model's configuration as the server completes it."""

    async def default_config(self, model: str) -> dict[str, object]: ...


def doctor(argv: Sequence[str]) -> int:
    """`tpx analyze doctor`, with the options of `profile`; return 1 if something would stop the run."""
    config = read_or_show(argv)
    if config is None:
        return Exit.OK
    with Console(stderr=True).status("Checking what the run needs"):
        options = Check("options", OK, "they go together")
        if _lacks_repository(config):
            remedy = "name the directory of the models with --model-repository"
            options = Check("options", FAILED, "no model repository", remedy)
        elif not config.models.profile_models:
            remedy = "name models with --profile-models to have them looked at"
            options = Check("options", DOUBTFUL, "no models", remedy)
        checks = [options, *check_machine(config)]
        try:
            with asyncio.Runner(loop_factory=event_loop) as loop:
                checks += loop.run(_check_server(config))
        except TpxError as exc:
            checks.append(Check("server", FAILED, exc.message))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        text = f"{check.found}; {check.remedy}" if check.remedy else check.found
        table.add_row(Text(check.state.value, style=_STYLES[check.state]), check.what, text)
    show(table)
    return 1 if any(check.state is FAILED for check in checks) else 0


def _lacks_repository(config: ProfileSpec) -> bool:
    return config.models.model_repository is None and config.server.triton_launch_mode != "remote"


def check_machine(config: ProfileSpec) -> Iterator[Check]:
    """Check models, directories, programs, packages, and the machine's load."""
    yield from _check_repository(config)
    yield from _check_directories(config)
    yield from _check_programs(config)
    cores, load = schedulable_processors(), os.getloadavg()[0]
    found = f"load average {load:.1f} on {cores} processor{'s' if cores != 1 else ''}"
    remedy = "figures will vary: wait until the machine is idle, or measure longer"
    busy = load > cores * BUSY_SHARE
    yield Check("quiet machine", DOUBTFUL if busy else OK, found, remedy if busy else "")


async def _check_server(config: ProfileSpec) -> list[Check]:
    """Return findings that need a server."""
    checks: list[Check] = []
    if config.server.triton_launch_mode == "remote":
        checks = await check_remote(config, open_control(config, remote_addresses(config)))
        if any(check.state is FAILED for check in checks):
            return checks
    if _lacks_repository(config):
        return checks
    if config.server.triton_launch_mode == "ray":
        return await _check_nodes(config)
    runner = open_runner(config)
    try:
        return checks + await check_models(config, runner)
    finally:
        await runner.close()


async def _check_nodes(config: ProfileSpec) -> list[Check]:
    """Return the Ray nodes that take part, why others do not, and whether they can serve the models."""
    left_out: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="tpx-doctor-") as scratch,
        nodes_of(config, open_trials, OutputRepository(Path(scratch), None), left_out.append) as trials,
    ):
        machine = trials.machine
        checks = [Check("nodes", OK, f"{machine.name}: {machine.processor}, {machine.cores} cores")]
        remedy = "no action needed, or use a separate Ray cluster for them"
        checks += [Check("nodes", DOUBTFUL, each, remedy) for each in left_out]
        try:
            return checks + await check_models(config, trials)
        finally:
            await trials.close()


async def check_models(config: ProfileSpec, reader: Reader) -> list[Check]:
    """Check that each model can be served, by serving it."""
    checks = []
    for model in config.models.names:
        what = f"model {model} can be served"
        try:
            batch = (await reader.default_config(model)).get("max_batch_size", 0)
        except TpxError as exc:
            checks.append(Check(what, FAILED, exc.message))
            continue
        checks.append(Check(what, OK, f"max_batch_size {batch}" if batch else "without batches"))
    return checks


async def check_remote(config: ProfileSpec, control: ModelControl) -> list[Check]:
    """Check that the running server responds, loads models on request, and exposes its metrics."""
    address = remote_addresses(config).of(config.server.client_protocol)
    if not await control.live():
        remedy = "start it, or give its address with --triton-http-endpoint and --triton-grpc-endpoint"
        return [Check("server", FAILED, f"nothing answers at {address}", remedy)]
    served = [state.name for state in await control.index() if state.state == "READY"]
    others = ", ".join(name for name in served if name not in config.models.names)
    remedy = "their work and memory are in the figures: unload them where that is possible"
    what = "other models on the server"
    return [
        Check("server", OK, f"answers at {address}"),
        await _check_control_mode(config, control),
        Check(what, DOUBTFUL, others, remedy) if others else Check(what, OK, "none"),
        _check_metrics(config.server.triton_metrics_url),
    ]


async def _check_control_mode(config: ProfileSpec, control: ModelControl) -> Check:
    what = "models are loaded by request"
    if config.server.reload_model_disable:
        return Check(what, OK, "not needed with --reload-model-disable")
    try:
        await control.load(MISSING_MODEL, None, METRICS_TIMEOUT_S)
    except MeasurementError as exc:
        if "polling is enabled" in exc.message:
            remedy = "start the server with --model-control-mode=explicit, or use --reload-model-disable"
            return Check(what, FAILED, exc.message, remedy)
    return Check(what, OK, "explicit model control")


def _check_metrics(url: str) -> Check:
    try:
        with open_page(url, METRICS_TIMEOUT_S) as answer:
            count = sum(not line.startswith(b"#") for line in answer)
    except (OSError, HTTPException) as exc:
        remedy = "give its address with --triton-metrics-url; without it there are no GPU figures"
        why = "no page of metrics" if isinstance(exc, HTTPException) else exc
        return Check("metrics", DOUBTFUL, f"{url}: {why}", remedy)
    return Check("metrics", OK, f"{count} figures at {url}")


def _check_repository(config: ProfileSpec) -> Iterator[Check]:
    repository = config.models.model_repository
    if repository is None:
        return
    if not repository.is_dir():
        yield Check("model repository", FAILED, f"{repository}: no such directory")
        return
    models = sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    for model in config.models.names:
        path = repository / model / "config.pbtxt"
        what = f"configuration of {model}"
        if model not in models:
            yield Check(what, FAILED, f"{repository} has no model '{model}'{nearest(model, models)}")
        elif not path.exists():
            yield Check(what, OK, "none: the server completes it")
        else:
            try:
                model_config.read(path)
            except TpxError as exc:
                yield Check(what, FAILED, exc.message)
            else:
                yield Check(what, OK, str(path))


def _check_directories(config: ProfileSpec) -> Iterator[Check]:
    output = config.configurations_path
    for what, path in (
        ("export path", config.output.export_path),
        ("run.jsonl", config.output.journal_path.parent),
        ("output model repository", output),
    ):
        if path is output and (fault := occupied(config)):
            found, _, remedy = fault.partition(": ")
            yield Check(what, FAILED, found, remedy)
        elif fault := unwritable(path):
            yield Check(what, FAILED, fault)
        else:
            ancestor = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
            free = shutil.disk_usage(ancestor).free
            if free < ROOM_BYTES:
                found = f"{path}: {free >> 20} MiB are free"
                yield Check(what, DOUBTFUL, found, "make room, or choose another place")
            else:
                yield Check(what, OK, str(path.absolute()))


def _check_programs(config: ProfileSpec) -> Iterator[Check]:
    mode, server = config.server.triton_launch_mode, config.server.triton_server_path
    needed = []
    if mode == "local" and server:
        needed.append(("server program", server, "--triton-server-path names it"))
    if mode == "docker":
        needed.append(("docker", "docker", "install it: https://docs.docker.com/engine/install"))
    for what, name, remedy in needed:
        path = shutil.which(name)
        yield Check(what, OK, path) if path else Check(what, FAILED, f"no '{name}' on the PATH", remedy)
    if config.strategy.run_config_search_mode == "optuna":
        missing = Check("optuna", FAILED, "not installed", "pip install optuna")
        yield Check("optuna", OK, "installed") if find_spec("optuna") else missing
    try:
        require_typst()
        yield Check("PDF", OK, "typst")
    except Unsupported as exc:
        yield Check("PDF", DOUBTFUL if config.output.pdf is None else FAILED, exc.message)
