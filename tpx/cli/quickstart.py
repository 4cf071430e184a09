"""`tpx quickstart DIR`: write the example models."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from tpx.argv import from_argv
from tpx.cli.messages import terminal_width
from tpx.options import Options, option
from tpx.report.text import Table

_CHAT = (
    "curl -N localhost:8000/v1/chat/completions "
    """-d '{"model":"tiny","stream":true,"messages":[{"role":"user","content":"And it came to pass"}]}'"""
)


class QuickstartConfig(Options):
    """Target repository and selection of the example models."""

    directory: Path = option(Path("models"), "model repository to write", positional=True, metavar="DIR")
    models: tuple[str, ...] = option(
        (), "write only these models and those that they call, comma separated", comma=True, metavar="NAMES"
    )
    dali: bool = option(False, "write only the DALI example: photo_ensemble and the models that it calls")
    overwrite: bool = option(False, "replace existing models")


def main(argv: Sequence[str]) -> int:
    """Run `tpx quickstart` with these arguments; return the exit status."""
    from tpx import examples

    config = from_argv(QuickstartConfig, argv)
    names = (*config.models, *(("photo_ensemble",) if config.dali else ())) or examples.servable()
    written = examples.write(config.directory, names, overwrite=config.overwrite)
    rows = tuple((m.name, m.description, "kept" if m.kept else "written") for m in written)
    table = Table(title="", headers=("Model", "What it is", "State"), rows=rows, padding=0)
    print(table.to_console(terminal_width()))
    print(f"\nServe them:    tpx serve --model-repository {shlex.quote(str(config.directory))}")
    there = [model.name for model in written]
    one = "mnist" if "mnist" in there else there[-1]
    print(f"Measure one:   tpx perf -m {one} --concurrency-range 1:4")
    if "tiny" in there:
        print(f"Chat with one: {_CHAT}")
    return 0
