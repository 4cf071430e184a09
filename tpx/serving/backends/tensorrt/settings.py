"""What a configuration and --backend-config ask of TensorRT, in the words of Triton's backend
(tensorrt_backend/README.md)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from tpx.errors import ConfigError, LoadError
from tpx.protocol.messages import ModelConfig

log = logging.getLogger(__name__)

Strategy = Literal["STATIC", "ON_PROFILE_CHANGE"]
Priority = Literal["DEFAULT", "MAX", "MIN"]

_STRATEGY = "execution_context_allocation_strategy"
_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_PRIORITIES: Mapping[int, Priority] = {0: "DEFAULT", 1: "MAX", 2: "MIN"}
_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtSettings:
    """How engines are loaded, and contexts made."""

    strategy: Strategy = "STATIC"
    """STATIC: each context has memory for its largest shapes; ON_PROFILE_CHANGE: for those of its profile."""
    priority: Priority = "DEFAULT"
    """Of the streams."""
    plugins: tuple[Path, ...] = ()
    """Libraries with layers that engines were built with."""
    version_compatible: bool = False
    """Engines may bring a runtime of their own, which is code."""


def settings_of(config: ModelConfig, backend: Mapping[str, str]) -> TensorRtSettings:
    """The settings of a ModelConfig; `backend` holds those of --backend-config. Raises ConfigError."""
    given = {key: value.string_value for key, value in config.parameters.items()}
    strategy = given.pop(_STRATEGY, "STATIC")
    if strategy not in _STRATEGIES:
        raise ConfigError(
            f"parameter '{_STRATEGY}' of model '{config.name}' must be one of {', '.join(_STRATEGIES)}, got "
            f"'{strategy}'"
        )
    for key in given:
        log.warning("parameter '%s' of model '%s' has no effect", key, config.name)
    for group in config.instance_group:
        if group.secondary_devices:
            raise ConfigError(
                f"instance group {group.name} of model {config.name} names secondary_devices, but tpx runs "
                "engines on GPUs only"
            )
    for name in ("graphs", "busy_wait_events", "output_copy_stream"):
        if getattr(config.optimization.cuda, name):
            log.warning("optimization.cuda.%s of model '%s' has no effect", name, config.name)
    _check_policy(backend)
    _switch(backend, "coalesce-request-input")  # inputs of a batch always come as one
    return TensorRtSettings(
        strategy=cast("Strategy", strategy),
        priority=_PRIORITIES[config.optimization.priority],
        plugins=_plugins(backend.get("plugins", "")),
        version_compatible=_switch(backend, "version-compatible"),
    )


def _check_policy(backend: Mapping[str, str]) -> None:
    """Instances are threads, which overlap, whatever is wanted; raises ConfigError for other words."""
    policy = backend.get("execution-policy", _POLICIES[0])
    if policy not in _POLICIES:
        raise ConfigError(
            f"--backend-config tensorrt,execution-policy must be one of {', '.join(_POLICIES)}, got "
            f"'{policy}'"
        )


def _switch(backend: Mapping[str, str], key: str) -> bool:
    text = backend.get(key, "false").lower()
    if text not in ("true", "false", "1", "0", "on", "off"):
        raise ConfigError(f"--backend-config tensorrt,{key} must be true or false, got '{backend[key]}'")
    return text in ("true", "1", "on")


def _plugins(text: str) -> tuple[Path, ...]:
    paths = tuple(Path(each) for each in text.split(";") if each)
    for path in paths:
        if not path.is_file():
            raise LoadError(
                f"unable to find the TensorRT plugin '{path}' of --backend-config tensorrt,plugins"
            )
    return paths
