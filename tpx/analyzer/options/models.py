"""Model options: the models to profile, in every form that the file allows, and their location."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpx.analyzer.config_sweep import ConfigSweep, read_sweep
from tpx.analyzer.results.goals import Constraint, WeightedObjective
from tpx.analyzer.search.ranges import ModelParameters
from tpx.analyzer.values import (
    Flags,
    Reader,
    environment,
    flags,
    from_yaml_text,
    mapping,
    number,
    numbers,
    read_constraints,
    read_fields,
    read_objectives,
    truth,
    within,
    words,
)
from tpx.options import Options, option
from tpx.sources import config_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToProfile:
    """A model by its name in the repository; its settings replace the run's, None uses those."""

    name: str
    cpu_only: bool = False
    """Run instances on the CPU even if there are GPUs."""
    weighting: float = 1.0
    """Weight of this model among several that are profiled together."""
    parameters: ModelParameters = field(default_factory=ModelParameters)
    objectives: tuple[WeightedObjective, ...] | None = None
    constraints: tuple[Constraint, ...] | None = None
    sweep: ConfigSweep = field(default_factory=ConfigSweep)
    """`model_config_parameters`: exactly these configurations instead of a search."""
    perf_analyzer_flags: Flags | None = None
    genai_perf_flags: Flags | None = None
    triton_server_flags: Flags | None = None
    triton_server_environment: Mapping[str, str] | None = None
    triton_docker_args: Mapping[str, object] | None = None


def read_models(value: Any) -> tuple[ModelToProfile, ...]:
    """Parse `a,b`, a list of names and `name: settings`, or a map of names to settings or nothing."""
    if isinstance(value, list):
        return tuple(model for item in value for model in read_models(item))
    if isinstance(value, Mapping):
        return tuple(_parse_model(str(name), own) for name, own in value.items())
    return tuple(ModelToProfile(name=name) for name in words(value))


def parse_models(text: str) -> tuple[ModelToProfile, ...]:
    """Parse models from a flag: `a,b`, or YAML in braces or brackets."""
    return from_yaml_text(read_models)(text) if text.lstrip()[:1] in ("{", "[") else read_models(text)


def _parse_model(name: str, own: Any) -> ModelToProfile:
    with within(name):
        settings = read_fields({} if own is None else own, "settings of a model", _SETTINGS)
        sweep = settings.pop("model_config_parameters", ConfigSweep())
        return ModelToProfile(name=name, sweep=sweep, **settings)


def docker_args(value: Any) -> Mapping[str, object]:
    """Parse container arguments: single values and lists of text."""
    read: dict[str, object] = {}
    for key, item in mapping(value, "arguments of the container").items():
        if isinstance(item, Mapping) or item is None:
            raise ValueError(f"{key}: expected a single value or a list")
        read[key] = tuple(map(str, item)) if isinstance(item, list) else item
    return read


def _parse_weighting(value: Any) -> float:
    weight = number(value)
    if not weight > 0:
        raise ValueError(f"a weight must be above 0, not {weight:g}")
    return weight


_LOADS: Mapping[str, Reader] = dict.fromkeys(("batch_sizes", "concurrency", "request_rate"), numbers)
_SETTINGS: Mapping[str, Reader] = {
    "cpu_only": truth,
    "weighting": _parse_weighting,
    "parameters": lambda value: ModelParameters(**read_fields(value, "loads", _LOADS)),
    "objectives": read_objectives,
    "constraints": read_constraints,
    "model_config_parameters": read_sweep,
    "perf_analyzer_flags": flags,
    "genai_perf_flags": flags,
    "triton_server_flags": flags,
    "triton_server_environment": environment,
    "triton_docker_args": docker_args,
}


class ModelsSpec(Options):
    """Models, alone or together, and the models they are composed of."""

    config_file: Path | None = config_file("-f")
    model_repository: Path | None = option(
        None, "directory of the models; -m also takes models", "-m", metavar="DIR", common=True
    )
    profile_models: tuple[ModelToProfile, ...] = option(
        (),
        "models to profile, one after another; in the file each may have its own settings",
        metavar="A,B",
        parse=parse_models,
        read=read_models,
        common=True,
        completes="models",
    )
    run_config_profile_models_concurrently_enable: bool = option(
        False, "profile all models together, each under its own load"
    )
    bls_composing_models: tuple[ModelToProfile, ...] = option(
        (),
        "models called by the profiled one; their configurations are varied too",
        metavar="A,B",
        parse=parse_models,
        read=read_models,
    )
    ensemble_composing_models: tuple[ModelToProfile, ...] = option(
        (),
        "settings for models of an ensemble, as for profile_models",
        metavar="A,B",
        parse=parse_models,
        read=read_models,
    )
    cpu_only_composing_models: tuple[str, ...] = option(
        (), "composing models that run on the CPU only", metavar="A,B", comma=True
    )
    output_model_repository_path: Path | None = option(
        None,
        "directory for the config.pbtxt of every variant, with links to its model files (default: "
        "configurations in the export path)",
        metavar="DIR",
    )
    override_output_model_repository: bool = option(
        False, "replace the reports and variants of an earlier run instead of moving them aside", common=True
    )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.profile_models)
