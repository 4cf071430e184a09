"""TensorFlow sessions: a loaded graph with its variables, threads and device.

They are TensorFlow 1 sessions, into which TensorFlow 2 loads SavedModels of any age. A call takes less
than half the time of a TensorFlow 2 concrete function, and Triton's parameters are properties of
sessions.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.contract import InstanceSpec, inside
from tpx.serving.backends.model_tensors import NUMPY_NAMES, ModelTensor
from tpx.serving.backends.tensorflow.settings import TensorFlowSettings

# silence a warning at every load: the newer loader that it recommends is slower
logging.getLogger("tensorflow").setLevel(logging.ERROR)

ERRORS = (tf.errors.OpError, RuntimeError, ValueError, TypeError, KeyError, OSError)
BFLOAT16 = tf.bfloat16.as_numpy_dtype

Call = Callable[..., Sequence[Any]]


class GraphSession:
    """A graph that can compute in any number of threads."""

    def __init__(self, settings: TensorFlowSettings, spec: InstanceSpec) -> None:
        self._own_thread = settings.inter_threads is None
        self._device = f"/device:GPU:{spec.device_id}" if spec.kind == "KIND_GPU" else None
        self.graph = tf.Graph()
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=settings.intra_threads,
            inter_op_parallelism_threads=settings.inter_threads or 0,
            use_per_session_threads=settings.per_session_threads,
            allow_soft_placement=settings.soft_placement,
        )
        if spec.kind == "KIND_CPU":
            config.device_count["GPU"] = 0
        config.gpu_options.allow_growth = not settings.gpu_memory_fraction
        config.gpu_options.per_process_gpu_memory_fraction = settings.gpu_memory_fraction
        optimizer = config.graph_options.optimizer_options
        optimizer.global_jit_level = optimizer.GlobalJitLevel.Value(settings.jit)
        if settings.mixed_precision:
            rewrite = config.graph_options.rewrite_options
            rewrite.auto_mixed_precision = rewrite.Toggle.Value("ON")
        self._session = tf.compat.v1.Session(graph=self.graph, config=config)

    def load_saved_model(self, path: Path, tag: str) -> dict[str, Any]:
        """Load a SavedModel with its variables and tables; return its signatures by name."""
        with self.graph.as_default(), self._make_device_context():
            meta = tf.compat.v1.saved_model.load(self._session, [tag], str(path))
        return dict(meta.signature_def)

    def load_graph(self, path: Path, init_ops: Sequence[str]) -> None:
        """Load a GraphDef, and run its initialization operations in order."""
        definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
        with self.graph.as_default(), self._make_device_context():
            tf.import_graph_def(definition, name="")
        for name in init_ops:
            self._session.run(self.graph.get_operation_by_name(name))

    def call(self, feeds: Sequence[str], fetches: Sequence[str]) -> Call:
        """Return a function that takes arrays for the tensors `feeds` and returns the tensors `fetches`."""
        make = getattr(self._session, "_make_callable_from_options", None)
        if make is None:  # a private method, which a TensorFlow release may remove
            slow: Call = self._session.make_callable(list(fetches), list(feeds))
            return slow
        options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
        if self._own_thread:
            options.run_options.inter_op_thread_pool = -1
        call: Call = make(options)
        return call

    def close(self) -> None:
        self._session.close()

    def _make_device_context(self) -> Any:
        """Return the context that places operations without an explicit device; made inside the graph's."""
        return nullcontext() if self._device is None else tf.device(self._device)


def gpu_count() -> int:
    """Return the number of GPUs that TensorFlow sees."""
    return len(tf.config.list_physical_devices("GPU"))


def init_ops_of(settings: TensorFlowSettings, model: str, directory: Path) -> list[str]:
    """Return the operations in TF_INIT_OPS_FILE of the version or model. Raises LoadError, ConfigError."""
    name = settings.init_ops_file
    if not name:
        return []
    places = [inside(place, name, "parameters[TF_INIT_OPS_FILE]") for place in (directory, directory.parent)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise LoadError(f"unable to find TF_INIT_OPS_FILE '{name}' of model '{model}' in '{directory}'")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise LoadError(f"cannot read '{path}' of model '{model}': {exc}") from exc
    names = content.get("init_ops") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ConfigError(f"'{path}' of model '{model}' must be an object with one list of names, 'init_ops'")
    return names


DATATYPES = {tf.as_dtype(kind).as_datatype_enum: name for kind, name in NUMPY_NAMES.items()}
DATATYPES |= {tf.string.as_datatype_enum: "BYTES", tf.bfloat16.as_datatype_enum: "BF16"}
"""Datatype names by TensorFlow's DataType (tensorflow/core/framework/types.proto)."""

_DEFAULT = "serving_default"
_INTERNAL = ("__saved_model_init_op", "__saved_model_train_op")


class GraphTensor(ModelTensor, frozen=True, kw_only=True):
    """An input or output, and its tensor's name in the graph."""

    place: str


def signature_of(model: str, signatures: Mapping[str, Any], wanted: str) -> Any:
    """Return the SignatureDef to serve: the requested, the default, or the only one. Raises ConfigError."""
    names = sorted(name for name in signatures if name not in _INTERNAL)
    if not wanted and _DEFAULT not in names and len(names) == 1:
        wanted = names[0]
    name = wanted or _DEFAULT
    if name not in names:
        raise ConfigError(
            f"the SavedModel of '{model}' has no signature '{name}' (it has: {', '.join(names) or 'none'}): "
            "the parameter TF_SIGNATURE_DEF selects one",
            field="parameters[TF_SIGNATURE_DEF]",
        )
    return signatures[name]


def tensors_of(model: str, infos: Mapping[str, Any]) -> list[GraphTensor]:
    """Return a signature's inputs or outputs, sorted by name. Raises LoadError if one is not dense."""
    tensors = []
    for name, info in sorted(infos.items()):
        if info.WhichOneof("encoding") != "name":
            raise LoadError(
                f"'{name}' of model '{model}' is a sparse or composite tensor: export the model with a "
                "dense one"
            )
        shape = info.tensor_shape
        sizes = None if shape.unknown_rank else [dim.size for dim in shape.dim]
        tensors.append(graph_tensor(model, name, info.name, info.dtype, sizes))
    return tensors


def graph_tensor(
    model: str, name: str, place: str, datatype: int, sizes: Iterable[int | None] | None
) -> GraphTensor:
    """Return a tensor; `sizes` None means unknown rank. Raises LoadError if the protocol lacks the type."""
    known = DATATYPES.get(datatype)
    if known is None:
        raise LoadError(
            f"'{name}' of model '{model}' has TensorFlow's type {datatype}, which the v2 protocol does "
            "not support"
        )
    shape = tuple(-1 if size is None or size < 0 else size for size in sizes or ())
    return GraphTensor(name=name, datatype=known, shape=shape, ranked=sizes is not None, place=place)
