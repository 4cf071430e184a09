"""`backend: "llamacpp"`: opens a GGUF file, completes the configuration, and starts engines."""

import json
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version as version_of
from pathlib import Path
from typing import cast

from tpx.errors import ConfigError, LoadError
from tpx.options import nearest
from tpx.processors import usable_processors
from tpx.protocol import messages
from tpx.protocol.datatypes import BY_NAME
from tpx.protocol.messages import DataType, ModelConfig
from tpx.protocol.model_config import inputs_and_outputs, path_of
from tpx.serving.backends.contract import Description, InstanceSpec, ModelFiles, inside, no_file
from tpx.serving.backends.llamacpp.views import INPUTS, OUTPUTS
from tpx.serving.backends.parameters import GivenParameters
from tpx.serving.backends.python.backend import PythonModel
from tpx.serving.backends.python.instance import PythonInstance

_POOLINGS = {name: name for name in ("mean", "cls", "last")}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of an engine: the parameters of a model, complete."""

    path: str
    n_ctx: int
    """Tokens of all sequences together; each has an equal part."""
    n_parallel: int
    n_batch: int
    threads: int
    n_gpu_layers: int
    max_queue_size: int
    embeddings: bool
    pooling: str
    chat_template: str
    cache_ram_mib: int

    @classmethod
    def of(cls, config: ModelConfig, path: Path) -> "EngineSettings":
        """Read the parameters of a model. Raises ConfigError."""
        given = GivenParameters.of_model(config)
        known = cls.__dataclass_fields__.keys() - {"path"}
        for key in given.words:
            if key not in known:
                raise given.refuse(
                    key,
                    f"model '{config.name}' has no parameter '{key}'{nearest(key, known)} (llamacpp has: "
                    f"{', '.join(sorted(known))})",
                )
        parallel = given.whole("n_parallel", least=1, most=256, default=4)
        instances = max(1, sum(group.count for group in config.instance_group))
        # a core is left to the server: the engine's threads wait for each other in every step
        threads = max(1, int(usable_processors() - 1) // instances)
        return cls(
            path=str(path),
            n_ctx=given.whole("n_ctx", least=parallel, default=2048 * parallel),
            n_parallel=parallel,
            n_batch=given.whole("n_batch", least=1, default=2048),
            threads=given.threads("threads", least=1) or threads,
            n_gpu_layers=given.whole("n_gpu_layers", default=0),
            max_queue_size=given.whole("max_queue_size", default=256),
            embeddings=given.switch("embeddings", default=False),
            pooling=given.one_of("pooling", _POOLINGS) or "",
            chat_template=given.words.get("chat_template", ""),
            cache_ram_mib=given.whole("cache_ram_mib", default=0),
        )


class LlamaCppBackend:
    """Opens `model.gguf`, or the file in `default_model_filename`."""

    default_filename = "model.gguf"

    def open(self, files: ModelFiles, config: ModelConfig) -> "LlamaCppModel":
        name = config.default_model_filename or self.default_filename
        path = inside(files.directory.absolute(), name, "default_model_filename")
        if not path.exists():
            raise no_file(path, files.model_name)
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise LoadError(f"'{path}' of model '{files.model_name}' is no GGUF file")
        if files.host is None:
            raise LoadError(f"model '{files.model_name}': engines run only in a server")
        for key in files.settings:
            if key != "default-max-batch-size":  # of all backends
                raise ConfigError(f"--backend-config llamacpp has no key '{key}' (a model has parameters)")
        runtime = Path(__file__).parent / "engine.py"
        return LlamaCppModel(path, PythonModel(replace(files, settings={}), runtime, files.host, based=True))

    def describe(self) -> Description:
        return Description(version=version_of("xllamacpp"), devices=("CPU",))


class LlamaCppModel:
    """A version of a model."""

    inline = False
    makes_responses = True

    def __init__(self, path: Path, process: PythonModel) -> None:
        self._path = path
        self._process = process

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:  # noqa: ARG002
        for name, datatype in INPUTS.items() if not config.input else ():
            kind = cast("DataType", BY_NAME[datatype].number)
            config.input.add(name=name, data_type=kind, dims=[1], optional=True)
        for name, datatype in OUTPUTS.items() if not config.output else ():
            kind = cast("DataType", BY_NAME[datatype].number)
            config.output.add(name=name, data_type=kind, dims=[-1])
        config.model_transaction_policy.decoupled = True

    def check(self, config: ModelConfig) -> None:
        EngineSettings.of(config, self._path)
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
            wanted = INPUTS if tensor.DESCRIPTOR.name == "ModelInput" else OUTPUTS
            datatype = wanted.get(tensor.name)
            if datatype is None or tensor.data_type != BY_NAME[datatype].number:
                words = ", ".join(
                    f"{name} {BY_NAME[datatype].config_name}" for name, datatype in wanted.items()
                )
                raise ConfigError(
                    f"model '{config.name}' has no tensor '{tensor.name}' of this type "
                    f"(llamacpp has: {words})",
                    field=path_of(config, tensor, "name"),
                )
        for index, group in enumerate(config.instance_group):
            if group.kind == messages.ModelInstanceGroup.KIND_GPU:
                raise ConfigError(
                    f"instance groups of model '{config.name}' must be KIND_CPU: the parameter n_gpu_layers "
                    "moves layers to a GPU",
                    field=f"instance_group[{index}].kind",
                )

    def executor(self, spec: InstanceSpec, config: ModelConfig) -> PythonInstance:
        settings = EngineSettings.of(config, self._path)
        return self._process.executor(spec, config, arguments={"engine": json.dumps(asdict(settings))})

    def close(self) -> None:
        self._process.close()
