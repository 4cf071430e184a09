"""`backend: "pytorch"`: opens a model in any of PyTorch's formats and creates its instances."""

import logging
import os
from collections.abc import Callable, Mapping

import numpy as np
import torch

from tpx.errors import ConfigError, LoadError
from tpx.processors import schedulable_processors
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import inputs_and_outputs
from tpx.serving.backends.contract import Arrays, Description, Executor, InstanceSpec, ModelFiles
from tpx.serving.backends.model_tensors import dims_of
from tpx.serving.backends.parameters import instance_specs
from tpx.serving.backends.pytorch.execution import CpuExecutor, CudaExecutor, Forward, GpuSettings
from tpx.serving.backends.pytorch.exported import ExportedProgram, InductorProgram
from tpx.serving.backends.pytorch.module import ModuleProgram, TorchScriptProgram
from tpx.serving.backends.pytorch.naming import TensorPositions, check, complete
from tpx.serving.backends.pytorch.parameters import PROCESS, jit_switches, settings_of
from tpx.serving.backends.pytorch.program import Format, ModelSourceFile, Program, source_of
from tpx.serving.backends.pytorch.tensors import Inputs, Outputs
from tpx.serving.stacking.added import added_inputs, taken_outputs


def device_of(spec: InstanceSpec, model: str) -> torch.device | None:
    """Return an instance's device; None for KIND_MODEL, where the model chooses. Raises LoadError."""
    if spec.kind == "KIND_MODEL":
        return None
    if spec.kind != "KIND_GPU":
        return torch.device("cpu")
    where = f"instance group of model '{model}' has kind KIND_GPU but"
    if torch.version.cuda is None and torch.version.hip is None:
        raise LoadError(
            f"{where} the installed PyTorch {torch.__version__} is built without CUDA: install a build "
            "with it, or use KIND_CPU"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise LoadError(
            f"{where} no GPUs are available: PyTorch {torch.__version__} finds no device of CUDA "
            f"{torch.version.cuda} (no driver, or none that is new enough); use KIND_CPU"
        )
    if spec.device_id >= count:
        raise LoadError(
            f"{where} specifies invalid or unsupported gpu id {spec.device_id}: there are {count}, "
            "counted from 0"
        )
    return torch.device("cuda", spec.device_id)


log = logging.getLogger(__name__)

_DEFAULT_SIZE = "default-max-batch-size"


class PytorchBackend:
    """Opens `model.pt`, `model.pt2` or `model.py`; the configuration decides which is tried first."""

    default_filename = ""

    def open(self, files: ModelFiles, config: ModelConfig) -> "PytorchModel":
        for key in files.settings.keys() - {_DEFAULT_SIZE}:
            log.warning("--backend-config pytorch,%s has no effect (there is: %s)", key, _DEFAULT_SIZE)
        return PytorchModel(source_of(files, config), config)

    gpus_only = False

    def gpus(self) -> range:
        return range(torch.cuda.device_count() if torch.cuda.is_available() else 0)

    def describe(self) -> Description:
        gpus = self.gpus()
        return Description(
            version=torch.__version__,
            providers=(f"CUDA {torch.version.cuda}",) if torch.version.cuda else (),
            devices=("cpu", *(f"cuda:{index}: {torch.cuda.get_device_name(index)}" for index in gpus)),
        )


class PytorchModel:
    """One open version. The program loaded to inspect it becomes the first instance."""

    def __init__(self, source: ModelSourceFile, config: ModelConfig) -> None:
        """Load the program. Raises LoadError, ConfigError."""
        specs = instance_specs(config)
        on_gpu = any(spec.kind != "KIND_CPU" for spec in specs)
        self._name: str = config.name
        self._source = source
        self._parameters = settings_of(config, source.format, on_gpu=on_gpu)
        self._instances = len(specs)
        devices = [device_of(spec, self._name) for spec in specs]
        intra, inter = self._parameters.intra_op_threads, self._parameters.inter_op_threads
        PROCESS.ask(self._name, intra=intra, inter=inter, instances=len(specs))
        if source.format is Format.TORCHSCRIPT:
            log.info(
                "model '%s' is TorchScript, which PyTorch has deprecated: torch.export follows it", self._name
            )
        self._shared: dict[torch.device | None, Program] = {}
        self._first: tuple[torch.device | None, Program] | None = (devices[0], self._load_program(devices[0]))
        self._interface = self._first[1].interface
        fits = source.format is not Format.MODULE and not on_gpu
        self.inline = fits and not self._first[1].work_depends_on_values
        self._places: TensorPositions | None = None

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:
        config.default_model_filename = config.default_model_filename or self._source.path.name
        complete(config, self._interface, self._source.format, default_max_batch_size=default_max_batch_size)

    def check(self, config: ModelConfig) -> None:
        self._places = check(config, self._interface)

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> Executor:
        device = device_of(spec, config.name)
        program = self._obtain_program(device)
        parameters = self._parameters
        numbers = {**added_inputs(config), **taken_outputs(config)}
        numbers |= {item.name: item.data_type for item in inputs_and_outputs(config)}
        datatypes = {name: BY_NUMBER[number].name for name, number in numbers.items() if number in BY_NUMBER}
        inputs, outputs = self._places or check(config, self._interface)
        scripted = self._source.format is Format.TORCHSCRIPT
        call = Forward(
            model=config.name,
            program=program,
            inputs=Inputs(inputs, datatypes, program.interface),
            outputs=Outputs(outputs, datatypes, program.storages),
            switches=jit_switches(parameters, torch._C, self._name) if scripted else [],
            inference_mode=parameters.inference_mode,
            shared=parameters.weight_sharing,
        )
        if program.device.type == "cpu" and (device is not None or not torch.cuda.is_available()):
            return CpuExecutor(call)
        settings = GpuSettings(
            device=device,
            batched=config.max_batch_size > 0,
            pinned_input=config.optimization.input_pinned_memory.enable,
            pinned_output=config.optimization.output_pinned_memory.enable,
            cudnn=parameters.cudnn,
            cache_cleaning=parameters.cache_cleaning,
        )
        executor = CudaExecutor(call, settings)
        if parameters.graph_batch_sizes and device is not None:
            executor.record(_make_samples(config, inputs, parameters.graph_batch_sizes))
        return executor

    def divides_as(self, config: ModelConfig) -> bool:
        """Return whether the thread count suits a configuration with other instance groups."""
        if self._parameters.intra_op_threads:
            return True
        cores = schedulable_processors()
        return max(1, cores // self._instances) == max(1, cores // len(instance_specs(config)))

    def close(self) -> None:
        if self._first is not None:
            self._first[1].close()
        for program in self._shared.values():
            program.close()
        self._first = None
        self._shared = {}

    def _obtain_program(self, device: torch.device | None) -> Program:
        """Return a program for one instance, or the one shared by all instances on this device."""
        shared = self._shared.get(device)
        if shared is not None:
            log.info("sharing the weights of model '%s' between its instances", self._name)
            return shared
        if self._first is not None and self._first[0] == device:
            program, self._first = self._first[1], None
        else:
            program = self._load_program(device)
        if self._parameters.weight_sharing:
            self._shared[device] = program
        return program

    def _load_program(self, device: torch.device | None) -> Program:
        path, options = self._source.path, self._parameters.compile_options
        if self._source.format is Format.TORCHSCRIPT:
            return TorchScriptProgram(path, device, self._name)
        if self._source.format is Format.INDUCTOR:
            runs = self._instances if self._parameters.weight_sharing else 1
            return InductorProgram(path, device, self._name, runs=runs)
        program: ExportedProgram | ModuleProgram
        if self._source.format is Format.EXPORTED:
            program = ExportedProgram(path, device, self._name)
        else:
            program = ModuleProgram(path, device, self._name, class_name=self._parameters.class_name)
        if options is not None:
            _compile_program(program.compile, dict(options), self._name, program.device)
        return program


def _compile_program(
    compiler: Callable[[JsonObject], None], options: JsonObject, model: str, device: torch.device
) -> None:
    """Apply torch.compile. Raises LoadError if it cannot work here, ConfigError for unknown options."""
    from shutil import which

    backend = options.get("backend", "inductor")
    found = any(which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)
    if backend == "inductor" and device.type == "cpu" and not found:
        raise LoadError(
            f"model '{model}': torch.compile needs a C++ compiler to compile for the CPU: install g++, or "
            f"set CXX"
        )
    try:
        compiler(options)
    except (TypeError, RuntimeError, ValueError, AssertionError) as exc:
        raise ConfigError(
            f"model '{model}': TORCH_COMPILE_OPTIONAL_PARAMETERS {options}: torch.compile refuses "
            f"them: {exc}",
            field="parameters[TORCH_COMPILE_OPTIONAL_PARAMETERS]",
        ) from exc


def _make_samples(
    config: ModelConfig, positions: Mapping[str, int], sizes: tuple[int, ...]
) -> dict[int, Arrays]:
    """Return inputs of zeros for batches of these sizes. Raises ConfigError if the shapes are not fixed."""
    items = {item.name: item for item in config.input}
    samples: dict[int, Arrays] = {}
    for size in sizes:
        arrays: Arrays = {}
        for name in positions:
            item = items.get(name)
            dims = dims_of(item) if item is not None else [-1]
            datatype = BY_NUMBER[item.data_type] if item is not None else None
            if item is None or -1 in dims or datatype is None or datatype.name == "BYTES":
                raise ConfigError(
                    f"model '{config.name}': CUDA_GRAPH_BATCH_SIZES requires numeric inputs with fixed dims: "
                    f"'{name}' is not",
                    field="parameters[CUDA_GRAPH_BATCH_SIZES]",
                )
            rows = [size] if config.max_batch_size else []
            arrays[name] = np.zeros([*rows, *dims], datatype.numpy)
        samples[size] = arrays
    return samples
