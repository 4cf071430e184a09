"""Options that a run has no use for: a line for each that was set, so that none is ignored in silence."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tpx.options import fields_of

if TYPE_CHECKING:
    from tpx.analyzer.options.config import ProfileConfig

_DOCKER = ("image", "args", "labels", "mounts", "shm_size")
_OF_MODES: Mapping[str, tuple[str, ...]] = {
    "triton_http_endpoint": ("remote",),
    "triton_grpc_endpoint": ("remote",),
    "triton_metrics_url": ("remote",),
    "triton_server_path": ("local",),
    "triton_output_path": ("local", "docker"),
    "triton_server_flags": ("local", "docker", "remote"),
    "triton_server_environment": ("local", "docker", "remote"),
} | {f"triton_docker_{name}": ("docker",) for name in _DOCKER}
"""Option -> the launch modes that take it, if only to refuse it."""
_OF_OPTUNA = (
    *("min_percentage_of_search_space", "max_percentage_of_search_space", "use_concurrency_formula"),
    *("optuna_min_trials", "optuna_max_trials", "optuna_early_exit_threshold"),
)
_AXES = (
    *("search_threads", "queue_delays", "search_without_batching"),
    *("execution_providers", "graph_levels", "precisions"),
)
_SEARCHES_ALL = ("quick", "optuna")
"""Modes in which listed fields are axes beside the others."""


def idle_warnings(config: "ProfileConfig") -> Iterator[str]:
    """A line for each option that was set and changes nothing."""
    launch, search = config.triton_launch_mode, config.run_config_search_mode
    given = [
        field.name
        for field in fields_of(type(config))
        if not field.option.inert and getattr(config, field.name) != field.default
    ]
    for name in given:
        if launch not in _OF_MODES.get(name, (launch,)):
            modes = " and ".join(_OF_MODES[name])
            yield f"{_flag(name)} changes nothing with --triton-launch-mode {launch}: it is for {modes}"
        if name in _OF_OPTUNA and search != "optuna":
            yield f"{_flag(name)} changes nothing: it is for --run-config-search-mode optuna"
    if config.pareto and search not in (None, "pareto"):
        yield f"--pareto changes nothing with --run-config-search-mode {search}"
    listed = config.run_config_search_disable or any(model.sweep for model in config.profile_models)
    for name in given:
        if name not in _AXES:
            continue
        if listed and search not in _SEARCHES_ALL:
            yield f"{_flag(name)} changes nothing where configurations are listed: list its values there"
        elif search == "brute":
            yield f"{_flag(name)} changes nothing with --run-config-search-mode brute"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
