"""`tpx analyze doctor`: check that a run with these options can work before hours are spent on it."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpx.analyzer.nodes import nodes_of
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.file import merge_options
from tpx.analyzer.preflight import Check, CheckState, check_machine, check_models, check_remote
from tpx.analyzer.variants import OutputRepository
from tpx.cli.launching import open_control, open_runner, open_trials, remote_addresses
from tpx.cli.messages import show
from tpx.errors import TpxError
from tpx.perf.run import event_loop

_STYLES = {CheckState.OK: "green", CheckState.DOUBTFUL: "yellow", CheckState.FAILED: "red"}


def doctor(argv: Sequence[str]) -> int:
    """`tpx analyze doctor`, with the options of `profile`; return 1 if something would stop the run."""
    config = merge_options(argv)
    with Console(stderr=True).status("Checking what the run needs"):
        checks = [*_check_options(config), *check_machine(config)]
        try:
            with asyncio.Runner(loop_factory=event_loop) as loop:
                checks += loop.run(_check_server(config))
        except TpxError as exc:
            checks.append(Check(what="server", state=CheckState.FAILED, found=exc.message))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        text = f"{check.found}; {check.remedy}" if check.remedy else check.found
        table.add_row(Text(check.state.value, style=_STYLES[check.state]), check.what, text)
    show(table)
    return 1 if any(check.state is CheckState.FAILED for check in checks) else 0


def _check_options(config: ProfileSpec) -> list[Check]:
    if config.models.model_repository is None and config.server.triton_launch_mode != "remote":
        remedy = "name the directory of the models with --model-repository"
        return [Check(what="options", state=CheckState.FAILED, found="no model repository", remedy=remedy)]
    if not config.models.profile_models:
        remedy = "name models with --profile-models to have them looked at"
        return [Check(what="options", state=CheckState.DOUBTFUL, found="no models", remedy=remedy)]
    return [Check(what="options", state=CheckState.OK, found="they go together")]


async def _check_server(config: ProfileSpec) -> list[Check]:
    """Return findings that need a server."""
    if config.server.triton_launch_mode == "remote":
        checks = await check_remote(config, open_control(config, remote_addresses(config)))
        if any(check.state is CheckState.FAILED for check in checks):
            return checks
    else:
        checks = []
    if config.models.model_repository is None and config.server.triton_launch_mode != "remote":
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
        found = f"{machine.name}: {machine.processor}, {machine.cores} cores"
        checks = [Check(what="nodes", state=CheckState.OK, found=found)]
        remedy = "no action needed, or use a separate Ray cluster for them"
        checks += [
            Check(what="nodes", state=CheckState.DOUBTFUL, found=each, remedy=remedy) for each in left_out
        ]
        try:
            return checks + await check_models(config, trials)
        finally:
            await trials.close()
