"""`tpx COMMAND ...`: finds the command, imports only that, and exits with its status."""

import errno
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence

from tpx import __version__
from tpx.cli.commands import COMMANDS, Exit, below, command_of
from tpx.cli.messages import complain, spell_missing_characters
from tpx.errors import TpxError
from tpx.options import nearest

_HELP_FLAGS = {"-h", "-?", "--help", "--help-all"}
_COMPLETION = {"--install-completion", "--show-completion"}
_BLAS_SPINS = "OPENBLAS_THREAD_TIMEOUT"
"""Variable for how long a thread of numpy's linear algebra looks for work before it sleeps: 2 to the power of
this many cycles of the processor, by default 28 (0.1 s).
"""


def main() -> None:
    """Run the command line and exit."""
    _open_closed_streams()
    faulthandler.register(signal.SIGUSR1, file=2)  # the stacks of all threads, even if the event loop hangs
    spell_missing_characters()
    if "_TPX_COMPLETE" in os.environ or _HELP_FLAGS.intersection(sys.argv):
        # nothing is computed: starting BLAS threads and garbage collection would take a third of the time
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        gc.disable()
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    except BrokenPipeError:
        # the reader has closed our output (`tpx perf | head`), so there is nowhere to report it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    except OSError as exc:
        if exc.errno != errno.ENOSPC or exc.filename:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        complain(f"Error: cannot write to stdout: {exc.strerror}")
        status = Exit.FAILED
    sys.exit(status)


def _open_closed_streams() -> None:
    """Open standard streams that the caller has closed (`>&-`), or a socket would get their descriptors."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", encoding="utf-8"))


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit status."""
    if _COMPLETION.intersection(argv[:1]) or "_TPX_COMPLETE" in os.environ:
        from tpx.cli import completion  # imported late, like help: only these need their imports

        return completion.main(argv)
    if argv[:1] in (["--version"], ["-v"]) or argv[:2][-1:] == ["-V"]:
        return version(argv)
    flag = next((i for i, word in enumerate(argv) if word in _HELP_FLAGS), None)
    if not argv or flag is not None or "help" in argv[:2]:
        return _show_help(argv, len(argv) if flag is None else flag)
    path = command_of(argv[:1])
    if path and not COMMANDS[path].run:
        path = command_of(argv)
    if not path or not COMMANDS[path].run:
        return _reject_command(argv[len(path)], path) if argv[len(path) :] else _show_help(argv, len(argv))
    try:
        return _import_command(path)(argv[len(path) :])
    except TpxError as exc:
        complain(f"Error: {exc}")
        return Exit.FAILED


def _import_command(path: tuple[str, ...]) -> Callable[[Sequence[str]], int]:
    """Import a command without garbage collections, which take a fifth of the time and find nothing: what is
    imported stays, and later collections skip it. Threads of numpy, one per core, must not look for work, as
    there is none; those of a model's process may.
    """
    gc.disable()
    given = _BLAS_SPINS in os.environ
    os.environ.setdefault(_BLAS_SPINS, "4")
    try:
        return COMMANDS[path].function()
    finally:
        if not given:
            del os.environ[_BLAS_SPINS]
        gc.freeze()
        gc.enable()


def version(_: Sequence[str]) -> int:
    """`tpx version`."""
    print(f"tpx {__version__}")
    return Exit.OK


def _show_help(argv: Sequence[str], flag: int) -> int:
    """Show the help of the command that precedes the help flag or directly follows it."""
    from tpx.cli import help as pages

    before = [word for word in argv[:flag] if word != "help"]
    behind = list(argv[flag + 1 :])
    named = before or [word for word in behind if not word.startswith("-")]
    path = command_of(named)
    rest = named[len(path) :]
    if rest and not rest[0].startswith("-") and (not path or not COMMANDS[path].config):
        return _reject_command(rest[0], path)
    topic = behind if before and flag < len(argv) else rest
    if len(topic) > 1 and topic[0].startswith("-"):  # further options of a command line, not a topic
        topic = []
    return pages.show(path, topic=" ".join(topic), whole="--help-all" in argv)


def _reject_command(word: str, path: tuple[str, ...]) -> int:
    from tpx.cli import help as pages

    complain(f"tpx: no command '{' '.join((*path, word))}'{nearest(word, below(path))}\n")
    pages.show(path)
    return Exit.FAILED
