"""Arguments of vLLM: of `model.json`, of a model's parameters, and the adapters of `multi_lora.json`."""

import json
import logging
from pathlib import Path

from tpx.errors import LoadError
from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.parameters import GivenParameters

log = logging.getLogger(__name__)

OWN = frozenset({"n_parallel", "max_queue_size"})
"""Parameters of a model in small letters that are no arguments of vLLM."""
_REMOVED = ("disable_log_requests",)
"""Keys of Triton's examples that vLLM has no more."""


def arguments_of(config: ModelConfig) -> JsonObject:
    """Return the parameters of a model that replace members of `model.json`: those in small letters."""
    return {
        name: _parse_value(value)
        for name, value in GivenParameters.of_model(config).values.items()
        if name == name.lower() and name not in OWN
    }


def move_arguments(config: ModelConfig, directory: Path) -> ModelConfig:
    """Move parameters that are arguments into the `model.json` of a copy of the model, as Triton's backend
    reads them there, and return the configuration.
    """
    arguments = arguments_of(config) if config.backend == "vllm" else {}
    files = list(directory.glob(f"[0-9]*/{config.default_model_filename or 'model.json'}"))
    for path in files if arguments else ():
        given = json.loads(path.read_bytes())
        path.unlink()  # a link: the model's own file stays as it is
        path.write_text(json.dumps({**given, **arguments}, indent=2) + "\n", encoding="utf-8")
    for name in arguments if files else ():
        del config.parameters[name]
    return config


def _parse_value(text: str) -> object:
    """Return the value of JSON; any other text as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_arguments(path: Path, model: str) -> JsonObject:
    """Return the arguments. A model in the same directory is named by its path there. Raises LoadError."""
    try:
        arguments = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise LoadError(f"'{path}' of model '{model}' has to be a JSON object: {exc}") from exc
    if not isinstance(arguments, dict) or not isinstance(arguments.get("model"), str):
        raise LoadError(
            f"'{path}' of model '{model}' has to be a JSON object with a member 'model', the name or the "
            "directory of a checkpoint"
        )
    for key, value in arguments.items():
        if value in ("true", "false"):  # as in Triton's examples
            arguments[key] = value == "true"
    for key in _REMOVED:
        if arguments.pop(key, None) is not None:
            log.info("'%s' of '%s' has no effect: vLLM logs no requests unless told", key, path)
    arguments["model"] = _beside(path, arguments["model"])
    if arguments.get("enable_lora") and "lora_modules" not in arguments:
        adapters = _read_adapters(path.with_name("multi_lora.json"), model)
        arguments["lora_modules"] = [{"name": name, "path": at} for name, at in adapters.items()]
    return arguments


def _beside(path: Path, name: str) -> str:
    """Return the path of a directory that lies beside the file; any other name as it is."""
    return str(path.parent / name) if (path.parent / name).is_dir() else name


def _read_adapters(path: Path, model: str) -> dict[str, str]:
    """Return the directories of the adapters, by their names. Raises LoadError."""
    try:
        adapters = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise LoadError(f"'enable_lora' of model '{model}' requires '{path}': {exc}") from exc
    if not isinstance(adapters, dict) or not all(isinstance(at, str) for at in adapters.values()):
        raise LoadError(f"'{path}' of model '{model}' has to be an object of names and directories")
    return {name: _beside(path, at) for name, at in adapters.items()}
