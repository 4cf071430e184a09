"""OpenVINO settings with the names of Triton's backend; other parameters are properties of the device."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tpx.errors import ConfigError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.parameters import instance_specs

log = logging.getLogger(__name__)

_PROPERTY = re.compile(r"[A-Z][A-Z0-9_]*")
_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")
_CHECKED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "INFERENCE_NUM_THREADS": ((), "a non-negative number"),
    "COMPILATION_NUM_THREADS": ((), "a non-negative number"),
    "NUM_STREAMS": (("AUTO", "NUMA"), "either AUTO/NUMA/<int_value>"),
    "PERFORMANCE_HINT": (_HINTS, "/".join(_HINTS)),
}
"""Words that a property takes, and what errors say; other properties than hints also take numbers."""
_EARLIER_NAMES = {
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "CPU_BIND_THREAD": "ENABLE_CPU_PINNING",
    "ENFORCE_BF16": "HINT_BF16",
    "SKIP_DYNAMIC_BATCHSIZE": "SKIP_OV_DYNAMIC_BATCHSIZE",
}
"""Names in Triton's backend before OpenVINO 2022."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVinoSettings:
    """Settings for compiling a model and forming its batches."""

    device: str = "CPU"
    properties: Mapping[str, str] = field(default_factory=dict)
    """OpenVINO properties by name."""
    extension: str = ""
    """Library with custom operators."""
    fixed_batch: bool = False
    """True if every execution has max_batch_size rows."""
    padded: bool = False
    """True if smaller batches are padded to the fixed size."""
    reshaped: bool = False
    """True if the model is reshaped to the configured dims instead of having to match them."""


def settings_of(config: ModelConfig) -> OpenVinoSettings:
    """Return the settings of a ModelConfig. Raises ConfigError that names the parameter."""
    given = {}
    for key, value in config.parameters.items():
        given[_EARLIER_NAMES.get(key, key)] = value.string_value
    fixed, padded, reshaped = (
        _yes(config.name, given, key)
        for key in ("SKIP_OV_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING", "RESHAPE_IO_LAYERS")
    )
    device = given.pop("TARGET_DEVICE", "") or "CPU"
    extension = given.pop("CPU_EXTENSION_PATH", "")
    return OpenVinoSettings(
        device=device,
        properties=_properties(config, device, given),
        extension=extension,
        fixed_batch=fixed,
        padded=padded,
        reshaped=reshaped,
    )


def _properties(config: ModelConfig, device: str, given: dict[str, str]) -> dict[str, str]:
    properties: dict[str, str] = {}
    if _yes(config.name, given, "HINT_BF16"):
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    for key, text in given.items():
        if not _PROPERTY.fullmatch(key):
            log.warning("parameter '%s' of model '%s' has no effect", key, config.name)
            continue
        properties[key] = text
        words, expected = _CHECKED.get(key, ((), ""))
        if text.upper() in words:
            properties[key] = text.upper()
        elif expected and not (key != "PERFORMANCE_HINT" and text.isascii() and text.isdigit()):
            raise _wrong(config.name, key, text, expected)
    if device == "CPU":
        # results must not depend on whether this machine's CPU supports bfloat16
        if not {"INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT"} & properties.keys():
            properties["INFERENCE_PRECISION_HINT"] = "f32"
        # a stream computes one request at a time, so each instance needs its own
        if not {"NUM_STREAMS", "PERFORMANCE_HINT"} & properties.keys():
            properties["NUM_STREAMS"] = str(len(instance_specs(config)))
    return properties


def _wrong(model: str, key: str, text: str, expected: str) -> ConfigError:
    return ConfigError(f"expected the parameter '{key}' of model '{model}' to be {expected}, got {text}")


def _yes(model: str, given: dict[str, str], key: str) -> bool:
    text = given.pop(key, "NO")
    if text.upper() not in ("YES", "NO"):
        raise _wrong(model, key, text, "either YES or NO")
    return text.upper() == "YES"
