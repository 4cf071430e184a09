"""Which Python a model runs with: the server's own, or that of its EXECUTION_ENV_PATH.

That is a directory with `bin/python`, or an archive of one as conda-pack makes it. An archive is extracted
once, into the user's cache; what it holds must lie in it: no paths, links or devices that lead out of it.
Where conda-pack has put `bin/conda-unpack` into it, that is run then: it tells the files where they lie now.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tpx.errors import LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.python.process import Interpreter

if sys.version_info >= (3, 11, 4):
    import tarfile
else:
    from backports import tarfile  # type: ignore[no-redef]  # the filters of members came with 3.11.4

_KEY = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_UNPACK_S = 600


def interpreter_of(config: ModelConfig, directory: Path) -> Interpreter:
    """The interpreter that a configuration asks for; `directory` is the model's. Raises LoadError."""
    if _KEY not in config.parameters:
        return Interpreter()
    text = config.parameters[_KEY].string_value
    path = Path(text.replace(_MODEL_DIRECTORY, str(directory)))
    try:
        if path.is_file():
            path = extracted(path, _cache(os.environ))
        if not path.is_dir():
            raise LoadError(f"it is neither a directory nor an archive of one: '{path}'")
        python = path / "bin" / "python"
        if not python.exists():
            raise LoadError(f"there is no bin/python in '{path}'")
    except (LoadError, OSError, tarfile.TarError) as exc:
        raise LoadError(f"model '{config.name}': {_KEY} '{text}' cannot be used: {exc}") from exc
    return Interpreter(path=str(python), environment=_variables(path, os.environ))


def extracted(archive: Path, cache: Path) -> Path:
    """The directory with what is in an archive; made when it is first asked for.

    Raises LoadError for an archive that leads out of it, OSError, TarError.
    """
    status = archive.stat()
    words = f"{archive.resolve()} {status.st_mtime_ns} {status.st_size}"
    target = cache / hashlib.sha256(words.encode()).hexdigest()[:32]
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (cache / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several instances and servers may want it at the same time
        complete = cache / f"{target.name}.complete"
        if complete.exists():
            return target
        shutil.rmtree(target, ignore_errors=True)  # of one that was interrupted
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter=_inside)
            _unpack(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        complete.touch()
    return target


def _unpack(place: Path) -> None:
    """Have an environment correct the paths in its own files. Raises LoadError."""
    script, python = place / "bin" / "conda-unpack", place / "bin" / "python"
    if not script.is_file() or not python.exists():
        return
    try:
        subprocess.run(
            [python, script],
            cwd=place,
            env={**os.environ, **_variables(place, os.environ)},
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
        raise LoadError(f"its bin/conda-unpack took over {_UNPACK_S} s") from exc


def _inside(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo:
    """Return what is extracted of a member. Raises LoadError for one that leads out of the directory."""
    try:
        return tarfile.data_filter(member, place)
    except tarfile.FilterError as exc:
        raise LoadError(f"the archive has a member that leads out of it: {exc}") from exc


def _cache(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "tpx" / "environments"


def _variables(path: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return what activating it would set."""
    library = environment.get("LD_LIBRARY_PATH", "")
    return {
        "PATH": f"{path / 'bin'}{os.pathsep}{environment.get('PATH', '')}",
        "LD_LIBRARY_PATH": f"{path / 'lib'}{os.pathsep}{library}" if library else str(path / "lib"),
        "CONDA_PREFIX": str(path),
        "VIRTUAL_ENV": str(path),
    }
