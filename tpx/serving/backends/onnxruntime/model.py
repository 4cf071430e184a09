"""The ONNX Runtime backend: open versions of ONNX models and their sessions.

Instances on the CPU whose runs compute in the calling thread share a session, so that the weights are
in memory once. Instances with their own threads, and those on other providers, have one session each.
Idle threads do not spin: with a small model, spinning doubles the CPU time per inference and costs a
third of the throughput.
"""

import contextlib
import io
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import onnxruntime as ort

from tpx.cuda_driver import CudaDriver
from tpx.errors import LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import Description, Executor, InstanceSpec, ModelFiles, inside, no_file
from tpx.serving.backends.model_tensors import check_signature
from tpx.serving.backends.onnxruntime.execution import ArrayExecutor, BoundExecutor
from tpx.serving.backends.onnxruntime.graph import work_depends_on_values
from tpx.serving.backends.onnxruntime.options import (
    Threads,
    run_options,
    session_options,
    shrinking_options,
    warn_of_unknown,
)
from tpx.serving.backends.onnxruntime.providers import (
    CPU,
    CUDA,
    OPENVINO,
    Provider,
    check_accelerators,
    check_started,
    providers_of,
)
from tpx.serving.backends.onnxruntime.signature import ORT_ERRORS, OnnxTensor, complete_signature, ranked_by
from tpx.serving.backends.parameters import instance_specs
from tpx.serving.stacking.added import taken_outputs

_opening_with_openvino = threading.Lock()
_loading_libraries = threading.Lock()


def open_session(
    path: Path, options: ort.SessionOptions, providers: Sequence[Provider], model: str
) -> ort.InferenceSession:
    """Open a session on a model file. Raises LoadError, also if ONNX Runtime would run without a provider."""
    names = {provider.name for provider in providers}
    cause = ""
    if CUDA.name in names:
        with _loading_libraries:
            cause = _load_libraries()
    # OpenVINO's sessions cannot be created concurrently
    alone = _opening_with_openvino if OPENVINO.name in names else contextlib.nullcontext()
    try:
        with alone:
            session = ort.InferenceSession(
                str(path),
                options,
                providers=[(provider.name, dict(provider.options)) for provider in providers],
                enable_fallback=0,  # otherwise it prints a message and retries on the CPU
            )
    except ORT_ERRORS as exc:
        raise LoadError(f"onnx runtime cannot load '{path}' of model '{model}': {exc}") from exc
    check_started(session, providers, model, cause)
    return session


@cache
def _load_libraries() -> str:
    """Load CUDA and cuDNN from their Python packages, once; return what could not be loaded."""
    if not hasattr(ort, "preload_dlls"):
        return ""
    words = io.StringIO()
    with contextlib.redirect_stdout(words):  # it prints the libraries that it cannot find
        ort.preload_dlls()
    return "; ".join(line for line in words.getvalue().splitlines() if line.strip())


