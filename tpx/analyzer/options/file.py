"""Read the command line and its YAML file into a ProfileSpec."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tpx.analyzer.options.measuring import ProfileOutputSpec, unwritable
from tpx.analyzer.options.rules import raise_together
from tpx.analyzer.options.spec import ProfileSpec
from tpx.analyzer.results.run import RunRecords
from tpx.errors import UsageError
from tpx.options import Given, build, fields_of, nearest
from tpx.sources import read_file, read_flags, values_of

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
_RENAMED = {
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
FORMER = {key: f"is of an old Model Analyzer: '{now}' replaced it" for key, now in _RENAMED.items()}
"""Keys of Model Analyzer's first releases, and what replaced them."""
MODELS_SHOWN = 20
"""Maximum number of model names that an error lists."""


def read_options(argv: Sequence[str]) -> ProfileSpec:
    """Return the options of a command line over those of its file. Raises UsageError if inconsistent."""
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
    """Return the options of a command line over those of its file, even if a run cannot start with them."""
    return build(ProfileSpec, values_of(collect_options(argv, {})))


def collect_options(argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, Given]:
    """Collect the options of flags, variables and the file; models keep the settings that the file has."""
    words = list(argv)
    for place, (word, value) in enumerate(pairwise(argv)):
        # as in `tpx perf`, `-m NAME` names a model unless it is a directory or a path
        if word == "-m" and "/" not in value and not Path(value).is_dir():
            words[place] = "--profile-models"
    given = read_flags(ProfileSpec, words, "analyze", environ)
    path = given["config_file"].value if "config_file" in given else None
    base = read_file(ProfileSpec, path, OF_REPORT, FORMER)
    named, settled = given.get("profile_models"), base.get("profile_models")
    if named and settled:
        own = {model.name: model for model in settled.value}
        models = tuple(own.get(model.name, model) for model in named.value)
        given["profile_models"] = named._replace(value=models)
    return base | given


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
