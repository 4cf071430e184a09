"""Models that OpenVINO reads: its own format, ONNX, TensorFlow, TensorFlow Lite, PaddlePaddle.

A version is compiled once. Its instances are infer requests of the one compiled model and share the
weights. Large inputs are passed to OpenVINO without a copy.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import openvino as ov
from msgspec.structs import replace

from tpx.errors import ConfigError, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import inputs_and_outputs
from tpx.serving.backends.contract import Description, Executor, InstanceSpec, ModelFiles, inside, no_file
from tpx.serving.backends.model_tensors import (
    NUMPY_NAMES,
    ModelTensor,
    check_all_required,
    check_signature,
    complete_tensors,
    dims_of,
)
from tpx.serving.backends.openvino.execution import ERRORS, InferRequestExecutor, reason, settings_of
from tpx.serving.backends.parameters import find_library
from tpx.serving.stacking.added import added_inputs, taken_outputs

T = TypeVar("T")

log = logging.getLogger(__name__)

_DATATYPES = {
    kind.replace("bool", "boolean").replace("uint", "u").replace("int", "i").replace("float", "f"): name
    for kind, name in NUMPY_NAMES.items()
} | {"bf16": "BF16"}
_TOLD = (
    "NUM_STREAMS",
    "INFERENCE_NUM_THREADS",
    "INFERENCE_PRECISION_HINT",
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
)


class OpenVinoBackend:
    """Opens `model.xml`, or the file in `default_model_filename` if OpenVINO can read it."""

    default_filename = "model.xml"

    def open(self, files: ModelFiles, config: ModelConfig) -> "OpenVinoModel":
        name = config.default_model_filename or self.default_filename
        path = inside(files.directory, name, "default_model_filename")
        if not path.exists():
            raise no_file(path, files.model_name)
        return OpenVinoModel(path, files, config)

    def describe(self) -> Description:
        core = ov.Core()
        names = {device: core.get_property(device, "FULL_DEVICE_NAME") for device in core.available_devices}
        return Description(
            version=ov.__version__.partition("-")[0],
            devices=tuple(f"{device}: {name}" for device, name in names.items()),
        )


class OpenVinoModel:
    """One open version; read when it is opened, and compiled for its first instance."""

    def __init__(self, path: Path, files: ModelFiles, config: ModelConfig) -> None:
        self._name = files.model_name
        self._settings = settings_of(config)
        self._core = ov.Core()
        self._compiled: ov.CompiledModel | None = None
        if self._settings.extension:
            option = "openvino,extension-directories"
            extension = find_library(
                files, self._settings.extension, field="CPU_EXTENSION_PATH", option=option
            )
            self._call_openvino(
                f"load the extension '{extension}'", lambda: self._core.add_extension(str(extension))
            )
        self._model = self._call_openvino(f"read '{path}'", lambda: self._core.read_model(path))
        self.inline = not _works_longer(self._model)

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        inputs, outputs = self._list_tensors(config)
        # all first dimensions are variable or, by the model's layouts, the batch
        layouts = [node.layout for node in (*self._model.get_parameters(), *self._model.get_results())]
        possible = all(tensor.shape[:1] == (-1,) for tensor in (*inputs, *outputs)) or all(
            ov.layout_helpers.has_batch(layout) and ov.layout_helpers.batch_idx(layout) == 0
            for layout in layouts
        )
        if config.max_batch_size and not possible:
            log.info("the batch dimension of model '%s' is made variable", self._name)
        complete_tensors(config, inputs, outputs, max(1, default_max_batch_size) if possible else 0)

    def check(self, config: ModelConfig) -> None:
        check_all_required(config, "OpenVINO")
        self._reshape(config)
        inputs, outputs = self._list_tensors(config)
        if self._settings.fixed_batch and config.max_batch_size:
            rows = (config.max_batch_size,)  # requests see a variable batch dimension
            inputs, outputs = (
                [replace(t, shape=(-1, *t.shape[1:])) if t.shape[:1] == rows else t for t in tensors]
                for tensors in (inputs, outputs)
            )
        check_signature(config, inputs, outputs)
        for tensor in (*inputs, *outputs):
            if tensor.datatype == "FP64" and self._settings.device == "CPU":
                message = "tensor '%s' of model '%s' is FP64, which OpenVINO computes in FP32"
                log.warning(message, tensor.name, self._name)

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> Executor:
        if spec.kind == "KIND_GPU":
            raise ConfigError(
                f"unable to load model '{self._name}', instance groups of the OpenVINO backend are KIND_CPU: "
                "the parameter TARGET_DEVICE selects the device",
                field="instance_group",
            )
        if self._compiled is None:
            self._compiled = self._compile()
        inputs, outputs = self._list_tensors(config)
        used = {item.name for item in config.output} | set(taken_outputs(config))
        fixed = config.max_batch_size if self._settings.fixed_batch else 0
        return InferRequestExecutor(
            request=self._compiled.create_infer_request(),
            inputs={tensor.name: (index, tensor) for index, tensor in enumerate(inputs)},
            outputs={tensor.name: (at, tensor) for at, tensor in enumerate(outputs) if tensor.name in used},
            rows=fixed,
            padded=self._settings.padded,
            narrow=self._settings.device == "CPU",
        )

    def divides_as(self, config: ModelConfig) -> bool:
        """Return whether the settings stay the same; by default there is one stream per instance."""
        return settings_of(config) == self._settings

    def close(self) -> None:
        self._compiled = None
        del self._model, self._core

    def _call_openvino(self, what: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except ERRORS as exc:
            raise LoadError(f"openvino cannot {what} for model '{self._name}': {reason(exc)}") from exc

    def _list_tensors(self, config: ModelConfig) -> tuple[list[ModelTensor], list[ModelTensor]]:
        """Return the model's inputs and outputs. A tensor with several names has the configured one."""
        wanted = {item.name for item in inputs_and_outputs(config)}
        wanted |= {*added_inputs(config), *taken_outputs(config)}
        return (
            [_describe_port(port, wanted) for port in self._model.inputs],
            [_describe_port(port, wanted) for port in self._model.outputs],
        )

    def _reshape(self, config: ModelConfig) -> None:
        """Set the batch dimension of the inputs and, with RESHAPE_IO_LAYERS, the configured dims."""
        shapes = {}
        rows = config.max_batch_size if self._settings.fixed_batch else -1
        dims = {item.name: dims_of(item) for item in config.input}
        inputs, _ = self._list_tensors(config)
        for port, tensor in zip(self._model.inputs, inputs, strict=True):
            shape = list(tensor.shape)
            start = 1 if config.max_batch_size else 0
            if self._settings.reshaped and tensor.name in dims:
                shape = [-1, *dims[tensor.name]][1 - start :]
            if start and shape:
                shape[0] = rows
            if tuple(shape) != tensor.shape:
                shapes[port] = ov.PartialShape(shape)
        if not shapes:
            return
        try:
            self._model.reshape(shapes)
        except ERRORS as exc:
            raise ConfigError(
                f"model '{self._name}' cannot accept inputs of the shapes "
                f"{', '.join(str(shape) for shape in shapes.values())}: {reason(exc)} (max_batch_size 0 "
                "leaves its batch dimension as it is, SKIP_OV_DYNAMIC_BATCHSIZE makes it max_batch_size)",
                field="max_batch_size",
            ) from exc

    def _compile(self) -> ov.CompiledModel:
        device = self._settings.device
        devices = self._core.available_devices
        if device.isalnum() and device not in ("AUTO", "MULTI", "HETERO", "BATCH") and device not in devices:
            raise ConfigError(
                f"model '{self._name}' asks for TARGET_DEVICE {device}, which OpenVINO does not find (it "
                f"has: {', '.join(devices)})",
                field="parameters[TARGET_DEVICE]",
            )
        compiled = self._call_openvino(
            f"compile it for {device}",
            lambda: self._core.compile_model(self._model, device, dict(self._settings.properties)),
        )
        told = []
        supported = compiled.get_property("SUPPORTED_PROPERTIES")
        for name in (name for name in _TOLD if name in supported):
            value = compiled.get_property(name)
            told.append(f"{name} {getattr(value, 'get_type_name', lambda: None)() or value}")
        log.info("model '%s' is compiled for %s: %s", self._name, device, ", ".join(told))
        return compiled


