"""Checks for problems that would stop a run or spoil its figures; they change nothing.

Each check is a fact with its remedy. The caller supplies the server for those that need one.
"""

import os
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.measuring import unwritable
from tpx.analyzer.runners.servers import ModelControl
from tpx.errors import MeasurementError, TpxError, Unsupported
from tpx.options import nearest
from tpx.processors import schedulable_processors
from tpx.protocol import model_config
from tpx.report.pdf import require_typst

ROOM_BYTES = 1 << 30
BUSY_SHARE = 0.5
"""Load average per processor above which figures are unreliable."""
METRICS_TIMEOUT_S = 3.0
NOBODY = "tpx-doctor-asks-whether-models-load-by-request"
"""A model that no repository has: a request to load it reveals the control mode and changes nothing."""


class CheckState(Enum):
    """The outcome of a check."""

    OK = "ok"
    DOUBTFUL = "doubtful"
    """A run is possible, but lacks something or measures badly."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One fact about something that a run needs."""

    what: str
    state: CheckState
    found: str
    remedy: str = ""


class Reader(Protocol):
    """Reads a model's configuration as the server completes it."""

    async def default_config(self, model: str) -> dict[str, object]: ...


def check_machine(config: ProfileSpec) -> Iterator[Check]:
    """Check models, directories, programs, packages, and the machine's load."""
    yield from _repository(config)
    yield from _directories(config)
    yield from _programs(config)
    yield _pdf(config)
    yield _busy()


async def check_models(config: ProfileSpec, reader: Reader) -> list[Check]:
    """Check that each model can be served, by serving it."""
    checks = []
    for model in config.models.names:
        what = f"model {model} can be served"
        try:
            default = await reader.default_config(model)
        except TpxError as exc:
            checks.append(Check(what=what, state=CheckState.FAILED, found=exc.message))
            continue
        batch = default.get("max_batch_size", 0)
        found = f"max_batch_size {batch}" if batch else "without batches"
        checks.append(Check(what=what, state=CheckState.OK, found=found))
    return checks


async def check_remote(config: ProfileSpec, control: ModelControl) -> list[Check]:
    """Check that the running server responds, loads models on request, and exposes its metrics."""
    address = config.server.triton_grpc_endpoint
    if config.server.client_protocol == "http":
        address = config.server.triton_http_endpoint
    if not await control.live():
        remedy = "start it, or say where it is with --triton-http-endpoint and --triton-grpc-endpoint"
        found = f"nothing answers at {address}"
        return [Check(what="server", state=CheckState.FAILED, found=found, remedy=remedy)]
    served = [state.name for state in await control.index() if state.state == "READY"]
    return [
        Check(what="server", state=CheckState.OK, found=f"answers at {address}"),
        await _control_mode(config, control),
        _others(config, served),
        _metrics(config.server.triton_metrics_url),
    ]


async def _control_mode(config: ProfileSpec, control: ModelControl) -> Check:
    what = "models are loaded by request"
    if config.server.reload_model_disable:
        return Check(what=what, state=CheckState.OK, found="not needed with --reload-model-disable")
    try:
        await control.load(NOBODY, None, METRICS_TIMEOUT_S)
    except MeasurementError as exc:
        if "polling is enabled" in exc.message:
            remedy = "start the server with --model-control-mode=explicit, or use --reload-model-disable"
            return Check(what=what, state=CheckState.FAILED, found=exc.message, remedy=remedy)
    return Check(what=what, state=CheckState.OK, found="explicit model control")


def _others(config: ProfileSpec, served: list[str]) -> Check:
    others = [name for name in served if name not in config.models.names]
    if not others:
        return Check(what="other models on the server", state=CheckState.OK, found="none")
    return Check(
        what="other models on the server",
        state=CheckState.DOUBTFUL,
        found=", ".join(others),
        remedy="their work and memory are in the figures: unload them where that is possible",
    )


