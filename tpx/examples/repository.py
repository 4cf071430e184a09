"""Writing the examples as a Triton model repository, all of a model or nothing of it."""

import errno
import fcntl
import importlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tpx.errors import Code, UsageError
from tpx.examples.accumulator import ACCUMULATOR
from tpx.examples.alexnet import ALEXNET
from tpx.examples.elementwise import ADD_SUB, IDENTITY
from tpx.examples.example import Example
from tpx.examples.image import IMAGE
from tpx.examples.mnist import MNIST
from tpx.examples.photo import PHOTO
from tpx.examples.python_models import PYTHON
from tpx.examples.pytorch import MNIST_TORCH

EXAMPLES = {
    example.name: example
    for example in (ALEXNET, MNIST, ADD_SUB, IDENTITY, ACCUMULATOR, *IMAGE, *PYTHON, MNIST_TORCH, *PHOTO)
}
ALL: tuple[str, ...] = tuple(name for name, example in EXAMPLES.items() if not example.needs)
"""Those that can be served wherever they can be written."""
STAGING_PREFIX = ".tpx-example-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    """One example in a model repository."""

    name: str
    path: Path
    """The model's directory: config.pbtxt and version directory 1."""
    description: str
    kept: bool
    """It was there already and was left as it was."""


def default_directory() -> Path:
    """Where `tpx serve` without arguments keeps the examples: tpx/models in the user's cache.

    The cache is $XDG_CACHE_HOME, or ~/.cache where that is unset or (XDG Base Directory
    Specification) relative. Raises UsageError where there is no home directory either.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError as exc:
            raise UsageError(
                "no place for the example models: this user has no home directory; "
                "set XDG_CACHE_HOME to an absolute path, or name a model repository"
            ) from exc
    return cache / "tpx" / "models"


def servable() -> tuple[str, ...]:
    """All examples but those that need a package which is not installed."""
    return tuple(name for name, each in EXAMPLES.items() if _is_installed(each.needs))


def _is_installed(package: str) -> bool:
    """Return whether `package` can be imported; "" is no package."""
    try:
        return not package or find_spec(package) is not None
    except ModuleNotFoundError:  # of `a.b` not even `a` is there
        return False


def write(
    directory: str | Path, names: Sequence[str] = ALL, *, overwrite: bool = False
) -> list[WrittenModel]:
    """Write the named examples, and those that they call, into a model repository, which is made where it is
    missing.

    A model is built in a hidden sibling and renamed, so no one ever sees half of it; what a killed
    process left of a sibling goes with the next write. A directory of a model's name is left
    untouched unless `overwrite`. Several processes may write at once: the first to finish wins.
    Raises UsageError: unknown name, `onnx` not installed, not enough disk space, directory not writable.
    """
    directory = Path(directory)
    chosen = [_example(name) for name in names]
    examples = list({e.name: e for one in chosen for e in (*map(_example, one.calls), one)}.values())
    wanted = [e for e in examples if overwrite or not _is_there(directory / e.name)]
    if wanted:
        _require_onnx([e.name for e in wanted if e.needs_onnx])
        with _writing(directory, wanted):
            fresh = {e.name for e in wanted if _write_one(directory, e, overwrite=overwrite)}
    else:
        fresh = set()
    return [
        WrittenModel(
            name=e.name, path=directory / e.name, description=e.description, kept=e.name not in fresh
        )
        for e in examples
    ]


def _example(name: str) -> Example:
    if name not in EXAMPLES:
        raise UsageError(f"there is no example model '{name}' (there are: {', '.join(EXAMPLES)})")
    return EXAMPLES[name]


def _is_there(target: Path) -> bool:
    """One look, no second: another writer may move a model in or out at any time."""
    try:
        is_directory = stat.S_ISDIR(target.stat().st_mode)
    except FileNotFoundError:
        if not target.is_symlink():
            return False
        is_directory = False
    except OSError:
        return False  # it may not even be looked at: making the directory reports why
    if not is_directory:
        raise UsageError(
            f"'{target}' is in the way of an example model and is not a directory: remove it first"
        )
    return True


def _require_onnx(names: Sequence[str]) -> None:
    if not names:
        return
    try:
        importlib.import_module("onnx")
    except ImportError as exc:
        raise UsageError(
            f"writing the example models {', '.join(names)} needs the package 'onnx' ({exc}): "
            "pip install 'tpx[onnx]'"
        ) from exc


@contextmanager
def _writing(directory: Path, wanted: Sequence[Example]) -> Iterator[None]:
    """Make `directory`, check its space, hold off others' clearing meanwhile; converts OSError."""
    size = sum(e.size_bytes for e in wanted)
    what = f"example models {', '.join(e.name for e in wanted)} ({_megabytes(size)}) into '{directory}'"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _clear_of_leftovers(directory):
            free = shutil.disk_usage(directory).free
            if free < size:
                raise UsageError(
                    f"no room for the {what}: {_megabytes(free)} free, {_megabytes(size)} needed",
                    code=Code.RESOURCE_EXHAUSTED,
                )
            yield
    except OSError as exc:
        raise UsageError(f"cannot write the {what}: {exc.strerror or exc}; choose another directory") from exc


@contextmanager
def _clear_of_leftovers(directory: Path) -> Iterator[None]:
    """Remove what killed writers left, unless another writer is at work.

    A writer holds a shared lock on the directory; who gets it exclusively is alone, so any
    sibling it finds is dead. Where locks do not work, leftovers stay.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in directory.glob(f"{STAGING_PREFIX}*"):
                shutil.rmtree(leftover, ignore_errors=True)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _write_one(directory: Path, example: Example, *, overwrite: bool) -> bool:
    """Build one model and move it into place; False where another writer was first."""
    target = directory / example.name
    with tempfile.TemporaryDirectory(dir=directory, prefix=STAGING_PREFIX) as staging:
        built, replaced = Path(staging, example.name), Path(staging, "replaced")
        (built / "1").mkdir(parents=True)
        (built / "config.pbtxt").write_text(example.config, encoding="utf-8")
        example.write_files(built)
        if overwrite:
            with suppress(FileNotFoundError):
                target.rename(replaced)
        try:
            built.rename(target)
        except OSError as exc:
            if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            if os.path.lexists(replaced):
                replaced.rename(target)
            raise
    return True


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