def _describe_port(port: ov.Output, wanted: set[str]) -> ModelTensor:
    names: set[str] = port.names
    chosen = sorted(names & wanted) or ([port.get_any_name()] if names else [port.node.friendly_name])
    kind = port.element_type.get_type_name()
    datatype = _DATATYPES.get(kind)
    if datatype is None:
        raise LoadError(
            f"'{chosen[0]}' has OpenVINO's type {kind}, which tpx does not support for it (supported: "
            f"{', '.join(_DATATYPES.values())})"
        )
    ranked = not port.partial_shape.rank.is_dynamic
    dims = port.partial_shape if ranked else ()
    shape = tuple(-1 if dim.is_dynamic else dim.get_length() for dim in dims)
    return ModelTensor(name=chosen[0], datatype=datatype, shape=shape, ranked=ranked)


_SIZES = {
    "Broadcast": (1,),
    "If": (0,),
    "Interpolate": (1, 2),
    "Loop": (0, 1),
    "NonMaxSuppression": (0, 1, 2),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 2),
    "ROIAlign": (1,),
    "RandomUniform": (0,),
    "Range": (0, 1, 2),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
}
"""Operators, and which of their inputs decide how often they loop, how large their output is, or which of
two graphs they compute.
"""


def _works_longer(model: ov.Model) -> bool:
    """Return True if the values of inputs, and not only their sizes, may decide how long a run takes."""
    varying: set[str] = set()
    for node in model.get_ordered_ops():
        kind = node.get_type_name()
        sources = [given.get_source_output().get_node() for given in node.inputs()]
        names = [source.get_name() for source in sources]
        if any(names[at] in varying for at in _SIZES.get(kind, ()) if at < len(names)):
            return True
        bodies = [node.get_function()] if kind == "Loop" else []
        if kind == "If":
            bodies = [node.get_function(index) for index in (0, 1)]
        if kind == "Loop" and isinstance(sources[0], ov.op.Constant) and sources[0].data.min() < 0:
            return True  # until its condition ends it
        if any(map(_works_longer, bodies)) or (kind == "Loop" and _ends_by_value(node)):
            return True
        if kind == "Parameter" or (kind != "ShapeOf" and not varying.isdisjoint(names)):
            varying.add(node.get_name())
    return False


def _ends_by_value(loop: ov.op.loop) -> bool:
    """Return True if the condition that a loop's body computes depends on values; its iteration number is
    none.
    """
    body = loop.get_function()
    counter, condition = loop.get_special_body_ports()
    parameters = body.get_parameters()
    varying = {each.get_name() for index, each in enumerate(parameters) if index != counter}
    for node in body.get_ordered_ops():
        sources = [given.get_source_output().get_node().get_name() for given in node.inputs()]
        if node.get_type_name() != "ShapeOf" and not varying.isdisjoint(sources):
            varying.add(node.get_name())
    return body.get_results()[condition].get_name() in varying
