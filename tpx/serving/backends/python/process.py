"""Processes of models: start, end, restart policy, and the Python interpreter that runs them.

EXECUTION_ENV_PATH selects another interpreter than the server's own: a directory with `bin/python`, or an
archive of one made by conda-pack. An archive is extracted once into the user's cache; its paths, links,
and devices must stay inside. If it contains `bin/conda-unpack`, that is run to correct the paths in its
files.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tpx.errors import Code, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.python.fork_server import CHILD, ForkedProcess, fork_server
from tpx.serving.transport.memory import BlockMemory, reserve_memory

_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python interpreter of a model and its environment."""

    path: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the server's environment."""


class ChildProcess:
    """A worker process, the socket to it, memory for tensors, a pipe for questions, and its lifeline.

    The lifeline is a pipe that closes when this process exits; the kernel then kills the worker and what it
    started, whatever its code is doing.
    """

    def __init__(self, interpreter: Interpreter, directory: Path) -> None:
        """Start the process; blocks until it has started. Raises LoadError."""
        self.memory: list[BlockMemory] = []
        """For tensors to the process, and from it."""
        with ExitStack() as child_ends, ExitStack() as own_ends:
            try:
                self.socket, other_end = socket.socketpair()
                own_ends.enter_context(self.socket)
                child_ends.enter_context(other_end)
                lifeline, self._lifeline = os.pipe()
                own_ends.callback(os.close, self._lifeline)
                child_ends.callback(os.close, lifeline)
                questions, self._questions = os.pipe()
                own_ends.callback(os.close, self._questions)
                child_ends.callback(os.close, questions)
                descriptors = [other_end.fileno(), lifeline, questions]
                for _ in range(2):
                    descriptor, memory = reserve_memory()
                    child_ends.callback(os.close, descriptor)
                    descriptors.append(descriptor)
                    self.memory.append(memory)
                self._process = _start(interpreter, descriptors, directory if directory.is_dir() else None)
            except OSError as exc:
                raise LoadError(
                    f"cannot start '{interpreter.path}': {exc.strerror}", code=short_of(exc)
                ) from exc
            own_ends.pop_all()
        self.exited = -1
        """Descriptor that is readable once the process has exited; -1 if the kernel has none."""
        if isinstance(self._process, ForkedProcess):
            self.exited = self._process.descriptor
        else:
            with suppress(OSError):
                self.exited = os.pidfd_open(self._process.pid)

    def end(self, timeout_s: float) -> int:
        """Wait until the process exits, kill it after `timeout_s`, and return its status."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()
        finally:
            self.kill()
            for descriptor in (self._lifeline, self._questions, self.exited):
                if descriptor >= 0:
                    os.close(descriptor)
            self._lifeline = self._questions = self.exited = -1
            self.memory.clear()

    def ask_ready(self) -> None:
        """Ask whether the model is ready; it answers with a frame. One question at a time does not block."""
        with suppress(OSError):  # the process has ended
            os.write(self._questions, b"?")

    def abandon(self) -> None:
        """End a process that has no connection. Blocks."""
        self.socket.close()
        self.kill()
        self.end(1.0)

    def kill(self) -> None:
        """Kill the process and those that it started, unless it has ended."""
        if self._lifeline >= 0:  # later, another process may have its number
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _start(
    interpreter: Interpreter, descriptors: Sequence[int], directory: Path | None
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Start a process in this directory. Raises OSError."""
    server = fork_server() if interpreter == Interpreter() else None
    if server is not None:
        with suppress(ConnectionError):
            return server.start(descriptors, directory)
    return subprocess.Popen(
        [interpreter.path, str(CHILD), *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        cwd=directory,
        env={**os.environ, **interpreter.environment},
        pass_fds=descriptors,
        start_new_session=True,  # a terminal's signals are for the server
    )


def short_of(exc: OSError) -> Code | None:
    """Return a RESOURCE_EXHAUSTED error for a failure that may pass once others release resources."""
    return Code.RESOURCE_EXHAUSTED if exc.errno in _SHORTAGES else None


_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 5.0
_MOST = 6
_WITHIN_NS = 60 * 10**9


class Restarts:
    """Restart policy: growing delays, and no restart after several deaths within a minute."""

    def __init__(self) -> None:
        self._deaths: deque[int] = deque(maxlen=_MOST)

    def pardon(self) -> float:
        """Discount the last death, for lack of memory or descriptors; return the delay in seconds."""
        self._deaths.pop()
        return _LONGEST_DELAY_S

    def died(self, now_ns: int) -> float | None:
        """Return the delay before the next start in seconds; None if it is not restarted."""
        self._deaths.append(now_ns)
        recent = sum(now_ns - at <= _WITHIN_NS for at in self._deaths)
        if recent >= _MOST:
            return None
        return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 4 ** (recent - 1)))


