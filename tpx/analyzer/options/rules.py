"""The rules between options of different groups: Model Analyzer's, and those that it lacks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpx.analyzer.models import ModelToProfile
from tpx.errors import UsageError
from tpx.options import fields_of, nearest

if TYPE_CHECKING:
    from tpx.analyzer.options.config import ProfileConfig


_OF_THE_LOAD = (
    *("weighting", "parameters", "objectives", "constraints", "perf_analyzer_flags", "genai_perf_flags"),
    *("triton_server_flags", "triton_server_environment", "triton_docker_args"),
)
"""Settings of ModelToProfile that a composing model has no use for."""
_OF_THE_SERVER = ("triton_server_flags", "triton_server_environment", "triton_docker_args")


def check_together(config: "ProfileConfig") -> None:
    """Raise UsageError, naming both, for options that do not go together."""
    _distinct(config.model_names)
    _one_kind_of_load(config)
    _composing(config)
    _known_server_flags(config)
    _one_server(config)
    if config.run_config_search_mode == "quick":
        _quick(config)
    if config.run_config_search_mode == "brute":
        _brute(config)
    if config.dcgm_disable and config.triton_launch_mode != "remote":
        raise UsageError("--dcgm-disable goes with --triton-launch-mode remote only")
    _ = config.goals, config.space, config.concurrencies, config.request_rates
    for model in config.profile_models:
        _ = config.space_of(model)


def member_warnings(config: "ProfileConfig") -> Iterator[str]:
    """A line for each setting of a composing model that only a model under load of its own has a use for."""
    for model in (*config.bls_composing_models, *config.ensemble_composing_models):
        plain = ModelToProfile(name=model.name)
        for name in _OF_THE_LOAD:
            if getattr(model, name) != getattr(plain, name):
                yield f"composing model '{model.name}': {name} changes nothing: it has no load of its own"


def _known_server_flags(config: "ProfileConfig") -> None:
    sets = [config.triton_server_flags, *(model.triton_server_flags for model in config.profile_models)]
    names = [name for flags in sets for name in flags or ()]
    if not names:
        return
    from tpx.serving.options import ServeConfig  # late: few runs have such flags

    known = {spelling.lstrip("-") for field in fields_of(ServeConfig) for spelling in field.spellings}
    for name in names:
        if name not in known:
            raise UsageError(f"triton_server_flags: unknown option '{name}'{nearest(name, known)}")


def _one_server(config: "ProfileConfig") -> None:
    """Models that are profiled together share a server, which is started in one way."""
    if not config.run_config_profile_models_concurrently_enable:
        return
    for name in _OF_THE_SERVER:
        said = [model for model in config.profile_models if getattr(model, name) is not None]
        for model in said[1:]:
            if getattr(model, name) != getattr(said[0], name):
                raise UsageError(
                    f"{name} of models '{said[0].name}' and '{model.name}' differ: models that are profiled "
                    "together share one server"
                )


def _distinct(names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        raise UsageError(f"--profile-models names a model twice: {','.join(names)}")


def _one_kind_of_load(config: "ProfileConfig") -> None:
    rates = {
        "--request-rate": bool(config.request_rate),
        "--request-rate-search-enable": config.request_rate_search_enable,
        "--run-config-search-min-request-rate": config.run_config_search_min_request_rate != 16,
        "--run-config-search-max-request-rate": config.run_config_search_max_request_rate != 8192,
    }
    flights = {
        "--concurrency": bool(config.concurrency),
        "--run-config-search-min-concurrency": config.run_config_search_min_concurrency != 1,
        "--run-config-search-max-concurrency": config.run_config_search_max_concurrency != 1024,
    }
    rate = next((flag for flag, given in rates.items() if given), "")
    flight = next((flag for flag, given in flights.items() if given), "")
    if rate and flight:
        raise UsageError(f"{rate} and {flight} do not go together: a load is either of them")
    for model in config.profile_models:
        if model.parameters.request_rate and model.parameters.concurrency:
            raise UsageError(f"model '{model.name}' has both concurrency and request_rate: a load is either")
    kinds = {config.space_of(model).loads.kind for model in config.profile_models}
    if config.run_config_profile_models_concurrently_enable and len(kinds) > 1:
        raise UsageError("models profiled together all have a concurrency, or all a request rate")


def _composing(config: "ProfileConfig") -> None:
    together = config.run_config_profile_models_concurrently_enable
    if config.bls_composing_models:
        if len(config.profile_models) > 1:
            raise UsageError("--bls-composing-models belong to one model: profile that one alone")
        if together:
            raise UsageError("--bls-composing-models and models profiled together do not go together")
    composing = (*config.bls_composing_models, *config.ensemble_composing_models)
    if config.cpu_only_composing_models and not composing:
        raise UsageError(
            "--cpu-only-composing-models needs --bls-composing-models or --ensemble-composing-models"
        )


def _brute(config: "ProfileConfig") -> None:
    for name in ("run_config_profile_models_concurrently_enable", "bls_composing_models"):
        if getattr(config, name):
            raise UsageError(
                f"--{name.replace('_', '-')}: brute search does not vary several models; leave "
                "--run-config-search-mode out, or choose quick or optuna"
            )


def _quick(config: "ProfileConfig") -> None:
    if config.run_config_search_disable:
        raise UsageError("--run-config-search-mode quick and --run-config-search-disable do not go together")
    if config.concurrency:
        raise UsageError("--concurrency: quick search chooses the concurrency itself")
    if config.batch_sizes != (1,):
        raise UsageError("--batch-sizes: quick search sends single inferences")
    for model in config.profile_models:
        _quick_model(model)


def _quick_model(model: ModelToProfile) -> None:
    if model.parameters.concurrency:
        raise UsageError(f"model '{model.name}': concurrency: quick search chooses it itself")
    for axis in model.sweep.axes:
        if axis.path[0] in ("max_batch_size", "instance_group") and len(axis.values) > 1:
            raise UsageError(f"model '{model.name}': {axis.label}: quick search varies it itself")
    if model.sweep.combinations > 1:
        raise UsageError(
            f"model '{model.name}': model_config_parameters have {model.sweep.combinations} combinations; "
            "quick search takes one"
        )
