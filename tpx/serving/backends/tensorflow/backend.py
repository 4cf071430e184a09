"""TensorFlow models: a SavedModel with one of its signatures, or a frozen graph with the names of its
operations.

Each instance has its own session, and therefore its own variables, unless MAX_SESSION_SHARE_COUNT lets
several instances share one.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpx.errors import ConfigError, ExecutionError, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.protocol.tensors import Array
from tpx.serving.backends.contract import (
    Arrays,
    Description,
    Executor,
    InstanceSpec,
    ModelFiles,
    inside,
    no_file,
)
from tpx.serving.backends.model_tensors import (
    ModelTensor,
    check_all_required,
    check_signature,
    complete_tensors,
    from_model,
    to_model,
)
from tpx.serving.backends.parameters import instance_specs
from tpx.serving.backends.tensorflow.sessions import (
    BFLOAT16,
    ERRORS,
    Call,
    GraphSession,
    GraphTensor,
    gpu_count,
    graph_tensor,
    init_ops_of,
    signature_of,
    tensors_of,
)
from tpx.serving.backends.tensorflow.settings import settings_of
from tpx.serving.stacking.added import added_inputs, taken_outputs

_GRAPH, _GRAPH_FILE = "tensorflow_graphdef", "model.graphdef"


class TensorFlowBackend:
    """Opens `model.savedmodel`, a directory, or `model.graphdef`, a file."""

    default_filename = "model.savedmodel"

    def open(self, files: ModelFiles, config: ModelConfig) -> "TensorFlowModel":
        path = inside(files.directory, config.default_model_filename, "default_model_filename")
        default = config.default_model_filename == self.default_filename
        if default and not path.exists() and (files.directory / _GRAPH_FILE).exists():
            config.platform, config.default_model_filename = _GRAPH, _GRAPH_FILE
            path = files.directory / _GRAPH_FILE
        if not path.exists():
            raise no_file(path, files.model_name)
        return TensorFlowModel(path, files, config)

    gpus_only = False

    def gpus(self) -> range:
        return range(gpu_count())

    def describe(self) -> Description:
        names = [device.name for device in tf.config.list_physical_devices()]
        devices = tuple(name.removeprefix("/physical_device:") for name in names)
        return Description(version=tf.__version__, devices=devices)


class TensorFlowModel:
    """One open version; its first session completes the configuration and serves the first instance."""

    inline = False
    """False, because operations may block on files or queues."""

    def __init__(self, path: Path, files: ModelFiles, config: ModelConfig) -> None:
        self._path, self._name = path, files.model_name
        self._settings = settings_of(config, files.settings)
        self._graph = config.platform == _GRAPH
        if self._settings.init_ops_file and not self._graph:
            raise ConfigError(
                f"parameter 'TF_INIT_OPS_FILE' of model '{self._name}' is for the platform {_GRAPH}: a "
                "SavedModel initializes itself",
                field="parameters[TF_INIT_OPS_FILE]",
            )
        self._init_ops = init_ops_of(self._settings, self._name, files.directory)
        self._inputs: list[GraphTensor] = []
        self._outputs: list[GraphTensor] = []
        self._lock = threading.Lock()
        self._used: list[_Used] = []
        first = instance_specs(config)[0]
        self._first = self._load_session(first)
        self._used.append(_Used(session=self._first, place=(first.kind, first.device_id)))

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        if self._graph:
            return  # a graph does not declare its inputs and outputs
        tensors = [*self._inputs, *self._outputs]
        possible = all(tensor.shape[:1] == (-1,) for tensor in tensors)
        if not possible and config.max_batch_size and all(tensor.ranked for tensor in tensors):
            raise ConfigError(
                f"unable to autofill for '{self._name}', configuration specified max-batch "
                f"{config.max_batch_size} but model signature does not support batching",
                field="max_batch_size",
            )
        most = max(1, default_max_batch_size) if possible else 0
        complete_tensors(config, self._inputs, self._outputs, most)

    def check(self, config: ModelConfig) -> None:
        check_all_required(config, "TensorFlow")
        if self._graph:  # the configured tensors are outputs of the graph's operations
            inputs = {*(item.name for item in config.input), *added_inputs(config)}
            outputs = {*(item.name for item in config.output), *taken_outputs(config)}
            self._inputs = self._find_graph_tensors("input", sorted(inputs))
            self._outputs = self._find_graph_tensors("output", sorted(outputs))
        check_signature(config, self._inputs, self._outputs)

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> Executor:
        if spec.kind == "KIND_GPU" and spec.device_id >= gpu_count():
            raise ConfigError(
                f"instance '{spec.name}' of model '{self._name}' asks for GPU {spec.device_id}, but "
                f"TensorFlow sees {gpu_count()} GPUs (pip install 'tensorflow[and-cuda]' adds CUDA)",
                field="instance_group",
            )
        used = {item.name for item in config.output} | set(taken_outputs(config))
        outputs = [tensor for tensor in self._outputs if tensor.name in used]
        # a session on the device with room for another instance, or a new one
        place = spec.kind, spec.device_id
        with self._lock:
            sessions = [used for used in self._used if used.place == place]
            taken = next((used for used in sessions if used.instances < self._settings.sharing), None)
            if taken is None:
                taken = _Used(session=self._load_session(spec), place=place)
                self._used.append(taken)
            taken.instances += 1
        try:
            call = taken.session.call(
                [tensor.place for tensor in self._inputs], [tensor.place for tensor in outputs]
            )
        except ERRORS as exc:
            self._release_session(taken)
            raise LoadError(f"tensorflow cannot prepare model '{self._name}': {_format_reason(exc)}") from exc
        return _CallExecutor(call, self._inputs, outputs, lambda: self._release_session(taken))

    def close(self) -> None:
        for used in self._used:
            used.session.close()
        self._used.clear()

    def _release_session(self, taken: "_Used") -> None:
        """Release an instance's use of a session; an unused session is closed unless it is the first."""
        with self._lock:
            taken.instances -= 1
            if not taken.instances and taken.session is not self._first and taken in self._used:
                self._used.remove(taken)
                taken.session.close()

    def _load_session(self, spec: InstanceSpec) -> GraphSession:
        session = GraphSession(self._settings, spec)
        try:
            if self._graph:
                session.load_graph(self._path, self._init_ops)
                return session
            signatures = session.load_saved_model(self._path, self._settings.tag)
        except ERRORS as exc:
            session.close()
            raise LoadError(
                f"tensorflow cannot load '{self._path}' of model '{self._name}': {_format_reason(exc)}"
            ) from exc
        if not self._inputs and not self._outputs:
            chosen = signature_of(self._name, signatures, self._settings.signature)
            self._inputs = tensors_of(self._name, chosen.inputs)
            self._outputs = tensors_of(self._name, chosen.outputs)
        return session

    def _find_graph_tensors(self, kind: str, names: Sequence[str]) -> list[GraphTensor]:
        graph = self._first.graph
        tensors = []
        for name in names:
            try:
                found = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
            except ERRORS as exc:
                allowed = [
                    op.name
                    for op in graph.get_operations()
                    if (op.type == "Placeholder" if kind == "input" else _is_result(op))
                ]
                raise ConfigError(
                    f"unexpected inference {kind} '{name}', allowed {kind}s are: {', '.join(allowed)}"
                ) from exc
            sizes = None if found.shape.rank is None else found.shape.as_list()
            datatype = found.dtype.as_datatype_enum
            tensors.append(graph_tensor(self._name, name, found.name, datatype, sizes))
        return tensors


