"""Models that are DALI pipelines: serialized, or Python code that defines one (Triton: dali_backend).

A batch is a list of samples, whose shapes may differ between requests.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import nvidia.dali as dali
from nvidia.dali import plugin_manager

from tpx.cuda_driver import CudaDriver
from tpx.errors import ConfigError, ExecutionError, LoadError
from tpx.protocol.datatypes import BY_NAME, BY_NUMBER
from tpx.protocol.messages import DataType, ModelConfig, ModelInput, ModelOutput
from tpx.serving.backends.contract import (
    Arrays,
    Description,
    Executor,
    InstanceSpec,
    ModelFiles,
    inside,
    no_file,
)
from tpx.serving.backends.dali.definition import (
    PipelineDefinition,
    PipelineTensor,
    read_definition,
    serialize,
)
from tpx.serving.backends.model_tensors import dims_of
from tpx.serving.backends.parameters import GivenParameters

# DALI raises RuntimeError; its Python binding raises conversion errors
ERRORS = (RuntimeError, TypeError, ValueError, KeyError, OverflowError)


class PipelineExecutor:
    """A pipeline for up to `batch_size` samples on one device. After an error a new one is built."""

    def __init__(
        self,
        serialized: bytes,
        outputs: Sequence[str],
        *,
        batch_size: int,
        device_id: int | None,
        threads: int,
    ) -> None:
        """Build the pipeline. Raises LoadError.

        `outputs` are names in the pipeline's order; `threads` 0 keeps the number of threads in the
        serialized pipeline.
        """
        self._outputs = outputs
        self._serialized = serialized
        # one batch is fed, computed and read before the next: no prefetching
        self._settings: dict[str, Any] = {
            "batch_size": batch_size,
            "device_id": device_id,
            "prefetch_queue_depth": 1,
            "exec_pipelined": False,
            "exec_async": False,
        }
        if threads:
            self._settings["num_threads"] = threads
        self._pipeline = self._build()

    def execute(self, inputs: Arrays) -> Arrays:
        """Run one batch: arrays [n, *dims], or object arrays with one array per sample."""
        pipeline = self._pipeline
        try:
            for name, array in inputs.items():
                pipeline.feed_input(name, array if array.dtype != np.object_ else list(array))
            results = pipeline.run()
            return {name: _copy_to_host(result) for name, result in zip(self._outputs, results, strict=True)}
        except ERRORS as exc:
            self._pipeline = self._build()
            raise ExecutionError(f"dali error: {reason(exc)}") from exc

    def close(self) -> None:
        del self._pipeline

    def _build(self) -> Any:
        try:
            pipeline = dali.Pipeline.deserialize(self._serialized, **self._settings)
            pipeline.build()
        except ERRORS as exc:
            raise LoadError(f"dali cannot build the pipeline: {reason(exc)}") from exc
        return pipeline


def _copy_to_host(result: Any) -> Any:
    """Return a copy of an output, because the next batch overwrites the pipeline's memory."""
    samples = result.as_cpu()
    if samples.is_dense_tensor():
        return np.array(samples.as_array())
    found = np.empty(len(samples), np.object_)
    for index in range(len(samples)):
        found[index] = np.array(samples.at(index))
    return found


def reason(exc: Exception) -> str:
    """Return the operator and its error, without tracebacks and addresses."""
    lines = [line.strip() for line in str(exc).splitlines()]
    operator = next((line.rstrip(",") for line in lines if line.startswith("Error in ")), "")
    after = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    message = next((line for line in after if line and line != "Critical error in pipeline:"), "")
    return ": ".join(filter(None, (operator, message))) or type(exc).__name__


FALLBACK_FILENAME = "dali.py"
_JOINED = "split_along_outer_axis"


class DaliBackend:
    """Opens `model.dali`, or a `dali.py` that is serialized first."""

    default_filename = "model.dali"
    gpus_only = False

    def open(self, files: ModelFiles, config: ModelConfig) -> "DaliModel":
        for library in filter(None, files.settings.get("plugin_libs", "").split(":")):
            try:
                plugin_manager.load_library(library)
            except ERRORS as exc:
                raise LoadError(f"dali cannot load the plugin '{library}': {reason(exc)}") from exc
        name = config.default_model_filename or self.default_filename
        return DaliModel(files, config, _load_definition(files, name))

    def gpus(self) -> list[int]:
        return CudaDriver.devices()

    def describe(self) -> Description:
        devices = ("cpu", *(f"cuda:{index}" for index in self.gpus()))
        return Description(version=dali.__version__, devices=devices)


def _load_definition(files: ModelFiles, name: str) -> PipelineDefinition:
    path = inside(files.directory, name, "default_model_filename")
    fallback = files.directory / FALLBACK_FILENAME
    if path.suffix != ".py" and path.exists():
        return read_definition(path)
    module = path if path.exists() else fallback
    if not module.exists():
        raise no_file(path, files.model_name)
    with tempfile.TemporaryDirectory(prefix="tpx_dali_") as directory:
        target = Path(directory) / "model.dali"
        serialize(module, target)
        return read_definition(target)