_IDENTITY = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""Smallest possible model: y = x, one FP32 element."""
_NOT_FOR_MODELS = "AzureExecutionProvider"  # it sends requests to a remote service


def _is_provider_usable(provider: str) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(_IDENTITY, options, providers=[provider])
    except ORT_ERRORS:
        return False
    return provider in session.get_providers()


class OnnxRuntimeBackend:
    """Opens `model.onnx`, which is a file, or a directory that contains it."""

    default_filename = "model.onnx"

    def open(self, files: ModelFiles, config: ModelConfig) -> "OnnxModel":
        name = config.default_model_filename or self.default_filename
        path = inside(files.directory, name, "default_model_filename")
        if path.is_dir():
            path = path / self.default_filename
        if not path.is_file():
            raise no_file(path, files.model_name)
        return OnnxModel(path, files, config)

    def default_instance_count(self, kind: str) -> int:
        return 2 if kind == "KIND_CPU" else 1

    gpus_only = False

    def gpus(self) -> list[int]:
        return CudaDriver.devices() if CUDA.name in ort.get_available_providers() else []

    def describe(self) -> Description:
        """Report the built-in providers. Each is tried with a model, because its libraries may be missing."""
        available = [provider for provider in ort.get_available_providers() if provider != _NOT_FOR_MODELS]
        providers = tuple(
            name if _is_provider_usable(name) else f"{name} (does not work here)" for name in available
        )
        return Description(version=ort.__version__, providers=providers)


class OnnxModel:
    """One version; the session that opening creates completes the configuration, then serves an instance."""

    def __init__(self, path: Path, files: ModelFiles, config: ModelConfig) -> None:
        self._path = path
        self._files = files
        self._threads = Threads.of(config, files.settings)
        specs = instance_specs(config)
        check_accelerators(config, specs)
        warn_of_unknown(config, files.settings, on_gpu=any(spec.kind == "KIND_GPU" for spec in specs))
        self.session_options = session_options(config, self._threads, files)
        self._first: tuple[InstanceSpec, ort.InferenceSession] | None = None
        session = self._open_session(specs[0], config)
        self._first = specs[0], session
        self.inline = not work_depends_on_values(path)
        self._shared: ort.InferenceSession | None = None
        self._inputs = [OnnxTensor.of(node) for node in session.get_inputs()]
        self._outputs = [OnnxTensor.of(node) for node in session.get_outputs()]
        self._weights = [OnnxTensor.of(node) for node in session.get_overridable_initializers()]
        """Initializers that requests may override: optional inputs."""

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        complete_signature(config, self._inputs, self._outputs, default_max_batch_size=default_max_batch_size)

    def check(self, config: ModelConfig) -> None:
        check_signature(config, self._list_inputs(config), ranked_by(config, config.output, self._outputs))

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> Executor:
        used = {item.name for item in config.output} | set(taken_outputs(config))
        outputs = [tensor for tensor in self._outputs if tensor.name in used]
        inputs = self._list_inputs(config)
        datatypes = {tensor.datatype for tensor in (*inputs, *outputs)}
        if datatypes >= {"BF16", "BYTES"}:
            raise LoadError(
                f"model '{config.name}' has bfloat16 and string tensors: ONNX Runtime's Python API "
                "cannot take both"
            )
        options = run_options(config, spec)
        session = self._obtain_session(spec, config)
        # strings are in host memory only, and NumPy has no bfloat16
        if "BF16" in datatypes or (spec.kind == "KIND_GPU" and "BYTES" not in datatypes):
            device = ("cuda", spec.device_id) if spec.kind == "KIND_GPU" else ("cpu", 0)
            return BoundExecutor(session, inputs, outputs, options, device)
        shrinks = self.session_options.enable_cpu_mem_arena and session.get_providers() == [CPU.name]
        return ArrayExecutor(session, inputs, outputs, options, shrinking_options() if shrinks else None)

    def divides_as(self, config: ModelConfig) -> bool:
        """Return whether the sessions' threads, their share of the cores, remain the same."""
        return self._threads.common or Threads.of(config, self._files.settings) == self._threads

    def close(self) -> None:
        self._first = self._shared = None

    def _list_inputs(self, config: ModelConfig) -> list[OnnxTensor]:
        optional = {item.name for item in config.input if item.optional}
        tensors = [*self._inputs, *(tensor for tensor in self._weights if tensor.name in optional)]
        return ranked_by(config, config.input, tensors)

    def _obtain_session(self, spec: InstanceSpec, config: ModelConfig) -> ort.InferenceSession:
        """Return the shared session, the one created by opening, or a new one."""
        first, self._first = self._first, None
        # runs compute in the calling thread or in the shared pools
        in_the_caller = self._threads.common or self._threads.intra_op == 1
        shares = in_the_caller and providers_of(config, spec) == [CPU]
        if self._shared is not None and shares:
            return self._shared
        if first is not None and (first[0].kind, first[0].device_id) == (spec.kind, spec.device_id):
            session = first[1]
        else:
            session = self._open_session(spec, config)
        if shares:
            self._shared = session
        return session

    def _open_session(self, spec: InstanceSpec, config: ModelConfig) -> ort.InferenceSession:
        providers = providers_of(config, spec)
        return open_session(self._path, self.session_options, providers, self._files.model_name)
