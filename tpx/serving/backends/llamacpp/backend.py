"""`backend: "llamacpp"`: opens a GGUF file, completes the configuration, and starts engines."""

from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path

from tpx.errors import LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import Description, ModelFiles, inside, no_file
from tpx.serving.backends.language.model import (
    LanguageModelVersion,
    engine_process,
    engine_threads,
    given_parameters,
)
from tpx.serving.backends.parameters import GivenParameters

_POOLINGS = {name: name for name in ("mean", "cls", "last", "rank")}
_CACHE_TYPES = {name: name for name in ("f16", "q8_0", "q4_0")}


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
    mmproj: str
    """Path of the encoder of images; empty for a model that takes texts only."""
    cache_ram_mib: int
    kv_cache_type: str

    @classmethod
    def of(cls, config: ModelConfig, path: Path) -> "EngineSettings":
        """Read the parameters of a model. Raises ConfigError."""
        given = given_parameters(config, frozenset(cls.__dataclass_fields__) - {"path"}, "llamacpp")
        parallel = given.whole("n_parallel", least=1, most=256, default=4)
        return cls(
            path=str(path),
            n_ctx=given.whole("n_ctx", least=parallel, default=2048 * parallel),
            n_parallel=parallel,
            n_batch=given.whole("n_batch", least=1, default=2048),
            threads=engine_threads(config, given),
            n_gpu_layers=given.whole("n_gpu_layers", default=0),
            max_queue_size=given.whole("max_queue_size", default=256),
            embeddings=given.switch("embeddings", default=False),
            pooling=given.one_of("pooling", _POOLINGS) or "",
            chat_template=given.values.get("chat_template", ""),
            mmproj=_encoder(given, path),
            cache_ram_mib=given.whole("cache_ram_mib", default=0),
            kv_cache_type=given.one_of("kv_cache_type", _CACHE_TYPES) or "f16",
        )


def _encoder(given: GivenParameters, path: Path) -> str:
    """Return the path of the file that the parameter mmproj names beside the model. Raises ConfigError."""
    name = given.values.get("mmproj", "")
    if not name:
        return ""
    encoder = inside(path.parent, name, "parameters[mmproj]")
    if not _is_gguf(encoder):
        raise given.wrong("mmproj", f"a GGUF file in '{path.parent}'")
    return str(encoder)


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


class LlamaCppBackend:
    """Opens `model.gguf`, or the file in `default_model_filename`."""

    default_filename = "model.gguf"

    def open(self, files: ModelFiles, config: ModelConfig) -> LanguageModelVersion:
        name = config.default_model_filename or self.default_filename
        path = inside(files.directory.absolute(), name, "default_model_filename")
        if not path.exists():
            raise no_file(path, files.model_name)
        if not _is_gguf(path):
            raise LoadError(f"'{path}' of model '{files.model_name}' is no GGUF file")
        process = engine_process(files, Path(__file__).parent / "engine.py")
        return LanguageModelVersion(
            process, lambda config: EngineSettings.of(config, path), "llamacpp", files.settings
        )

    def describe(self) -> Description:
        return Description(version=version_of("xllamacpp"), devices=("CPU",))
