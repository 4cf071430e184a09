"""Read the command line and its YAML file into a ProfileSpec."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tpx.analyzer.config_sweep import BadField
from tpx.analyzer.options.measuring import ProfileOutputSpec, unwritable
from tpx.analyzer.options.rules import raise_together
from tpx.analyzer.options.spec import ProfileSpec
from tpx.analyzer.results.run import RunRecords
from tpx.errors import UsageError
from tpx.options import build, fields_of, given_in_argv, given_in_mapping, nearest

OF_REPORT = frozenset({"report_model_configs", "output_formats", "plots"})
"""Keys of `tpx analyze report` only, ignored here so that both commands can share a file."""
FREE_TO_DIFFER = frozenset(
    {
        *(field.name for field in fields_of(ProfileOutputSpec)),
        *("price_per_hour", "require", "allow_partial", "always_report_gpu_metrics", "num_top_model_configs"),
        *("config_file", "override_output_model_repository", "client_max_retries"),
    }
)
"""Options that do not affect what is searched or measured, which a resumed run may therefore change."""
FORMER: Mapping[str, str] = {
    "analysis_models": "profile_models",
    "export": "export_path",
    "log_level": "verbose",
    "max_retries": "client_max_retries",
    "model_names": "profile_models",
    "no_perf_output": "perf_output",
    "perf_measurement_window": "measurement_interval",
    "run_config_search_max_preferred_batch_size": "preferred_batch_size below model_config_parameters",
    "run_config_search_preferred_batch_size_disable": "preferred_batch_size below model_config_parameters",
    "top_n_configs": "num_configs_per_model",
    "triton_version": "triton_docker_image",
}
"""Keys of Model Analyzer's first releases, and what replaced them."""
MODELS_SHOWN = 20
"""Maximum number of model names that an error lists."""


def read_options(argv: Sequence[str]) -> ProfileSpec:
    """Return the options of a command line over those of its YAML file. Raises UsageError if inconsistent."""
    return check_options(merge_options(argv))


def check_options(config: ProfileSpec) -> ProfileSpec:
    """Return the options if a run can start with them. Raises UsageError with every fault."""
    raise_together(*_check_directories(config), *_check_models(config))
    return config


def _check_directories(config: ProfileSpec) -> Iterator[str]:
    for flag, path in (
        ("--export-path", config.output.export_path),
        ("--checkpoint-directory", config.output.checkpoint_directory),
        ("--output-model-repository-path", config.models.output_model_repository_path),
    ):
        if path is not None and (fault := unwritable(path)):
            yield f"{flag} {path}: {fault}"
    if fault := occupied(config):
        yield fault


def occupied(config: ProfileSpec) -> str:
    """Return why the directory that the user chose for variants cannot take them; empty if it can."""
    path, continues = config.models.output_model_repository_path, config.output.continues
    if path is None or continues or config.models.override_output_model_repository:
        return ""
    if not path.is_dir() or not any(path.iterdir()):
        return ""
    return (
        f"the output model repository {path} is not empty: name another with --output-model-repository-path, "
        "or replace it with --override-output-model-repository"
    )


def _check_models(config: ProfileSpec) -> Iterator[str]:
    if not config.models.profile_models:
        yield "missing: --profile-models, the model to profile (several with commas)"
    repository = config.models.model_repository
    if repository is None:
        if config.server.triton_launch_mode != "remote":
            yield (
                "missing: --model-repository, the directory that holds the models (-m NAME is a model unless "
                "there is such a directory)"
            )
        return
    if not repository.is_dir():
        yield f"--model-repository {repository}: no such directory"
        return
    models = sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    for model in config.models.names if config.server.triton_launch_mode != "remote" else ():
        if model not in models:
            known = ", ".join(models[:MODELS_SHOWN]) + (" ..." if len(models) > MODELS_SHOWN else "")
            yield (
                f"--profile-models: {repository} has no model '{model}'{nearest(model, models)} "
                f"(has: {known or 'no models'})"
            )


