"""Serialized TensorRT engines, `model.plan`, on GPUs.

Only calls that TensorRT 10 and 11 have in common are used. A device holds an engine and its weights
once; each instance has its own execution contexts, one for each profile that its group names.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tpx.cuda_driver import LIBRARY, CudaDriver
from tpx.errors import ConfigError, LoadError, TpxError, Unsupported
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import inputs_and_outputs, path_of
from tpx.serving.backends.contract import Description, Executor, InstanceSpec, ModelFiles, inside, no_file
from tpx.serving.backends.model_tensors import check_all_required, check_signature, complete_tensors, dims_of
from tpx.serving.backends.parameters import instance_specs
from tpx.serving.backends.tensorrt.engines import Engines, settings_of
from tpx.serving.backends.tensorrt.execution import EngineExecutor
from tpx.serving.backends.tensorrt.profiles import check_dims, facts_of, max_batch_size, profiles_of


class TensorRtBackend:
    """Opens `model.plan`, or the plan that `cc_model_filenames` has for the device's compute capability."""

    default_filename = "model.plan"

    def __init__(self, trt: ModuleType | None = None, library: str = LIBRARY) -> None:
        """`trt` is the tensorrt module, by default imported when the first model needs it."""
        self._trt = trt
        self._library = library

    def open(self, files: ModelFiles, config: ModelConfig) -> "TensorRtModel":
        try:
            trt = self._trt or import_module("tensorrt")
            driver = CudaDriver(self._library)
        except (Unsupported, ImportError, OSError) as exc:
            raise LoadError(f"tensorrt cannot be used for model '{files.model_name}': {exc}") from exc
        return TensorRtModel(trt, driver, files, config)

    def describe(self) -> Description:
        """Return TensorRT's version and its GPUs; it cannot load anything without a GPU."""
        trt = self._trt or import_module("tensorrt")
        try:
            driver = CudaDriver(self._library)
            devices = tuple(
                f"GPU {index} ({driver.compute_capability(index)})" for index in range(driver.device_count())
            )
        except TpxError as exc:
            return Description(version=trt.__version__, lacks=exc.message)
        return Description(version=trt.__version__, devices=devices)

    gpus_only = True

    def gpus(self) -> list[int]:
        """Return the available devices."""
        return CudaDriver.devices(self._library)


