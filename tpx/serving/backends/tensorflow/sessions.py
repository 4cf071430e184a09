"""Sessions of TensorFlow: a loaded graph with its variables, its threads and its device.

They are those of TensorFlow 1, into which TensorFlow 2 loads SavedModels of any age. A call costs less than
half of what a concrete function of TensorFlow 2 does, and Triton's parameters are properties of sessions.
"""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.contract import InstanceSpec, inside
from tpx.serving.backends.tensorflow.settings import TensorFlowSettings

# says at every load that there is a newer way to load, which is the slower one
logging.getLogger("tensorflow").setLevel(logging.ERROR)

ERRORS = (tf.errors.OpError, RuntimeError, ValueError, TypeError, KeyError, OSError)
BFLOAT16 = tf.bfloat16.as_numpy_dtype

Call = Callable[..., Sequence[Any]]


class Session:
    """A graph that can compute, for any number of threads."""

    def __init__(self, settings: TensorFlowSettings, spec: InstanceSpec) -> None:
        self._own_thread = settings.inter_threads is None
        self._device = f"/device:GPU:{spec.device_id}" if spec.kind == "KIND_GPU" else None
        self.graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=self.graph, config=_config(settings, spec))

    def load_saved_model(self, path: Path, tag: str) -> dict[str, Any]:
        """Load a SavedModel with its variables and tables; returns its signatures by name."""
        with self.graph.as_default(), self._placement():
            meta = tf.compat.v1.saved_model.load(self._session, [tag], str(path))
        return dict(meta.signature_def)

    def load_graph(self, path: Path, init_ops: Sequence[str]) -> None:
        """Load a GraphDef, and run the operations that initialise it, in turn."""
        definition = tf.compat.v1.GraphDef.FromString(path.read_bytes())
        with self.graph.as_default(), self._placement():
            tf.import_graph_def(definition, name="")
        for name in init_ops:
            self._session.run(self.graph.get_operation_by_name(name))

    def call(self, feeds: Sequence[str], fetches: Sequence[str]) -> Call:
        """A function of arrays for the tensors `feeds`, in their order, that gives the tensors `fetches`."""
        make = getattr(self._session, "_make_callable_from_options", None)
        if make is None:  # a TensorFlow that has lost what it does not promise to keep
            slow: Call = self._session.make_callable(list(fetches), list(feeds))
            return slow
        options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
        if self._own_thread:
            options.run_options.inter_op_thread_pool = -1
        call: Call = make(options)
        return call

    def close(self) -> None:
        self._session.close()

    def _placement(self) -> Any:
        """Where the operations go that the model does not place itself."""
        return nullcontext() if self._device is None else tf.device(self._device)


def gpu_count() -> int:
    """How many GPUs TensorFlow sees."""
    return len(tf.config.list_physical_devices("GPU"))


def init_ops_of(settings: TensorFlowSettings, model: str, directory: Path) -> list[str]:
    """The operations that TF_INIT_OPS_FILE names, beside the version's files or beside its versions.

    Raises LoadError.
    """
    name = settings.init_ops_file
    if not name:
        return []
    places = [inside(place, name, "TF_INIT_OPS_FILE") for place in (directory, directory.parent)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise LoadError(f"unable to find TF_INIT_OPS_FILE '{name}' of model '{model}' in '{directory}'")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise LoadError(f"cannot read '{path}' of model '{model}': {exc}") from exc
    names = content.get("init_ops") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ConfigError(
            f"'{path}' of model '{model}' must be an object with the one list 'init_ops' of names"
        )
    return names


def _config(settings: TensorFlowSettings, spec: InstanceSpec) -> Any:
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
    return config
