"""`tpx COMMAND ...`: finds the command, imports it and nothing else, and exits with its status."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from tpx import __version__
from tpx.options import nearest

# name -> (module with main(argv) -> status, config dataclasses for --help by subcommand)
COMMANDS = {
    "serve": "tpx.cli.serve",
    "perf": "tpx.cli.perf",
    "analyze": "tpx.cli.analyze",
    "quickstart": "tpx.cli.quickstart",
}

_HELP = {"-h", "--help", "help"}
_COMPLETION = {"--install-completion", "--show-completion"}


def main() -> None:
    """The console script."""
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # whoever read our output has gone (`tpx perf | head`): nothing to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    word = argv[0] if argv else "--help"
    if word in _COMPLETION or "_TPX_COMPLETE" in os.environ or word in _HELP:
        return _helper(argv)
    if word == "--version":
        print(f"tpx {__version__}")
        return 0
    if word not in COMMANDS:
        print(f"tpx: no command '{word}'{nearest(word, COMMANDS)}\n", file=sys.stderr)
        _helper(["--help"])
        return 2
    if _HELP.intersection(argv[1:]):
        return _helper([word, *(a for a in argv[1:] if not a.startswith("-")), "--help"])
    command = cast("Callable[[Sequence[str]], int]", import_module(COMMANDS[word]).main)
    return command(argv[1:])


def _helper(argv: Sequence[str]) -> int:
    from tpx.cli.help import show  # late: only help needs typer

    return show([word for word in argv if word != "help"] or ["--help"])