class TensorRtModel:
    """One open version; its engine is loaded on the device of its first instance."""

    inline = False
    """False, because waiting for a device could block the event loop."""

    def __init__(self, trt: ModuleType, driver: CudaDriver, files: ModelFiles, config: ModelConfig) -> None:
        self._driver = driver
        self._name, self._directory = files.model_name, files.directory
        self._settings = settings_of(config, files.settings)
        specs = instance_specs(config)
        _check_devices(self._name, specs, driver)
        self._engines = Engines(trt, driver, self._name, self._settings)
        with ExitStack() as undoing:
            undoing.callback(self._engines.close)
            self._facts = facts_of(self._load_engine(specs[0].device_id, config), self._name)
            undoing.pop_all()

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:  # noqa: ARG002 (profiles tell)
        self._check_batching(config)
        most = self._find_max_batch_size(instance_specs(config))
        if config.max_batch_size > most:
            raise ConfigError(
                f"autofill failed for model '{self._name}': configuration specified max-batch "
                f"{config.max_batch_size} but TensorRT engine only supports max-batch {most}",
                field="max_batch_size",
            )
        inputs, outputs = self._facts.inputs, self._facts.outputs
        complete_tensors(config, inputs, outputs, most)
        for items, tensors in ((config.input, inputs), (config.output, outputs)):
            shaping = {each.name for each in tensors if each.is_shape}
            for item in items:
                item.is_shape_tensor = item.is_shape_tensor or item.name in shaping

    def check(self, config: ModelConfig) -> None:
        check_all_required(config, "TensorRT")
        self._check_batching(config)
        self._check_kinds(config)
        check_signature(config, self._facts.inputs, self._facts.outputs)
        specs = instance_specs(config)
        if config.max_batch_size > self._find_max_batch_size(specs):
            raise ConfigError(
                f"unexpected configuration maximum batch size {config.max_batch_size} for '{config.name}', "
                f"the profiles of its instances accept {self._find_max_batch_size(specs)} at most",
                field="max_batch_size",
            )
        tensors = {each.name: each for each in self._facts.inputs}
        for item in config.input:
            each = tensors[item.name]
            for profile in self._list_profiles(specs):
                if each.shape and not item.allow_ragged_batch:
                    check_dims(each, profile, dims_of(item), config.name, batching=config.max_batch_size > 0)

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> Executor:
        _check_devices(self._name, [spec], self._driver)
        self._load_engine(spec.device_id, config)
        profiles = profiles_of(self._name, spec.profiles, self._facts.profiles)
        return EngineExecutor(self._engines, self._facts, spec.device_id, profiles)

    def close(self) -> None:
        self._engines.close()

    def _load_engine(self, device: int, config: ModelConfig) -> Any:
        return self._engines.engine(device, self._find_plan(device, config))

    def _find_plan(self, device: int, config: ModelConfig) -> Path:
        name, field = config.default_model_filename, "default_model_filename"
        if config.cc_model_filenames:
            capability = self._driver.compute_capability(device)
            name = config.cc_model_filenames.get(capability, name)
            field = f"cc_model_filenames['{capability}']"
        path = inside(self._directory, name, field)
        if not path.is_file():
            raise no_file(path, self._name)
        return path

    def _list_profiles(self, specs: Sequence[InstanceSpec]) -> list[int]:
        """Return all profiles that the instances use."""
        chosen = (profiles_of(self._name, spec.profiles, self._facts.profiles) for spec in specs)
        return sorted({index for indexes in chosen for index in indexes})

    def _find_max_batch_size(self, specs: Sequence[InstanceSpec]) -> int:
        """Return the maximum number of rows that the profiles of the instances accept."""
        return max_batch_size(self._facts, self._list_profiles(specs))

    def _check_batching(self, config: ModelConfig) -> None:
        if config.max_batch_size and self._facts.has_shape_tensors:
            raise ConfigError(
                f"model '{config.name}' has shape tensors, which tpx supports without batching only: set "
                "max_batch_size to 0",
                field="max_batch_size",
            )

    def _check_kinds(self, config: ModelConfig) -> None:
        """Raise ConfigError for formats that cannot be served, and for flags that contradict the engine."""
        for each in (*self._facts.inputs, *self._facts.outputs):
            if not each.linear:
                raise ConfigError(
                    f"tensor '{each.name}' of model '{config.name}' is not stored row by row: build "
                    "the engine with the format LINEAR for its inputs and outputs"
                )
        shaping = {each.name for each in (*self._facts.inputs, *self._facts.outputs) if each.is_shape}
        for item in inputs_and_outputs(config):
            if item.is_non_linear_format_io:
                raise ConfigError(
                    f"tensor '{item.name}' of model '{config.name}' is linear in the engine",
                    field=path_of(config, item, "is_non_linear_format_io"),
                )
            if item.is_shape_tensor != (item.name in shaping):
                raise ConfigError(
                    f"is_shape_tensor of '{item.name}' of model '{config.name}' must be "
                    f"{str(item.name in shaping).lower()}, as in the engine",
                    field=path_of(config, item, "is_shape_tensor"),
                )


def _check_devices(model: str, specs: Sequence[InstanceSpec], driver: CudaDriver) -> None:
    count = driver.device_count()
    for spec in specs:
        if spec.kind != "KIND_GPU":
            raise ConfigError(
                f"instance '{spec.name}' of model '{model}' has kind {spec.kind}, but TensorRT computes on "
                "GPUs only: use KIND_GPU",
                field="instance_group",
            )
        if spec.device_id >= count:
            raise ConfigError(
                f"instance '{spec.name}' of model '{model}' specifies invalid or unsupported gpu id "
                f"{spec.device_id}: there are {count} GPUs",
                field="instance_group",
            )
