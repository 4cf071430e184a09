"""`profile_models` and the models that others are composed of, in every form that the file may have."""

from collections.abc import Callable, Mapping
from typing import Any

from tpx.analyzer.config_sweep import read_sweep
from tpx.analyzer.models import ModelParameters, ModelToProfile
from tpx.analyzer.options.values import (
    environment,
    flags,
    from_yaml_text,
    mapping,
    number,
    numbers,
    read_constraints,
    read_objectives,
    truth,
    within,
    words,
)
from tpx.options import nearest

Reader = Callable[[Any], Any]


def read_models(value: Any) -> tuple[ModelToProfile, ...]:
    """`a,b`, a list of names and of `name: settings`, or a map of names to settings (or to nothing)."""
    if isinstance(value, Mapping):
        return tuple(_model(str(name), own) for name, own in value.items())
    if not isinstance(value, list):
        return tuple(ModelToProfile(name=name) for name in words(value))
    found: list[ModelToProfile] = []
    for item in value:
        if isinstance(item, Mapping):
            found += (_model(str(name), own) for name, own in item.items())
        else:
            found += (ModelToProfile(name=name) for name in words(item))
    return tuple(found)


def parse_models(text: str) -> tuple[ModelToProfile, ...]:
    """The same from the text of a flag: `a,b`, or YAML between braces or brackets."""
    return from_yaml_text(read_models)(text) if text.lstrip()[:1] in ("{", "[") else read_models(text)


def _model(name: str, own: Any) -> ModelToProfile:
    with within(name):
        settings: dict[str, Any] = {}
        for key, value in mapping({} if own is None else own, "settings of a model").items():
            field, read = _setting(key)
            if value is not None:
                with within(key):
                    settings[field] = read(value)
        return ModelToProfile(name=name, **settings)


def _setting(key: str) -> tuple[str, Reader]:
    """The field of ModelToProfile that a key sets, and what reads its value."""
    found = _SETTINGS.get(key.replace("-", "_"))
    if found is None:
        raise ValueError(
            f"unknown key '{key}'{nearest(key, _SETTINGS)} (a model has: {', '.join(_SETTINGS)})"
        )
    return found


def _parameters(value: Any) -> ModelParameters:
    loads: dict[str, Any] = {}
    known = ("batch_sizes", "concurrency", "request_rate")
    for key, item in mapping(value, "loads").items():
        if key.replace("-", "_") not in known:
            raise ValueError(f"unknown key '{key}'{nearest(key, known)} (there are: {', '.join(known)})")
        with within(key):
            loads[key.replace("-", "_")] = numbers(item)
    return ModelParameters(**loads)


def _weighting(value: Any) -> float:
    weight = number(value)
    if not weight > 0:
        raise ValueError(f"a weight must be above 0, not {weight:g}")
    return weight


def docker_args(value: Any) -> Mapping[str, object]:
    """Arguments of the container: single values and lists of texts."""
    read: dict[str, object] = {}
    for key, item in mapping(value, "arguments of the container").items():
        if isinstance(item, Mapping) or item is None:
            raise ValueError(f"{key}: expected a single value or a list")
        read[key] = tuple(map(str, item)) if isinstance(item, list) else item
    return read


_SETTINGS: Mapping[str, tuple[str, Reader]] = {
    "cpu_only": ("cpu_only", truth),
    "weighting": ("weighting", _weighting),
    "parameters": ("parameters", _parameters),
    "objectives": ("objectives", read_objectives),
    "constraints": ("constraints", read_constraints),
    "model_config_parameters": ("sweep", read_sweep),
    "perf_analyzer_flags": ("perf_analyzer_flags", flags),
    "genai_perf_flags": ("genai_perf_flags", flags),
    "triton_server_flags": ("triton_server_flags", flags),
    "triton_server_environment": ("triton_server_environment", environment),
    "triton_docker_args": ("triton_docker_args", docker_args),
}
