"""The options that say which models are profiled, and where they and their variants lie."""

from dataclasses import dataclass
from pathlib import Path

from tpx.analyzer.models import ModelToProfile
from tpx.analyzer.options.models import parse_models, read_models
from tpx.analyzer.options.values import words
from tpx.options import option

_MODELS = "Models"


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Models, alone or together, and what they are composed of."""

    config_file: Path | None = option(
        None,
        "YAML file with these options as keys; the command line wins",
        "-f",
        section=_MODELS,
        metavar="FILE",
    )
    model_repository: Path | None = option(
        None, "directory that holds the models", "-m", section=_MODELS, metavar="DIR"
    )
    profile_models: tuple[ModelToProfile, ...] = option(
        (),
        "models to profile, one after the other; in the file each may have settings of its own",
        section=_MODELS,
        metavar="A,B",
        parse=parse_models,
        read=read_models,
    )
    run_config_profile_models_concurrently_enable: bool = option(
        False, "profile all models together, each under a load of its own", section=_MODELS
    )
    bls_composing_models: tuple[ModelToProfile, ...] = option(
        (),
        "models that the profiled one calls by itself, whose configurations are varied too",
        section=_MODELS,
        metavar="A,B",
        parse=parse_models,
        read=read_models,
    )
    ensemble_composing_models: tuple[ModelToProfile, ...] = option(
        (),
        "settings of an ensemble's models, as for profile_models",
        section=_MODELS,
        metavar="A,B",
        parse=parse_models,
        read=read_models,
    )
    cpu_only_composing_models: tuple[str, ...] = option(
        (), "composing models that stay on the CPU", section=_MODELS, metavar="A,B", comma=True, read=words
    )
    output_model_repository_path: Path = option(
        Path("output_model_repository"),
        "directory for the config.pbtxt of every variant, beside links to its model",
        section=_MODELS,
        metavar="DIR",
    )
    override_output_model_repository: bool = option(
        False, "replace the variants that an earlier run left there", section=_MODELS
    )

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.profile_models)