def _metrics(url: str) -> Check:
    try:
        with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
            count = sum(not line.startswith(b"#") for line in answer)
    except (OSError, HTTPException) as exc:
        remedy = "give its address with --triton-metrics-url; without it there are no GPU figures"
        why = "no page of metrics" if isinstance(exc, HTTPException) else exc
        return Check(what="metrics", state=CheckState.DOUBTFUL, found=f"{url}: {why}", remedy=remedy)
    return Check(what="metrics", state=CheckState.OK, found=f"{count} figures at {url}")


def _repository(config: ProfileSpec) -> Iterator[Check]:
    repository = config.models.model_repository
    if repository is None:
        return
    if not repository.is_dir():
        yield Check(
            what="model repository", state=CheckState.FAILED, found=f"{repository}: no such directory"
        )
        return
    models = sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    for model in config.models.names:
        path = repository / model / "config.pbtxt"
        what = f"configuration of {model}"
        if model not in models:
            found = f"{repository} has no model '{model}'{nearest(model, models)}"
            yield Check(what=what, state=CheckState.FAILED, found=found)
        elif not path.exists():
            yield Check(what=what, state=CheckState.OK, found="none: the server completes it")
        else:
            yield _configuration(what, path)


def _configuration(what: str, path: Path) -> Check:
    try:
        model_config.read(path)
    except TpxError as exc:
        return Check(what=what, state=CheckState.FAILED, found=exc.message)
    return Check(what=what, state=CheckState.OK, found=str(path))


def _directories(config: ProfileSpec) -> Iterator[Check]:
    for what, path in (
        ("export path", config.output.export_path),
        ("run.jsonl", config.output.journal_path.parent),
    ):
        yield _writable(what, path)
    output = config.models.output_model_repository_path
    used = output.is_dir() and any(output.iterdir())
    if used and not config.models.override_output_model_repository:
        yield Check(
            what="output model repository",
            state=CheckState.FAILED,
            found=f"{output} is not empty",
            remedy="name another with --output-model-repository-path, or replace it with "
            "--override-output-model-repository",
        )
    else:
        yield _writable("output model repository", output)


def _writable(what: str, path: Path) -> Check:
    fault = unwritable(path)
    if fault:
        return Check(what=what, state=CheckState.FAILED, found=fault)
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    free = shutil.disk_usage(there).free
    if free < ROOM_BYTES:
        found = f"{path}: {free >> 20} MiB are free"
        return Check(
            what=what, state=CheckState.DOUBTFUL, found=found, remedy="make room, or choose another place"
        )
    return Check(what=what, state=CheckState.OK, found=str(path.absolute()))


def _programs(config: ProfileSpec) -> Iterator[Check]:
    mode = config.server.triton_launch_mode
    if mode == "local" and config.server.triton_server_path:
        yield _program("server program", config.server.triton_server_path, "--triton-server-path names it")
    if mode == "docker":
        yield _program("docker", "docker", "install it: https://docs.docker.com/engine/install")
    if config.strategy.run_config_search_mode == "optuna":
        there = find_spec("optuna") is not None
        yield Check(
            what="optuna",
            state=CheckState.OK if there else CheckState.FAILED,
            found="installed" if there else "not installed",
            remedy="" if there else "pip install optuna",
        )


def _program(what: str, name: str, remedy: str) -> Check:
    found = shutil.which(name)
    if found is None:
        return Check(what=what, state=CheckState.FAILED, found=f"no '{name}' on the PATH", remedy=remedy)
    return Check(what=what, state=CheckState.OK, found=found)


def _pdf(config: ProfileSpec) -> Check:
    try:
        require_typst()
    except Unsupported as exc:
        state = CheckState.DOUBTFUL if config.output.pdf is None else CheckState.FAILED
        return Check(what="PDF", state=state, found=exc.message)
    return Check(what="PDF", state=CheckState.OK, found="typst")


def _busy() -> Check:
    cores = schedulable_processors()
    load = os.getloadavg()[0]
    found = f"load average {load:.1f} on {cores} processor{'s' if cores != 1 else ''}"
    if load > cores * BUSY_SHARE:
        remedy = "figures will vary: wait until the machine is idle, or measure longer"
        return Check(what="quiet machine", state=CheckState.DOUBTFUL, found=found, remedy=remedy)
    return Check(what="quiet machine", state=CheckState.OK, found=found)
