"""The command line and its YAML file, read into a ProfileConfig."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpx.analyzer.models import ModelToProfile
from tpx.analyzer.options.config import ProfileConfig
from tpx.analyzer.options.waiting import refuse_waiting
from tpx.errors import UsageError
from tpx.options import build, given_in_argv, given_in_mapping, nearest

MODELS_SHOWN = 20
"""So many names an error lists at most."""


def read_options(argv: Sequence[str]) -> ProfileConfig:
    """The options of a command line and of the YAML file that it names; the command line wins.

    Raises UsageError, also for what only the whole shows: missing options, and a minimum above its maximum.
    """
    config = merge_options(argv)
    if not config.profile_models:
        raise UsageError("missing: --profile-models, the model to profile (several with commas)")
    refuse_waiting(config)
    repository = config.model_repository
    if repository is None:
        if config.triton_launch_mode != "remote":
            raise UsageError("missing: --model-repository, the directory that holds the models")
        return config
    if not repository.is_dir():
        raise UsageError(f"--model-repository {repository}: no such directory")
    if config.triton_launch_mode != "remote":
        for model in config.model_names:
            _check_model(repository, model)
    return config


def merge_options(argv: Sequence[str]) -> ProfileConfig:
    """Command line over file over defaults.

    A model that the command line names keeps the settings that the file has for it.
    """
    given = given_in_argv(ProfileConfig, argv)
    path = given.get("config_file")
    if path is None:
        return build(ProfileConfig, given)
    base = _from_file(path)
    models = _with_settings(given.get("profile_models", ()), base.get("profile_models", ()))
    return build(ProfileConfig, {**base, **given, **({"profile_models": models} if models else {})})


def _with_settings(
    named: Iterable[ModelToProfile], configured: Iterable[ModelToProfile]
) -> tuple[ModelToProfile, ...]:
    own = {model.name: model for model in configured}
    return tuple(own.get(model.name, model) for model in named)


def _check_model(repository: Path, model: str) -> None:
    models = sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    if model in models:
        return
    known = ", ".join(models[:MODELS_SHOWN]) + (" ..." if len(models) > MODELS_SHOWN else "")
    raise UsageError(
        f"--profile-models: {repository} has no model '{model}'{nearest(model, models)} "
        f"(has: {known or 'no model at all'})"
    )


def _from_file(path: Path) -> dict[str, Any]:
    """Values of the YAML file's keys, by field name."""
    try:
        import yaml
    except ImportError as exc:
        raise UsageError("--config-file needs the package pyyaml: pip install pyyaml") from exc
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise UsageError(f"--config-file {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise UsageError(f"--config-file {path}: not YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(content, Mapping):
        raise UsageError(f"--config-file {path}: expected options as `key: value` lines")
    return given_in_mapping(ProfileConfig, content, source=str(path))
