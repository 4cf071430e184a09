"""Rules between groups of options, Model Analyzer's and additional ones, and warnings about options
without effect.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from tpx.analyzer.options.models import ModelToProfile
from tpx.errors import UsageError
from tpx.options import fields_of, flag_of, given, nearest

if TYPE_CHECKING:
    from tpx.analyzer.options.spec import ProfileSpec

_OF_THE_SERVER = ("triton_server_flags", "triton_server_environment", "triton_docker_args")
_OF_THE_LOAD = (
    *("weighting", "parameters", "objectives", "constraints", "perf_analyzer_flags", "genai_perf_flags"),
    *_OF_THE_SERVER,
)
"""Settings of ModelToProfile that do not apply to a composing model."""
_OF_MODES: Mapping[str, tuple[str, ...]] = {
    "triton_http_endpoint": ("remote",),
    "triton_grpc_endpoint": ("remote",),
    "triton_metrics_url": ("remote",),
    "ray_address": ("ray",),
    "ray_trial": ("ray",),
    "triton_server_path": ("local", "ray"),
    "triton_output_path": ("local", "docker", "ray"),
    "triton_server_flags": ("local", "docker", "remote", "ray"),
    "triton_server_environment": ("local", "docker", "remote", "ray"),
}
"""Option -> the launch modes that accept it, or reject it with their own error."""
_NO_AXES = ("cores", "accuracy_tolerance")
"""Options in the group of axes that are not axes themselves."""
_SEARCHES_ALL = ("quick", "optuna")
"""Modes in which listed fields are searched in addition to the other axes."""


def _list_composing_models(spec: "ProfileSpec") -> tuple[ModelToProfile, ...]:
    return (*spec.models.bls_composing_models, *spec.models.ensemble_composing_models)


def _is_profiled_together(spec: "ProfileSpec") -> bool:
    return spec.models.run_config_profile_models_concurrently_enable


def _has_mode(spec: "ProfileSpec", mode: str) -> bool:
    return spec.strategy.run_config_search_mode == mode


_BRUTE = (
    "brute search does not vary several models; leave --run-config-search-mode out, or choose quick or optuna"
)
RULES: Mapping[str, Callable[["ProfileSpec"], object]] = {
    "--bls-composing-models belong to one model: profile that one alone": (
        lambda s: s.models.bls_composing_models and len(s.models.profile_models) > 1
    ),
    "--bls-composing-models and models profiled together do not go together": (
        lambda s: s.models.bls_composing_models and _is_profiled_together(s)
    ),
    "--cpu-only-composing-models needs --bls-composing-models or --ensemble-composing-models": (
        lambda s: s.models.cpu_only_composing_models and not _list_composing_models(s)
    ),
    "--run-config-search-mode quick and --run-config-search-disable do not go together": (
        lambda s: _has_mode(s, "quick") and s.strategy.run_config_search_disable
    ),
    "--concurrency: quick search chooses the concurrency itself": (
        lambda s: _has_mode(s, "quick") and s.loads.concurrency
    ),
    "--batch-sizes: quick search sends single inferences": (
        lambda s: _has_mode(s, "quick") and s.loads.batch_sizes != (1,)
    ),
    f"--run-config-profile-models-concurrently-enable: {_BRUTE}": (
        lambda s: _has_mode(s, "brute") and _is_profiled_together(s)
    ),
    f"--bls-composing-models: {_BRUTE}": lambda s: _has_mode(s, "brute") and s.models.bls_composing_models,
    "--dcgm-disable goes with --triton-launch-mode remote only": (
        lambda s: s.watch.dcgm_disable and s.server.triton_launch_mode != "remote"
    ),
}
"""Error message -> its condition, for rules between groups; rules for single models are below."""


def check_together(spec: "ProfileSpec") -> None:
    """Raise UsageError for inconsistent options, naming both of every pair."""
    broken = (message for message, rule in RULES.items() if rule(spec))
    faults = (
        _check_loads(spec),
        broken,
        _check_server_flags(spec),
        _check_one_server(spec),
        _check_quick_search(spec),
    )
    raise_together(*itertools.chain(*faults))


def raise_together(*faults: str) -> None:
    """Raise UsageError with all faults, if there are any."""
    if len(faults) > 1:
        raise UsageError("\n  ".join((f"{len(faults)} things are wrong:", *faults)))
    for fault in faults:
        raise UsageError(fault)


def _check_loads(spec: "ProfileSpec") -> Iterator[str]:
    names = spec.models.names
    if len(set(names)) < len(names):
        yield f"--profile-models names a model twice: {','.join(names)}"
    changed = given(spec.loads)
    rate = next((flag_of(name) for name in changed if "request_rate" in name), "")
    flight = next((flag_of(name) for name in changed if "concurrency" in name), "")
    if rate and flight:
        yield f"{rate} and {flight} are mutually exclusive"
    for model in spec.models.profile_models:
        if model.parameters.request_rate and model.parameters.concurrency:
            yield f"model '{model.name}' has both concurrency and request_rate: a load is either"
    kinds = {spec.space_of(model).loads.kind for model in spec.models.profile_models}
    if _is_profiled_together(spec) and len(kinds) > 1:
        yield "models profiled together all have a concurrency, or all a request rate"


def _check_server_flags(spec: "ProfileSpec") -> Iterator[str]:
    models = spec.models.profile_models
    sets = [spec.server.triton_server_flags, *(model.triton_server_flags for model in models)]
    names = [name for flags in sets for name in flags or ()]
    if not names:
        return
    from tpx.serving.options import ServeWords  # late import: few runs set such flags

    settings = [field for field in fields_of(ServeWords) if field.option.setting]
    known = {spelling.lstrip("-") for field in settings for spelling in field.spellings}
    for name in names:
        if name not in known:
            yield f"triton_server_flags: unknown option '{name}'{nearest(name, known)}"


def _check_one_server(spec: "ProfileSpec") -> Iterator[str]:
    """Yield conflicts between the server settings of models profiled together, which share one server."""
    for name in _OF_THE_SERVER if _is_profiled_together(spec) else ():
        configured = [model for model in spec.models.profile_models if getattr(model, name) is not None]
        for model in configured[1:]:
            if getattr(model, name) != getattr(configured[0], name):
                yield (
                    f"{name} of models '{configured[0].name}' and '{model.name}' differ: models that are "
                    "profiled together share one server"
                )


def _check_quick_search(spec: "ProfileSpec") -> Iterator[str]:
    for model in spec.models.profile_models if _has_mode(spec, "quick") else ():
        if model.parameters.concurrency:
            yield f"model '{model.name}': concurrency: quick search chooses it itself"
        for axis in model.sweep.axes:
            if axis.path[0] in ("max_batch_size", "instance_group") and len(axis.values) > 1:
                yield f"model '{model.name}': {axis.label}: quick search varies it itself"
        combinations = model.sweep.combinations
        if combinations > 1:
            yield (
                f"model '{model.name}': model_config_parameters have {combinations} combinations; quick "
                "search takes one"
            )


def member_warnings(spec: "ProfileSpec") -> Iterator[str]:
    """Yield a warning for each setting of a composing model that needs a load of its own."""
    for model in _list_composing_models(spec):
        plain = ModelToProfile(name=model.name)
        for name in _OF_THE_LOAD:
            if getattr(model, name) != getattr(plain, name):
                yield f"composing model '{model.name}': {name} has no effect: it has no load of its own"


def idle_warnings(spec: "ProfileSpec") -> Iterator[str]:
    """Yield a warning for each option that was set and has no effect."""
    launch, search = spec.server.triton_launch_mode, spec.strategy.run_config_search_mode
    taken = {**_OF_MODES, **dict.fromkeys(given(spec.docker), ("docker",))}
    for name in (*given(spec.server), *given(spec.docker)):
        if launch not in taken.get(name, (launch,)):
            modes = " and ".join(taken[name])
            yield f"{flag_of(name)} has no effect with --triton-launch-mode {launch}: it is for {modes}"
    for name in given(spec.optuna) if search != "optuna" else ():
        yield f"{flag_of(name)} has no effect: it is for --run-config-search-mode optuna"
    if spec.budget.pareto and search not in (None, "pareto"):
        yield f"--pareto has no effect with --run-config-search-mode {search}"
    listed = spec.strategy.run_config_search_disable or any(m.sweep for m in spec.models.profile_models)
    for name in given(spec.axes):
        if name in _NO_AXES:
            continue
        if listed and search not in _SEARCHES_ALL:
            yield f"{flag_of(name)} has no effect if configurations are listed: list its values there"
        elif search == "brute":
            yield f"{flag_of(name)} has no effect with --run-config-search-mode brute"