if sys.version_info >= (3, 11, 4):
    import tarfile
else:
    from backports import tarfile  # type: ignore[no-redef]  # extraction filters exist since 3.11.4

_KEY = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_UNPACK_S = 600


def interpreter_of(config: ModelConfig, directory: Path) -> Interpreter:
    """Return the interpreter that a configuration selects; `directory` is the model's. Raises LoadError."""
    if _KEY not in config.parameters:
        return Interpreter()
    text = config.parameters[_KEY].string_value
    path = Path(text.replace(_MODEL_DIRECTORY, str(directory)))
    try:
        if path.is_file():
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            path = extracted(path, Path(home) / "tpx" / "environments")
        if not path.is_dir():
            raise LoadError(f"it is neither a directory nor an archive of one: '{path}'")
        python = path / "bin" / "python"
        if not python.exists():
            raise LoadError(f"there is no bin/python in '{path}'")
    except (LoadError, OSError, tarfile.TarError) as exc:
        raise LoadError(f"model '{config.name}': {_KEY} '{text}' cannot be used: {exc}") from exc
    return Interpreter(path=str(python), environment=_make_environment(path))


def extracted(archive: Path, cache: Path) -> Path:
    """Return the contents of an archive, extracted once. Raises LoadError, OSError, TarError."""
    status = archive.stat()
    words = f"{archive.resolve()} {status.st_mtime_ns} {status.st_size}"
    target = cache / hashlib.sha256(words.encode()).hexdigest()[:32]
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (cache / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several instances and servers may extract it at the same time
        complete = cache / f"{target.name}.complete"
        if complete.exists():
            return target
        shutil.rmtree(target, ignore_errors=True)  # left by an interrupted extraction
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter=tarfile.data_filter)
            _run_conda_unpack(target)
        except tarfile.FilterError as exc:
            shutil.rmtree(target, ignore_errors=True)
            raise LoadError(f"the archive has a member that points outside it: {exc}") from exc
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        complete.touch()
    return target


def _run_conda_unpack(place: Path) -> None:
    """Run conda-unpack to correct the paths in an environment's files. Raises LoadError."""
    script, python = place / "bin" / "conda-unpack", place / "bin" / "python"
    if not script.is_file() or not python.exists():
        return
    try:
        subprocess.run(
            [python, script],
            cwd=place,
            env={**os.environ, **_make_environment(place)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_UNPACK_S,
            check=True,
            start_new_session=True,
        )
    except subprocess.CalledProcessError as exc:
        last = exc.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise LoadError(f"its bin/conda-unpack failed with status {exc.returncode}: {last}") from exc
    except subprocess.TimeoutExpired as exc:
        raise LoadError(f"its bin/conda-unpack took longer than {_UNPACK_S} s") from exc


def _make_environment(path: Path) -> Mapping[str, str]:
    """Return the environment variables that activation would set."""
    library = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        "PATH": f"{path / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "LD_LIBRARY_PATH": f"{path / 'lib'}{os.pathsep}{library}" if library else str(path / "lib"),
        "CONDA_PREFIX": str(path),
        "VIRTUAL_ENV": str(path),
    }
