"""Writing the examples as a Triton model repository; each model is written completely or not at all."""

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
from tpx.examples.alexnet import ALEXNET
from tpx.examples.elementwise import ACCUMULATOR, ADD_SUB, IDENTITY
from tpx.examples.example import Example
from tpx.examples.image import IMAGE, PHOTO
from tpx.examples.language import TINY
from tpx.examples.mnist import MNIST, MNIST_TORCH
from tpx.examples.python_models import PYTHON

EXAMPLES = {
    example.name: example
    for example in (
        ALEXNET,
        MNIST,
        ADD_SUB,
        IDENTITY,
        ACCUMULATOR,
        *IMAGE,
        *PYTHON,
        MNIST_TORCH,
        TINY,
        *PHOTO,
    )
}
ALL: tuple[str, ...] = tuple(name for name, example in EXAMPLES.items() if not example.needs)
"""Examples that can be served wherever they can be written."""
STAGING_PREFIX = ".tpx-example-"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    """Example in a model repository."""

    name: str
    path: Path
    """The model's directory: config.pbtxt and version directory 1."""
    description: str
    kept: bool
    """True if the model existed and was left unchanged."""


def default_directory() -> Path:
    """Return the directory of the examples for `tpx serve` without arguments: tpx/models in the user's
    cache.

    The cache is $XDG_CACHE_HOME, or ~/.cache if that is unset or relative (XDG Base Directory
    Specification). Raises UsageError if there is no home directory either.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        try:
            cache = Path.home() / ".cache"
        except RuntimeError as exc:
            raise UsageError(
                "no directory for the example models: this user has no home directory; "
                "set XDG_CACHE_HOME to an absolute path, or name a model repository"
            ) from exc
    return cache / "tpx" / "models"


def servable() -> tuple[str, ...]:
    """Return all examples whose required packages are installed."""
    return tuple(name for name, each in EXAMPLES.items() if _is_installed(each.needs))


def _is_installed(package: str) -> bool:
    """Return True if `package` can be imported; "" means no package."""
    try:
        return not package or find_spec(package) is not None
    except ModuleNotFoundError:  # the parent package `a` of `a.b` is missing
        return False


def write(
    directory: str | Path, names: Sequence[str] = ALL, *, overwrite: bool = False
) -> list[WrittenModel]:
    """Write the named examples, and those that they call, into a model repository, which is created if
    missing.

    A model is built in a hidden sibling and renamed, so that it is never visible half-written; the
    siblings of killed writers are removed by the next write. An existing model directory is left
    unchanged unless `overwrite`. Several processes may write at once: the first to finish wins. Raises
    UsageError: unknown name, `onnx` not installed, not enough disk space, directory not writable.
    """
    directory = Path(directory)
    chosen = [_find_example(name) for name in names]
    examples = list({e.name: e for one in chosen for e in (*map(_find_example, one.calls), one)}.values())
    wanted = [e for e in examples if overwrite or not _is_present(directory / e.name)]
    if wanted:
        _require_onnx([e.name for e in wanted if e.needs_onnx])
        with _prepare_directory(directory, wanted):
            fresh = {e.name for e in wanted if _write_example(directory, e, overwrite=overwrite)}
    else:
        fresh = set()
    return [
        WrittenModel(
            name=e.name, path=directory / e.name, description=e.description, kept=e.name not in fresh
        )
        for e in examples
    ]


def _find_example(name: str) -> Example:
    if name not in EXAMPLES:
        raise UsageError(f"there is no example model '{name}' (there are: {', '.join(EXAMPLES)})")
    return EXAMPLES[name]


def _is_present(target: Path) -> bool:
    """Check for the target with a single call: other writers may move a model in or out at any time."""
    try:
        is_directory = stat.S_ISDIR(target.stat().st_mode)
    except FileNotFoundError:
        if not target.is_symlink():
            return False
        is_directory = False
    except OSError:
        return False  # not accessible: creating the directory reports why
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
def _prepare_directory(directory: Path, wanted: Sequence[Example]) -> Iterator[None]:
    """Create `directory`, check its space, and block cleanup by others meanwhile; converts OSError."""
    size = sum(e.size_bytes for e in wanted)
    what = f"example models {', '.join(e.name for e in wanted)} ({_format_mb(size)}) into '{directory}'"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _remove_leftovers(directory):
            free = shutil.disk_usage(directory).free
            if free < size:
                raise UsageError(
                    f"not enough disk space for the {what}: {_format_mb(free)} free, {_format_mb(size)} "
                    "needed",
                    code=Code.RESOURCE_EXHAUSTED,
                )
            yield
    except OSError as exc:
        raise UsageError(f"cannot write the {what}: {exc.strerror or exc}; choose another directory") from exc


@contextmanager
def _remove_leftovers(directory: Path) -> Iterator[None]:
    """Remove the leftovers of killed writers, unless another writer is active.

    Each writer holds a shared lock on the directory; a process that gets the exclusive lock is alone,
    so all siblings are dead. If locks do not work, leftovers stay.
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


def _write_example(directory: Path, example: Example, *, overwrite: bool) -> bool:
    """Build one model and move it into place. Returns False if another writer was first."""
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


def _format_mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