@dataclass(slots=True, eq=False, kw_only=True)
class _Used:
    """A session and the number of instances that use it."""

    session: GraphSession
    place: tuple[str, int]
    instances: int = 0


@dataclass(slots=True, eq=False)
class _CallExecutor:
    """Calls a session's function. Outputs are in TensorFlow's memory, which is not overwritten."""

    _call: Call
    _inputs: Sequence[ModelTensor]
    _outputs: Sequence[ModelTensor]
    _release_session: Callable[[], None]

    def execute(self, inputs: Arrays) -> Arrays:
        given = [to_model(inputs[tensor.name], tensor) for tensor in self._inputs]
        for at, tensor in enumerate(self._inputs):
            if tensor.datatype == "BF16":
                given[at] = given[at].view(BFLOAT16)
        try:
            results = self._call(*given)
        except ERRORS as exc:
            raise ExecutionError(f"tensorflow error: {_format_reason(exc)}") from exc
        return {
            tensor.name: _convert_result(result, tensor)
            for tensor, result in zip(self._outputs, results, strict=True)
        }

    def close(self) -> None:
        del self._call
        self._release_session()


def _convert_result(result: Any, tensor: ModelTensor) -> Array:
    if isinstance(result, bytes):
        array = np.empty(1, dtype=np.object_)
        array[0] = result
        return array
    return from_model(result, tensor)


def _is_result(operation: Any) -> bool:
    """Return whether the operation has outputs, which no other operation consumes."""
    return operation.outputs and not any(output.consumers() for output in operation.outputs)


def _format_reason(exc: Exception) -> str:
    return str(getattr(exc, "message", "") or exc).strip()
