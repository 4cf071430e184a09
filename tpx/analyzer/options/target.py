"""The options that say which models are profiled, and where they and their variants lie."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpx.analyzer.models import ModelToProfile
from tpx.analyzer.options.models import parse_models, read_models
from tpx.analyzer.options.values import words
from tpx.options import Option

_MODELS = "Models"


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Models, alone or together, and what they are composed of."""

    config_file: Annotated[
        Path | None,
        Option("YAML file with these options as keys; the command line wins", ("-f",), _MODELS, "FILE"),
    ] = None
    model_repository: Annotated[
        Path | None, Option("directory that holds the models", ("-m",), _MODELS, "DIR")
    ] = None
    profile_models: Annotated[
        tuple[ModelToProfile, ...],
        Option(
            "models to profile, one after the other; in the file each may have settings of its own",
            (),
            _MODELS,
            "A,B",
            parse=parse_models,
            read=read_models,
        ),
    ] = ()
    run_config_profile_models_concurrently_enable: Annotated[
        bool, Option("profile all models together, each under a load of its own", (), _MODELS)
    ] = False
    bls_composing_models: Annotated[
        tuple[ModelToProfile, ...],
        Option(
            "models that the profiled one calls by itself, whose configurations are varied too",
            (),
            _MODELS,
            "A,B",
            parse=parse_models,
            read=read_models,
        ),
    ] = ()
    ensemble_composing_models: Annotated[
        tuple[ModelToProfile, ...],
        Option(
            "settings of an ensemble's models, as for profile_models",
            (),
            _MODELS,
            "A,B",
            parse=parse_models,
            read=read_models,
        ),
    ] = ()
    cpu_only_composing_models: Annotated[
        tuple[str, ...],
        Option("composing models that stay on the CPU", (), _MODELS, "A,B", comma=True, read=words),
    ] = ()
    output_model_repository_path: Annotated[
        Path,
        Option(
            "directory for the config.pbtxt of every variant, beside links to its model", (), _MODELS, "DIR"
        ),
    ] = Path("output_model_repository")
    override_output_model_repository: Annotated[
        bool, Option("replace the variants that an earlier run left there", (), _MODELS)
    ] = False

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(model.name for model in self.profile_models)