class DaliModel:
    """One open version; each instance builds its own pipeline."""

    inline = False

    def __init__(self, files: ModelFiles, config: ModelConfig, definition: PipelineDefinition) -> None:
        self._name = files.model_name
        self._definition = definition
        self._releases = files.settings.get("release_after_unload", "") == "true"
        parameters = GivenParameters.of_model(config)
        self._threads = parameters.threads("num_threads", least=1)
        listed = parameters.values.get(_JOINED, "")
        self.joined_outputs = frozenset(filter(None, listed.split(":")))
        """Outputs whose samples are concatenated."""

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:  # noqa: ARG002
        """Fill in the pipeline's batch size, and the types and dimensions that it declares."""
        config.max_batch_size = config.max_batch_size or self._definition.batch_size
        configured = {item.name: item for item in config.input}
        inputs = [tensor.name for tensor in self._definition.inputs]
        if not configured.keys() <= set(inputs):
            raise self._make_misnamed_error(list(configured), inputs)
        for tensor in self._definition.inputs:
            item = configured.get(tensor.name) or config.input.add(name=tensor.name)
            self._fill_item(item, tensor, 0)
            item.allow_ragged_batch = True
        for index, tensor in enumerate(self._definition.outputs):
            if index == len(config.output):
                config.output.add(name=tensor.name)
            output = config.output[index]
            self._fill_item(output, tensor, 1 if output.name in self.joined_outputs else 0)

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError if the configuration does not match the pipeline."""
        if config.HasField("sequence_batching") or config.batch_input or config.batch_output:
            raise ConfigError(
                f"model '{self._name}': a DALI pipeline keeps no state and takes no batch inputs: remove "
                "sequence_batching, batch_input and batch_output",
                field="sequence_batching" if config.HasField("sequence_batching") else "",
            )
        inputs = [tensor.name for tensor in self._definition.inputs]
        given = [item.name for item in config.input]
        if sorted(given) != sorted(inputs):
            raise self._make_misnamed_error(given, inputs)
        if len(config.output) != len(self._definition.outputs):
            raise ConfigError(
                f"model '{self._name}': the pipeline has {len(self._definition.outputs)} outputs, the "
                f"configuration {len(config.output)}: they are matched by position",
                field="output",
            )
        tensors = {tensor.name: tensor for tensor in self._definition.inputs}
        for item in config.input:
            self._check_item(item, tensors[item.name], 0)
        for output, tensor in zip(config.output, self._definition.outputs, strict=True):
            self._check_item(output, tensor, 1 if output.name in self.joined_outputs else 0)
        unknown = sorted(self.joined_outputs - {output.name for output in config.output})
        if unknown:
            raise ConfigError(
                f"model '{self._name}': {_JOINED} names '{unknown[0]}', which is not an output",
                field=f"parameters[{_JOINED}]",
            )

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> Executor:
        try:
            return PipelineExecutor(
                self._definition.serialized,
                [output.name for output in config.output],
                batch_size=max(1, config.max_batch_size),
                device_id=spec.device_id if spec.kind == "KIND_GPU" else None,
                threads=self._threads,
            )
        except LoadError as exc:
            raise LoadError(f"model '{self._name}', instance {spec.name}: {exc.message}") from exc

    def close(self) -> None:
        """Release unused memory if `release_after_unload` is set; instances have closed their pipelines."""
        if self._releases:
            dali.backend.ReleaseUnusedMemory()

    def _fill_item(self, item: ModelInput | ModelOutput, tensor: PipelineTensor, joined: int) -> None:
        if not item.data_type:
            if not tensor.datatype:
                raise self._make_undeclared_error(item, "dtype", "data_type")
            item.data_type = cast("DataType", BY_NAME[tensor.datatype].number)
        if not item.dims:
            if tensor.ndim is None:
                raise self._make_undeclared_error(item, "ndim", "dims")
            item.dims.extend([-1] * (tensor.ndim - joined) or [1])
            if tensor.ndim == joined:
                item.reshape.SetInParent()  # each sample is a scalar

    def _make_undeclared_error(
        self, item: ModelInput | ModelOutput, declared: str, field: str
    ) -> ConfigError:
        return ConfigError(
            f"unable to autofill for '{self._name}': the pipeline does not declare the {declared} of "
            f"'{item.name}': give its {field} in config.pbtxt, or declare it in the pipeline"
        )

    def _make_misnamed_error(self, given: Sequence[str], inputs: Sequence[str]) -> ConfigError:
        return ConfigError(
            f"model '{self._name}': the pipeline's inputs are {', '.join(inputs) or 'none'}, the "
            f"configuration has {', '.join(given) or 'none'}",
            field="input",
        )

    def _check_item(self, item: ModelInput | ModelOutput, tensor: PipelineTensor, joined: int) -> None:
        datatype = BY_NUMBER[item.data_type]
        if datatype.name in ("BYTES", "BF16") or (tensor.datatype and tensor.datatype != datatype.name):
            raise ConfigError(
                f"model '{self._name}': '{item.name}' is {datatype.config_name} in the configuration, the "
                f"pipeline has {tensor.datatype or 'no such type'}"
            )
        dims = dims_of(item)
        if tensor.ndim is not None and len(dims) != tensor.ndim - joined:
            raise ConfigError(
                f"model '{self._name}': '{item.name}' has {len(dims)} dimensions in the configuration, "
                f"{tensor.ndim - joined} in the pipeline"
            )
