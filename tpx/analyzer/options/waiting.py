"""Options whose feature tpx does not have yet: they are refused by name, never ignored.

A feature that arrives takes its line out of here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpx.analyzer.models import ModelParameters, ModelToProfile
from tpx.errors import UsageError
from tpx.options import fields_of

if TYPE_CHECKING:
    from tpx.analyzer.options.config import ProfileConfig

FIELDS: Mapping[str, str] = {
}
"""Field of ProfileConfig -> what tpx does instead."""

CHOICES: Mapping[str, frozenset[str]] = {}
"""Field of ProfileConfig -> its values that nothing carries out yet."""

MODEL_SETTINGS: frozenset[str] = frozenset()
"""Fields of ModelToProfile that nothing reads yet."""


def refuse_waiting(config: "ProfileConfig") -> None:
    """Raise UsageError for the first option that is set and has no effect yet."""
    defaults = {field.name: field for field in fields_of(type(config))}
    for name, field in defaults.items():
        value = getattr(config, name)
        if name in FIELDS and value != field.default:
            raise _refusal(field.flag, FIELDS[name])
        if value in CHOICES.get(name, ()):
            raise _refusal(f"{field.flag} {value}", f"it has {field.default}")
    _refuse_settings_of_several(config)
    for model in config.profile_models:
        for name in sorted(MODEL_SETTINGS):
            fresh = type(model)(name=model.name)
            if getattr(model, name) != getattr(fresh, name):
                shown = "model_config_parameters" if name == "sweep" else name
                raise _refusal(f"model '{model.name}': {shown}", "every model has the settings of the run")


def _refuse_settings_of_several(config: "ProfileConfig") -> None:
    """Models that are varied as one have the loads and ranges of the run."""
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
