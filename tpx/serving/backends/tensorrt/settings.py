"""Settings of TensorRT in a configuration and in --backend-config, in the words of Triton's backend
(tensorrt_backend/README.md)."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from tpx.errors import ConfigError, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.parameters import GivenParameters

log = logging.getLogger(__name__)

Strategy = Literal["STATIC", "ON_PROFILE_CHANGE"]
Priority = Literal["DEFAULT", "MAX", "MIN"]

_STRATEGY = "execution_context_allocation_strategy"
_STRATEGIES: Mapping[str, Strategy] = {"STATIC": "STATIC", "ON_PROFILE_CHANGE": "ON_PROFILE_CHANGE"}
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
    given = GivenParameters.of_model(config)
    strategy = given.one_of(_STRATEGY, _STRATEGIES) or "STATIC"
    given.warn_of_others([_STRATEGY], "has no effect")
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
    options = GivenParameters.of_backend("tensorrt", backend)
    options.switch("coalesce-request-input", default=False)  # inputs of a batch always come as one
    return TensorRtSettings(
        strategy=cast("Strategy", strategy),
        priority=_PRIORITIES[config.optimization.priority],
        plugins=_plugins(backend.get("plugins", "")),
        version_compatible=options.switch("version-compatible", default=False),
    )


def _check_policy(backend: Mapping[str, str]) -> None:
    """Instances are threads, which overlap, whatever is wanted; raises ConfigError for other words."""
    policy = backend.get("execution-policy", _POLICIES[0])
    if policy not in _POLICIES:
        raise ConfigError(
            f"--backend-config tensorrt,execution-policy must be one of {', '.join(_POLICIES)}, got "
            f"'{policy}'"
        )


def _plugins(text: str) -> tuple[Path, ...]:
    paths = tuple(Path(each) for each in text.split(";") if each)
    for path in paths:
        if not path.is_file():
            raise LoadError(
                f"unable to find the TensorRT plugin '{path}' of --backend-config tensorrt,plugins"
            )
    return paths
