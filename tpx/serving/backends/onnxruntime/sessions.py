"""Opening sessions, on the providers that were asked for and on no others."""

import contextlib
import io
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import onnxruntime as ort

from tpx.errors import LoadError
from tpx.serving.backends.onnxruntime.failures import ORT_ERRORS
from tpx.serving.backends.onnxruntime.providers import CUDA, OPENVINO, Provider, check_started

_opening_with_openvino = threading.Lock()
_loading_libraries = threading.Lock()


def open_session(
    path: Path, options: ort.SessionOptions, providers: Sequence[Provider], model: str
) -> ort.InferenceSession:
    """A session on a model file. Raises LoadError, also where ONNX Runtime would do without a provider."""
    names = {provider.name for provider in providers}
    cause = ""
    if CUDA.name in names:
        with _loading_libraries:
            cause = _load_libraries()
    # OpenVINO's sessions cannot be made by several threads at a time
    alone = _opening_with_openvino if OPENVINO.name in names else contextlib.nullcontext()
    try:
        with alone:
            session = ort.InferenceSession(
                str(path),
                options,
                providers=[(provider.name, dict(provider.options)) for provider in providers],
                enable_fallback=0,  # else it tries again on the CPU, and prints so
            )
    except ORT_ERRORS as exc:
        raise LoadError(f"onnx runtime cannot load '{path}' of model '{model}': {exc}") from exc
    check_started(session, providers, model, cause)
    return session


@cache
def _load_libraries() -> str:
    """Load CUDA and cuDNN from the packages that bring them, once; returns what could not be loaded."""
    if not hasattr(ort, "preload_dlls"):
        return ""
    words = io.StringIO()
    with contextlib.redirect_stdout(words):  # it prints what it misses
        ort.preload_dlls()
    return "; ".join(line for line in words.getvalue().splitlines() if line.strip())
