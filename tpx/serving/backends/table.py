"""Backends by name and by platform, and the file names that identify them.

A name that is not in this table is looked up in --backend-directory, then among the entry points of the
installed packages.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from tpx.errors import Code, LoadError
from tpx.serving.backends.contract import Backend
from tpx.serving.extensions import BuiltIn, ExtensionKind, imported, make, names, offer_of, unknown

_ALL = {
    "onnxruntime": ("onnxruntime:OnnxRuntimeBackend", "onnxruntime", "onnx"),
    "identity": ("models_in_code:IdentityBackend", "", ""),
    "python": ("python.backend:PythonBackend", "", ""),
    "pytorch": ("pytorch.backend:PytorchBackend", "torch", "torch"),
    "llamacpp": ("llamacpp.backend:LlamaCppBackend", "xllamacpp", "llm"),
    "openvino_genai": ("openvino_genai.backend:OpenVinoGenAiBackend", "openvino_genai", "openvino-genai"),
    "vllm": ("vllm.backend:VllmBackend", "vllm", "vllm"),
    "repeat": ("models_in_code:RepeatBackend", "", ""),
    "dali": ("dali.backend:DaliBackend", "nvidia.dali", "dali"),
    "openvino": ("openvino.backend:OpenVinoBackend", "openvino", "openvino"),
    "tensorflow": ("tensorflow.backend:TensorFlowBackend", "tensorflow", "tensorflow"),
    "tensorrt": ("tensorrt.backend:TensorRtBackend", "tensorrt", "tensorrt"),
}
"""Class, package that it needs, and extra that installs it."""
KNOWN: Mapping[str, BuiltIn] = {
    name: BuiltIn(f"tpx.serving.backends.{target}", package, f"pip install 'tpx[{extra}]'" if extra else "")
    for name, (target, package, extra) in _ALL.items()
}

PLATFORM_OF_BACKEND = {
    "onnxruntime": "onnxruntime_onnx",
    "tensorrt": "tensorrt_plan",
    "pytorch": "pytorch_libtorch",
    "tensorflow": "tensorflow_savedmodel",
}
"""Either one fills in the other if a configuration omits it."""
BACKEND_OF_PLATFORM = {platform: backend for backend, platform in PLATFORM_OF_BACKEND.items()} | {
    "torch_aoti": "pytorch",
    "tensorflow_graphdef": "tensorflow",
}

MISNOMERS = {
    "onnx": "onnxruntime",
    "ort": "onnxruntime",
    "libtorch": "pytorch",
    "torch": "pytorch",
    "torchscript": "pytorch",
    "trt": "tensorrt",
    "tf": "tensorflow",
    "savedmodel": "tensorflow",
    "ov": "openvino",
    "py": "python",
    "gguf": "llamacpp",
    "llama.cpp": "llamacpp",
    "llama_cpp": "llamacpp",
}
"""Backends by names that they do not have here."""
_OTHERS = frozenset({"fil", "tensorrtllm"})
"""Native Triton backends that tpx does not provide."""

RECOGNISED_FILES = {
    "model.savedmodel": ("tensorflow", "tensorflow_savedmodel"),
    "model.graphdef": ("tensorflow", "tensorflow_graphdef"),
    "model.plan": ("tensorrt", "tensorrt_plan"),
    "model.onnx": ("onnxruntime", "onnxruntime_onnx"),
    "model.xml": ("openvino", ""),
    "openvino_model.xml": ("openvino_genai", ""),
    "model.pt": ("pytorch", "pytorch_libtorch"),
    "model.pt2": ("pytorch", "torch_aoti"),
    "model.dali": ("dali", ""),
    "model.gguf": ("llamacpp", ""),
    "model.py": ("python", ""),
}
"""File names in the order in which Triton looks for them (core/src/model_config_utils.cc)."""

BACKENDS = ExtensionKind(
    noun="backend", group="tpx.backends", known=KNOWN, needs=("default_filename", "open")
)
"""A package adds a backend with an entry point in this group: `mine = "my_package:MineBackend"`."""


class NoBackend(LoadError):
    """No backend has this name."""

    code = Code.INVALID_ARGUMENT


def backend(name: str, directory: Path | None = None) -> Backend:
    """Return the backend with a name, which may be a Python-based one: a `model.py` in `directory`
    shared by its models.

    Raises NoBackend, or LoadError if a package is missing.
    """
    runtime = _find_runtime(name, directory)
    if runtime is not None:
        python = cast("type", imported(KNOWN["python"].target))
        return cast("Backend", python(runtime))
    made = make(BACKENDS, name)
    if made is None:
        raise NoBackend(_explain_missing_backend(name, directory))
    return cast("Backend", made)


def _explain_missing_backend(name: str, directory: Path | None) -> str:
    """Return the message for an unknown backend, with a suggestion or a remedy."""
    fault = (
        f"unable to find backend library for backend '{name}', try specifying runtime on the model "
        "configuration."
    )
    if name == "ensemble":
        return f'{fault} An ensemble has no backend: it is platform: "ensemble" with ensemble_scheduling'
    meant = MISNOMERS.get(name.lower()) or BACKEND_OF_PLATFORM.get(name, "")
    if meant:
        return f"{fault} (did you mean '{meant}'?)"
    if name in _OTHERS:
        known = ", ".join(backend_names(directory))
        return f"{fault} It is one of Triton's that tpx does not have (tpx has: {known})"
    local = directory is not None and Path(name).name == name
    words = unknown(BACKENDS, name, fault, [*python_based(directory)])
    place = f": a python-based backend would be '{directory}/{name}/model.py'" if local else ""
    return f"{words}{place}"


def locate_code(name: str, directory: Path | None = None) -> str:
    """Return where a backend's code is, or an empty string. Raises LoadError if two packages provide it."""
    runtime = _find_runtime(name, directory)
    if runtime is not None:
        return str(runtime)
    found = KNOWN.get(name) or offer_of(BACKENDS, name)
    return found.target.partition(":")[0] if found is not None else ""


def python_based(directory: Path | None) -> dict[str, Path]:
    """Return the `model.py` of each Python-based backend in --backend-directory, by name."""
    found = [] if directory is None else sorted(directory.glob("*/model.py"))
    return {path.parent.name: path for path in found if path.parent.name not in KNOWN}


def backend_names(directory: Path | None) -> list[str]:
    """Return the names of all backends that a model may use here."""
    return [*names(BACKENDS), *python_based(directory)]


def _find_runtime(name: str, directory: Path | None) -> Path | None:
    """Return the file of a Python-based backend, None if there is none."""
    if name in KNOWN or directory is None or not name or Path(name).name != name:
        return None
    runtime = directory / name / "model.py"
    return runtime if runtime.is_file() else None