def merge_options(argv: Sequence[str]) -> ProfileSpec:
    """Merge the command line over the file over the defaults; models named there keep their settings."""
    words = list(argv)
    for place, (word, value) in enumerate(pairwise(argv)):
        # as in `tpx perf`, `-m NAME` names a model unless it is a directory or a path
        if word == "-m" and "/" not in value and not Path(value).is_dir():
            words[place] = "--profile-models"
    given = given_in_argv(ProfileSpec, words)
    base = given_in_file(ProfileSpec, given.get("config_file"), OF_REPORT)
    own = {model.name: model for model in base.get("profile_models", ())}
    models = tuple(own.get(model.name, model) for model in given.get("profile_models", ()))
    return build(ProfileSpec, {**base, **given, **({"profile_models": models} if models else {})})


def given_in_file(config: type, path: Path | None, ignored: Collection[str] = ()) -> dict[str, Any]:
    """Return the values in a YAML file, without keys of other commands; none without a file."""
    if path is None:
        return {}
    found: dict[str, Any] = {}
    for key, value in read_yaml(path).items():
        name = str(key).replace("-", "_")
        if name in FORMER:
            fault = f"{path}: '{key}' is of an old Model Analyzer: '{FORMER[name]}' replaced it"
            raise _add_line_number(UsageError(fault), path, str(key))
        if name not in ignored:
            try:
                found |= given_in_mapping(config, {key: value}, source=str(path))
            except UsageError as exc:
                raise _add_line_number(exc, path, str(key)) from exc
    return found


def check_same_run(earlier: RunRecords, settings: Mapping[str, object], path: object) -> None:
    """Raise UsageError if these options would search or measure something else than the original run."""
    if earlier.started is None:
        raise UsageError(f"{path} contains no run to resume: leave out --resume, --retry-failed")
    before = earlier.started.settings
    differing = sorted(
        key for key in {*before, *settings} - FREE_TO_DIFFER if before.get(key) != settings.get(key)
    )
    if differing:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in differing)
        command = " ".join(earlier.started.provenance.command)
        raise UsageError(
            f"--resume continues a run with the options that it began with; these differ: {flags}. "
            f"It began as: {command}"
        )


def read_yaml(path: Path) -> Mapping[Any, Any]:
    """Return the mapping in a YAML file. Raises UsageError for any other content."""
    try:
        import yaml
    except ImportError as exc:
        raise UsageError("--config-file needs the package pyyaml: pip install pyyaml") from exc
    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except OSError as exc:
        raise UsageError(f"--config-file {path}: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise UsageError(f"--config-file {path}: not YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(content, Mapping):
        raise UsageError(f"--config-file {path}: expected options as `key: value` lines")
    _refuse_duplicate_keys(path, yaml.compose(text, Loader=yaml.SafeLoader))
    return content


def _refuse_duplicate_keys(path: Path, node: Any) -> None:
    """Raise UsageError for a duplicate key in a mapping, of which YAML would silently use the last."""
    import yaml

    values, seen = [node], set()
    while values:
        node = values.pop()
        if id(node) in seen:
            continue  # an alias may make the document cyclic
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            values += node.value
        if not isinstance(node, yaml.MappingNode):
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:
            values.append(value)
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines and name != "<<":
                raise UsageError(
                    f"{path}:{line}: {name} is repeated here; it was first set on line {lines[name]}"
                )
            lines[name] = line


def _add_line_number(error: UsageError, path: Path, key: str) -> UsageError:
    """Return the same error with the line number in the file."""
    import yaml

    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    cause = error.__cause__
    line = 1
    for part in (key, *(cause.path if isinstance(cause, BadField) else ())):
        found = _find_yaml_value(node, part)
        if found is None:
            break
        line, node = found
    return UsageError(error.message.replace(f"{path}: ", f"{path}:{line}: ", 1))


def _find_yaml_value(node: Any, part: str | int) -> tuple[int, Any] | None:
    """Return the line and the value of a key or an index; a key is searched in each mapping of a list."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if str(key.value).replace("-", "_") == str(part).replace("-", "_"):
                return key.start_mark.line + 1, value
        return None
    if not isinstance(node, yaml.SequenceNode):
        return None
    if isinstance(part, int):
        items = node.value[part : part + 1]
        return (items[0].start_mark.line + 1, items[0]) if items else None
    return next(filter(None, (_find_yaml_value(item, part) for item in node.value)), None)
