"""The backends that tpx has, by name and by platform, and the files by which they are recognised."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from tpx.errors import LoadError
from tpx.options import nearest
from tpx.serving.backends.base import Backend

_CLASSES = {
    "onnxruntime": "tpx.serving.backends.onnxruntime:OnnxRuntimeBackend",
    "identity": "tpx.serving.backends.identity:IdentityBackend",
    "python": "tpx.serving.backends.python.backend:PythonBackend",
    "repeat": "tpx.serving.backends.repeat:RepeatBackend",
}
_PACKAGES = {"onnxruntime": ("onnxruntime", "pip install 'tpx[onnx]'")}

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


def module_of(name: str) -> str:
    """Where the code of a backend is."""
    return _CLASSES[name].partition(":")[0]


def backend(name: str, directory: Path | None = None) -> Backend:
    """The backend of a name, be it a Python model in `directory` that serves all of its models.

    Raises LoadError that says what is missing.
    """
    target = _CLASSES.get(name)
    if target is None and directory is not None and name and Path(name).name == name:
        runtime = directory / name / "model.py"
        if runtime.is_file():
            return cast("Backend", import_module(module_of("python")).PythonBackend(runtime))
    if target is None:
        raise LoadError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model "
            f"configuration. (tpx has: {', '.join(_CLASSES)}){nearest(name, _CLASSES)}"
        )
    package, command = _PACKAGES.get(name, ("numpy", ""))
    if find_spec(package) is None:
        raise LoadError(f"backend '{name}' needs the package {package}: {command}")
    module, _, attribute = target.partition(":")
    return cast("Backend", getattr(import_module(module), attribute)())
