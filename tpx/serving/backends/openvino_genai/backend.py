"""`backend: "openvino_genai"`: opens a GGUF file or a folder of OpenVINO IR, and starts engines."""

from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path

from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import Description, ModelFiles, inside, no_file
from tpx.serving.backends.language.model import (
    LanguageModelVersion,
    engine_process,
    engine_threads,
    given_parameters,
)

_IR = "openvino_model.xml"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoGenAiSettings:
    """Settings of an engine: the parameters of a model, complete."""

    path: str
    n_ctx: int
    """Tokens of all sequences together; any of them may use them all."""
    n_parallel: int
    n_batch: int
    threads: int
    max_queue_size: int
    chat_template: str
    device: str

    @classmethod
    def of(cls, config: ModelConfig, path: Path) -> "OpenVinoGenAiSettings":
        """Read the parameters of a model. Raises ConfigError."""
        given = given_parameters(config, frozenset(cls.__dataclass_fields__) - {"path"}, "openvino_genai")
        parallel = given.whole("n_parallel", least=1, most=256, default=4)
        return cls(
            path=str(path),
            n_ctx=given.whole("n_ctx", least=parallel, default=2048 * parallel),
            n_parallel=parallel,
            n_batch=given.whole("n_batch", least=1, default=2048),
            threads=engine_threads(config, given),
            max_queue_size=given.whole("max_queue_size", default=256),
            chat_template=given.values.get("chat_template", ""),
            device=given.values.get("device", "CPU"),
        )


class OpenVinoGenAiBackend:
    """Opens `openvino_model.xml` with its folder, `model.gguf`, or what `default_model_filename` names."""

    default_filename = _IR

    def open(self, files: ModelFiles, config: ModelConfig) -> LanguageModelVersion:
        directory = files.directory.absolute()
        name = config.default_model_filename or _IR
        path = inside(directory, name, "default_model_filename")
        if name == _IR and not path.exists():
            path = directory / "model.gguf"
        if not path.exists():
            raise no_file(path, files.model_name)
        source = path.parent if path.suffix == ".xml" else path
        process = engine_process(files, Path(__file__).parent / "engine.py")
        return LanguageModelVersion(
            process,
            lambda config: OpenVinoGenAiSettings.of(config, source),
            "openvino_genai",
            files.settings,
        )

    def describe(self) -> Description:
        return Description(version=version_of("openvino-genai"), devices=("CPU", "GPU"))
