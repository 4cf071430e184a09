"""Models of language engines in the server: their configuration, and the processes of their engines."""

import json
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict
from pathlib import Path
from typing import ClassVar, Protocol, cast

from msgspec.structs import replace

from tpx.errors import ConfigError, LoadError
from tpx.options import nearest
from tpx.processors import usable_processors
from tpx.protocol import messages
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.messages import DataType, ModelConfig
from tpx.protocol.model_config import inputs_and_outputs, path_of
from tpx.serving.backends.contract import InstanceSpec, ModelFiles
from tpx.serving.backends.language.views import INPUTS, OUTPUTS
from tpx.serving.backends.parameters import GivenParameters
from tpx.serving.backends.python.backend import PythonModel
from tpx.serving.backends.python.instance import PythonInstance


class EngineParameters(Protocol):
    """Settings of an engine, a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


def given_parameters(config: ModelConfig, known: frozenset[str], backend: str) -> GivenParameters:
    """Return the parameters of a model. Raises ConfigError for one that is not `known`."""
    given = GivenParameters.of_model(config)
    for key in given.values:
        if key not in known:
            raise given.refuse(
                key,
                f"model '{config.name}' has no parameter '{key}'{nearest(key, known)} ({backend} has: "
                f"{', '.join(sorted(known))})",
            )
    return given


def engine_threads(config: ModelConfig, given: GivenParameters) -> int:
    """Return the threads of an engine. One core is left to the server: all wait for the slowest."""
    instances = max(1, sum(group.count for group in config.instance_group))
    return given.threads("threads", least=1) or max(1, int(usable_processors() - 1) // instances)


def engine_process(files: ModelFiles, runtime: Path) -> PythonModel:
    """Return what starts engines. Raises LoadError."""
    if files.host is None:
        raise LoadError(f"model '{files.model_name}': engines run only in a server")
    return PythonModel(replace(files, settings={}), runtime, files.host, based=True)


class LanguageModelVersion:
    """A version of a model."""

    inline = False
    makes_responses = True

    def __init__(
        self,
        process: PythonModel,
        settings: Callable[[ModelConfig], EngineParameters],
        backend: str,
        defaults: Mapping[str, str],
        *,
        takes_gpus: bool = False,
        inputs: Mapping[str, str] = INPUTS,
        outputs: Mapping[str, str] = OUTPUTS,
    ) -> None:
        """`settings` returns those of an engine. Raises ConfigError. `defaults` are parameters of all models
        of the backend (--backend-config). With `takes_gpus`, an instance group chooses its GPU. `inputs` and
        `outputs` are tensors and their types.
        """
        self._inputs = inputs
        self._outputs = outputs
        self._process = process
        self._takes_gpus = takes_gpus
        self._settings_of = settings
        self._defaults = {key: value for key, value in defaults.items() if key != "default-max-batch-size"}
        self._backend = backend

    def _settings(self, config: ModelConfig) -> EngineParameters:
        """Return the settings of an engine. Raises ConfigError."""
        whole = type(config)()
        whole.CopyFrom(config)
        for key, value in self._defaults.items():
            if key not in config.parameters:
                whole.parameters[key].string_value = value
        return self._settings_of(whole)

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:  # noqa: ARG002
        for name, datatype in self._inputs.items() if not config.input else ():
            kind = cast("DataType", BY_NAME[datatype].number)
            dims = [-1] if name == "image" else [1]
            config.input.add(name=name, data_type=kind, dims=dims, optional=True)
        for name, datatype in self._outputs.items() if not config.output else ():
            kind = cast("DataType", BY_NAME[datatype].number)
            config.output.add(name=name, data_type=kind, dims=[-1])
        config.model_transaction_policy.decoupled = True

    def check(self, config: ModelConfig) -> None:
        self._settings(config)
        if config.max_batch_size:
            raise ConfigError(
                f"max_batch_size of model '{config.name}' must be 0: the engine batches by itself, up to "
                "the parameter n_parallel",
                field="max_batch_size",
            )
        if not config.model_transaction_policy.decoupled:
            raise ConfigError(
                f"model '{config.name}' must be decoupled: the engine sends a response per token",
                field="model_transaction_policy.decoupled",
            )
        for tensor in inputs_and_outputs(config):
            wanted = self._inputs if tensor.DESCRIPTOR.name == "ModelInput" else self._outputs
            datatype = wanted.get(tensor.name)
            if datatype is None or tensor.data_type != BY_NAME[datatype].number:
                words = ", ".join(
                    f"{name} {BY_NAME[datatype].config_name}" for name, datatype in wanted.items()
                )
                raise ConfigError(
                    f"model '{config.name}' has no tensor '{tensor.name}' of this type "
                    f"({self._backend} has: {words})",
                    field=path_of(config, tensor, "name"),
                )
        for index, group in enumerate(config.instance_group):
            if group.kind == messages.ModelInstanceGroup.KIND_GPU and not self._takes_gpus:
                raise ConfigError(
                    f"instance groups of model '{config.name}' must be KIND_CPU: a parameter of the model "
                    "moves it to a GPU",
                    field=f"instance_group[{index}].kind",
                )

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> PythonInstance:
        settings = self._settings(config)
        return self._process.executor(spec, config, arguments={"engine": json.dumps(asdict(settings))})

    def close(self) -> None:
        self._process.close()
