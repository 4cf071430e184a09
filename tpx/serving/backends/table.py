"""The backends by name and by platform, and the files by which they are recognised.

A name that is not in this table is looked for in --backend-directory, then among the entry points of the
installed packages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from tpx.errors import LoadError
from tpx.options import nearest
from tpx.serving.backends.base import Backend
from tpx.serving.entry_points import Offer, imported, offer_of, offers

ENTRY_POINTS = "tpx.backends"
"""The group in which a package names its backends: `mine = "my_package:MineBackend"`."""


@dataclass(frozen=True, slots=True)
class Known:
    """A backend of tpx, imported when the first model needs it."""

    target: str
    """Module and class."""
    package: str = ""
    """What it needs beside tpx, as it is imported."""
    install: str = ""
    """The command that brings it."""


KNOWN: Mapping[str, Known] = {
    "onnxruntime": Known(
        "tpx.serving.backends.onnxruntime:OnnxRuntimeBackend", "onnxruntime", "pip install 'tpx[onnx]'"
    ),
    "identity": Known("tpx.serving.backends.identity:IdentityBackend"),
    "python": Known("tpx.serving.backends.python.backend:PythonBackend"),
    "repeat": Known("tpx.serving.backends.repeat:RepeatBackend"),
}

PLATFORM_OF_BACKEND = {
    "onnxruntime": "onnxruntime_onnx",
    "tensorrt": "tensorrt_plan",
    "pytorch": "pytorch_libtorch",
}
"""Platform and backend fill each other in."""
BACKEND_OF_PLATFORM = {platform: backend for backend, platform in PLATFORM_OF_BACKEND.items()} | {
    "torch_aoti": "pytorch"
}

RECOGNISED_FILES = {
    "model.plan": ("tensorrt", "tensorrt_plan"),
    "model.onnx": ("onnxruntime", "onnxruntime_onnx"),
    "model.xml": ("openvino", ""),
    "model.pt": ("pytorch", "pytorch_libtorch"),
    "model.pt2": ("pytorch", "torch_aoti"),
    "model.py": ("python", ""),
}
"""In the order in which Triton looks for them (core/src/model_config_utils.cc)."""

_BACKEND = ("default_filename", "open", "default_instance_count")


def backend(name: str, directory: Path | None = None) -> Backend:
    """The backend of a name, be it a Python model in `directory` that serves all of its models.

    Raises LoadError that says what is missing.
    """
    if name in KNOWN:
        return _known(name, KNOWN[name])
    runtime = _runtime(name, directory)
    if runtime is not None:
        python = cast("type", imported(KNOWN["python"].target))
        return cast("Backend", python(runtime))
    offered = offers(ENTRY_POINTS)
    offer = offer_of(offered, name, "backend")
    if offer is None:
        names = [*KNOWN, *dict.fromkeys(each.name for each in offered)]
        raise LoadError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model "
            f"configuration. (tpx has: {', '.join(names)}){nearest(name, names)}"
        )
    return _offered(offer)


def whereabouts(name: str, directory: Path | None = None) -> str:
    """Where the code of a backend is, or an empty string."""
    if name in KNOWN:
        return KNOWN[name].target.partition(":")[0]
    runtime = _runtime(name, directory)
    if runtime is not None:
        return str(runtime)
    return next((offer.target.partition(":")[0] for offer in offers(ENTRY_POINTS) if offer.name == name), "")


def _known(name: str, known: Known) -> Backend:
    if known.package and find_spec(known.package) is None:
        raise LoadError(f"backend '{name}' needs the package {known.package}: {known.install}")
    try:
        made = cast("type", imported(known.target))
    except LoadError as exc:
        raise LoadError(
            f"backend '{name}' cannot be used, its package {known.package or 'tpx'} fails to import "
            f"(`tpx doctor` tells more): {exc}"
        ) from exc
    return cast("Backend", made())


def _runtime(name: str, directory: Path | None) -> Path | None:
    """The file of a python-based backend."""
    if directory is None or not name or Path(name).name != name:
        return None
    runtime = directory / name / "model.py"
    return runtime if runtime.is_file() else None


def _offered(offer: Offer) -> Backend:
    """Raises LoadError that names the package, for whatever is wrong with it."""
    blame = f"backend '{offer.name}' is added by {offer.origin}"
    try:
        made = imported(offer.target)
    except LoadError as exc:
        raise LoadError(f"{blame}, which cannot be imported: {exc}") from exc
    if not callable(made):
        raise LoadError(f"{blame}, which is no class")
    try:
        found = made()
    except Exception as exc:
        raise LoadError(f"{blame}, which cannot be made: {type(exc).__name__}: {exc}") from exc
    missing = [
        each for each in ("default_filename", "open", "default_instance_count") if not hasattr(found, each)
    ]
    if missing:
        raise LoadError(f"{blame}, which is no backend: it has no {', '.join(missing)}")
    return cast("Backend", found)
