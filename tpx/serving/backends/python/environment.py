"""The Python interpreter of a model: the server's own, or the one in EXECUTION_ENV_PATH.

EXECUTION_ENV_PATH is a directory with `bin/python`, or an archive of one made by conda-pack. An archive is
extracted once into the user's cache; its paths, links, and devices must stay inside. If it contains
`bin/conda-unpack`, that is run to correct the paths in its files.
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
    """Return the directory with the contents of an archive, extracted on first use.

    Raises LoadError for members that leave the directory, OSError, TarError.
    """
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
                tar.extractall(target, filter=_inside)
            _unpack(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        complete.touch()
    return target


def _unpack(place: Path) -> None:
    """Run conda-unpack to correct the paths in an environment's files. Raises LoadError."""
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
    """Return what to extract for a member. Raises LoadError if it would leave the directory."""
    try:
        return tarfile.data_filter(member, place)
    except tarfile.FilterError as exc:
        raise LoadError(f"the archive has a member that leads out of it: {exc}") from exc


def _cache(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "tpx" / "environments"


def _variables(path: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment variables that activation would set."""
    library = environment.get("LD_LIBRARY_PATH", "")
    return {
        "PATH": f"{path / 'bin'}{os.pathsep}{environment.get('PATH', '')}",
        "LD_LIBRARY_PATH": f"{path / 'lib'}{os.pathsep}{library}" if library else str(path / "lib"),
        "CONDA_PREFIX": str(path),
        "VIRTUAL_ENV": str(path),
    }
