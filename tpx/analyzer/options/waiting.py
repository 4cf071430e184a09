"""What Model Analyzer can be told and tpx does not carry out yet: refused by name, never ignored.

A feature that arrives takes its lines out of here.
"""

from typing import TYPE_CHECKING

from tpx.analyzer.models import ModelParameters, ModelToProfile
from tpx.errors import UsageError

if TYPE_CHECKING:
    from tpx.analyzer.options.config import ProfileConfig


def refuse_waiting(config: "ProfileConfig") -> None:
    """Raise UsageError for the first setting that nothing reads: models that are varied as one have the loads
    and ranges of the run."""
    for model in (*config.bls_composing_models, *config.ensemble_composing_models):
        if model != ModelToProfile(name=model.name):
            raise _refusal(
                f"composing model '{model.name}': its own settings", "it has the ranges of the run"
            )
    if not config.run_config_profile_models_concurrently_enable:
        return
    for model in config.profile_models:
        own = {
            "model_config_parameters": bool(model.sweep),
            "parameters": model.parameters != ModelParameters(),
        }
        for name, given in own.items():
            if given:
                raise _refusal(
                    f"model '{model.name}': {name} of a model that is profiled together with others",
                    "all have the loads and ranges of the run",
                )


def _refusal(what: str, instead: str) -> UsageError:
    return UsageError(f"{what} is not supported by this version of tpx: {instead}")
