"""`tpx COMMAND ...`: finds the command, imports it and nothing else, and exits with its status."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from tpx import __version__
from tpx.cli.exits import Exit
from tpx.options import nearest

# name -> module with main(argv) -> status
COMMANDS = {
    "serve": "tpx.cli.serve",
    "perf": "tpx.cli.perf",
    "analyze": "tpx.cli.analyze",
    "quickstart": "tpx.cli.quickstart",
    "doctor": "tpx.cli.doctor",
}

_HELP_FLAGS = {"-h", "-?", "--help"}
_COMPLETION = {"--install-completion", "--show-completion"}


def main() -> None:
    """The console script."""
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone (`tpx perf | head`): nothing to say, and nobody to say it to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns its exit status."""
    if _COMPLETION.intersection(argv[:1]) or "_TPX_COMPLETE" in os.environ:
        return _show(argv)
    if argv[:1] == ["--version"]:
        print(f"tpx {__version__}")
        return 0
    helping = not argv or bool(_HELP_FLAGS.intersection(argv)) or "help" in argv[:2]
    words = [word for word in argv if not word.startswith("-") and not (helping and word == "help")]
    word = argv[0] if not helping else words[0] if words else ""
    if word and word not in COMMANDS:
        print(f"tpx: no command '{word}'{nearest(word, COMMANDS)}\n", file=sys.stderr)
        _show(["--help"])
        return Exit.FAILED
    if helping:
        return _show([*words, "--help"])
    command = cast("Callable[[Sequence[str]], int]", import_module(COMMANDS[word]).main)
    return command(argv[1:])


def _show(argv: Sequence[str]) -> int:
    from tpx.cli.help import show  # late: only help needs typer

    return show(argv)
