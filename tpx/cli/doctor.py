"""`tpx doctor`: what works on this machine, how a running server is used, and what would help."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpx.argv import from_argv
from tpx.cli.doctor_server import examine, make_server_table
from tpx.cli.messages import complain, show
from tpx.errors import UsageError
from tpx.options import Options, nearest, option
from tpx.serving.inspection.inspect import InspectedPart, Inspection, Machine, Usability, inspect

_STYLES = {
    Usability.USABLE: "green",
    Usability.MISSING: "dim",
    Usability.UNUSABLE: "yellow",
    Usability.BROKEN: "red",
}
_GIB = 2**30


class DoctorConfig(Options):
    """Options of `tpx doctor`."""

    require: tuple[str, ...] = option(
        (), "exit with 1 unless all of these, comma separated, are usable", comma=True, metavar="NAMES"
    )
    json: bool = option(False, "print JSON instead of tables")
    timeout_secs: float = option(60, "maximum seconds to inspect one backend", metavar="SECONDS", minimum=0.1)
    backend_directory: Path = option(
        Path("/opt/tritonserver/backends"), "directory of Python-based backends, as for `tpx serve`"
    )
    metrics_url: str = option(
        "", "also show how a running server is used, from its metrics", metavar="HOST:PORT/PATH"
    )


def main(argv: Sequence[str]) -> int:
    """Run `tpx doctor` with these arguments; return the exit code."""
    config = from_argv(DoctorConfig, argv)
    server = examine(config.metrics_url) if config.metrics_url else None
    with Console(stderr=True).status("Checking what is installed") as status:
        found = inspect(
            timeout_s=config.timeout_secs,
            backend_directory=config.backend_directory,
            observe=lambda name: status.update(f"Checking what is installed: {name}"),
        )
    faults = [_explain_unusable(found, name) for name in config.require]
    if config.json:
        told = asdict(found) | ({"server": asdict(server)} if server else {})
        print(json.dumps(told, indent=2, default=lambda state: state.value))
    else:
        parts = (*found.backends, *found.features)
        remedies = [f"{each.name}: {each.remedy}" for each in parts if each.remedy]
        if server and server.remedy:
            remedies.insert(0, f"the server: {server.remedy}")
        show(
            *((make_server_table(server), "") if server else ()),
            *(_make_machine_table(found.machine), "", _make_table("Backends", found.backends)),
            *("", _make_table("Features", found.features)),
            *(("", Text("What would help", style="bold")) if remedies else ()),
            # each on one line regardless of its length, so that it can be copied
            *(Text(f"  {each}") for each in remedies),
        )
    for fault in filter(None, faults):
        complain(f"Error: {fault}")
    return 1 if any(faults) else 0


def _explain_unusable(found: Inspection, name: str) -> str:
    """Return why a required name cannot be used, or "". Raises UsageError for an unknown one."""
    finding = found.finding(name)
    if finding is None:
        names = [each.name for each in (*found.backends, *found.features)]
        raise UsageError(f"--require: no '{name}'{nearest(name, names)} (there is: {', '.join(names)})")
    if finding.state is Usability.USABLE:
        return ""
    help_ = f"; {finding.remedy}" if finding.remedy else ""
    return f"{name} is required and {finding.state.value}: {finding.why}{help_}"


def _make_machine_table(machine: Machine) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    table.add_row("tpx", f"{machine.tpx}, Python {machine.python} ({machine.executable})")
    table.add_row("System", machine.system)
    cores = f"{machine.cores} core{'s' if machine.cores != 1 else ''}"
    table.add_row("CPU", f"{cores}, {machine.processor}" if machine.processor else cores)
    table.add_row(
        "Memory",
        f"{machine.memory_bytes / _GIB:.1f} GiB, {machine.memory_available_bytes / _GIB:.1f} GiB available",
    )
    for gpu in machine.gpus or (f"none: {machine.gpu_note}",):
        table.add_row("GPU", gpu)
    return table


def _make_table(title: str, findings: Sequence[InspectedPart]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in (title, "", "Version"):
        table.add_column(header, no_wrap=True)
    table.add_column("", overflow="fold")
    for each in findings:
        state = Text(each.state.value, style=_STYLES[each.state])
        origin = f"from {each.origin}" if each.origin else ""
        parts = (each.what, origin, ", ".join(each.providers), ", ".join(each.devices), each.why)
        table.add_row(each.name, state, each.version, "; ".join(filter(None, parts)))
    return table
