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
MISSING_MODEL = "tpx-doctor-asks-whether-models-load-by-request"
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


def _report_ok(what: str, found: str) -> Check:
    return Check(what=what, state=CheckState.OK, found=found)


def _report_doubt(what: str, found: str, remedy: str) -> Check:
    return Check(what=what, state=CheckState.DOUBTFUL, found=found, remedy=remedy)


def _report_failure(what: str, found: str, remedy: str = "") -> Check:
    return Check(what=what, state=CheckState.FAILED, found=found, remedy=remedy)


def check_machine(config: ProfileSpec) -> Iterator[Check]:
    """Check models, directories, programs, packages, and the machine's load."""
    yield from _check_repository(config)
    yield from _check_directories(config)
    yield from _check_programs(config)
    cores, load = schedulable_processors(), os.getloadavg()[0]
    found = f"load average {load:.1f} on {cores} processor{'s' if cores != 1 else ''}"
    remedy = "figures will vary: wait until the machine is idle, or measure longer"
    busy = load > cores * BUSY_SHARE
    yield _report_doubt("quiet machine", found, remedy) if busy else _report_ok("quiet machine", found)


async def check_models(config: ProfileSpec, reader: Reader) -> list[Check]:
    """Check that each model can be served, by serving it."""
    checks = []
    for model in config.models.names:
        what = f"model {model} can be served"
        try:
            batch = (await reader.default_config(model)).get("max_batch_size", 0)
        except TpxError as exc:
            checks.append(_report_failure(what, exc.message))
            continue
        checks.append(_report_ok(what, f"max_batch_size {batch}" if batch else "without batches"))
    return checks


async def check_remote(config: ProfileSpec, control: ModelControl) -> list[Check]:
    """Check that the running server responds, loads models on request, and exposes its metrics."""
    address = config.server.triton_grpc_endpoint
    if config.server.client_protocol == "http":
        address = config.server.triton_http_endpoint
    if not await control.live():
        remedy = "start it, or give its address with --triton-http-endpoint and --triton-grpc-endpoint"
        return [_report_failure("server", f"nothing answers at {address}", remedy)]
    served = [state.name for state in await control.index() if state.state == "READY"]
    others = ", ".join(name for name in served if name not in config.models.names)
    remedy = "their work and memory are in the figures: unload them where that is possible"
    what = "other models on the server"
    return [
        _report_ok("server", f"answers at {address}"),
        await _check_control_mode(config, control),
        _report_doubt(what, others, remedy) if others else _report_ok(what, "none"),
        _check_metrics(config.server.triton_metrics_url),
    ]


async def _check_control_mode(config: ProfileSpec, control: ModelControl) -> Check:
    what = "models are loaded by request"
    if config.server.reload_model_disable:
        return _report_ok(what, "not needed with --reload-model-disable")
    try:
        await control.load(MISSING_MODEL, None, METRICS_TIMEOUT_S)
    except MeasurementError as exc:
        if "polling is enabled" in exc.message:
            remedy = "start the server with --model-control-mode=explicit, or use --reload-model-disable"
            return _report_failure(what, exc.message, remedy)
    return _report_ok(what, "explicit model control")


def _check_metrics(url: str) -> Check:
    try:
        with urllib.request.urlopen(url, timeout=METRICS_TIMEOUT_S) as answer:
            count = sum(not line.startswith(b"#") for line in answer)
    except (OSError, HTTPException) as exc:
        remedy = "give its address with --triton-metrics-url; without it there are no GPU figures"
        why = "no page of metrics" if isinstance(exc, HTTPException) else exc
        return _report_doubt("metrics", f"{url}: {why}", remedy)
    return _report_ok("metrics", f"{count} figures at {url}")


def _check_repository(config: ProfileSpec) -> Iterator[Check]:
    repository = config.models.model_repository
    if repository is None:
        return
    if not repository.is_dir():
        yield _report_failure("model repository", f"{repository}: no such directory")
        return
    models = sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    for model in config.models.names:
        path = repository / model / "config.pbtxt"
        what = f"configuration of {model}"
        if model not in models:
            yield _report_failure(what, f"{repository} has no model '{model}'{nearest(model, models)}")
        elif not path.exists():
            yield _report_ok(what, "none: the server completes it")
        else:
            try:
                model_config.read(path)
            except TpxError as exc:
                yield _report_failure(what, exc.message)
            else:
                yield _report_ok(what, str(path))


def _check_directories(config: ProfileSpec) -> Iterator[Check]:
    output = config.models.output_model_repository_path
    for what, path in (
        ("export path", config.output.export_path),
        ("run.jsonl", config.output.journal_path.parent),
        ("output model repository", output),
    ):
        replaced = config.models.override_output_model_repository
        if path is output and output.is_dir() and any(output.iterdir()) and not replaced:
            yield _report_failure(
                what,
                f"{output} is not empty",
                "name another with --output-model-repository-path, or replace it with "
                "--override-output-model-repository",
            )
        elif fault := unwritable(path):
            yield _report_failure(what, fault)
        else:
            ancestor = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
            free = shutil.disk_usage(ancestor).free
            if free < ROOM_BYTES:
                found = f"{path}: {free >> 20} MiB are free"
                yield _report_doubt(what, found, "make room, or choose another place")
            else:
                yield _report_ok(what, str(path.absolute()))


def _check_programs(config: ProfileSpec) -> Iterator[Check]:
    mode, server = config.server.triton_launch_mode, config.server.triton_server_path
    needed = []
    if mode == "local" and server:
        needed.append(("server program", server, "--triton-server-path names it"))
    if mode == "docker":
        needed.append(("docker", "docker", "install it: https://docs.docker.com/engine/install"))
    for what, name, remedy in needed:
        path = shutil.which(name)
        yield _report_ok(what, path) if path else _report_failure(what, f"no '{name}' on the PATH", remedy)
    if config.strategy.run_config_search_mode == "optuna":
        installed = find_spec("optuna") is not None
        yield (
            _report_ok("optuna", "installed")
            if installed
            else _report_failure("optuna", "not installed", "pip install optuna")
        )
    try:
        require_typst()
        yield _report_ok("PDF", "typst")
    except Unsupported as exc:
        yield (_report_doubt if config.output.pdf is None else _report_failure)("PDF", exc.message, "")
