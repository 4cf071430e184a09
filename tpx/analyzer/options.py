"""What `tpx analyze profile` can be told: the options of Model Analyzer that tpx knows, and its YAML file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tpx.analyzer.results.goals import Constraint, Goals
from tpx.analyzer.runners.load import LoadSettings
from tpx.analyzer.search.base import LoadSpace, SearchSpace, Span
from tpx.errors import UsageError
from tpx.options import Option, fields_of, from_argv, from_mapping, nearest
from tpx.perf.settings import Shape, parse_shape

MODELS_SHOWN = 20
"""So many names an error lists at most."""

_MODELS = "Models"
_SERVER = "Server"
_SEARCH = "Search"
_GOALS = "Goals"
_MEASURE = "Measurement"
_OUTPUT = "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfig:
    """One run of `tpx analyze profile`; raises UsageError where values are out of range."""

    config_file: Annotated[
        Path | None,
        Option("YAML file with these options as keys; the command line wins", ("-f",), _MODELS, "FILE"),
    ] = None
    model_repository: Annotated[
        Path | None, Option("directory that holds the models", ("-m",), _MODELS, "DIR")
    ] = None
    profile_models: Annotated[
        tuple[str, ...], Option("models to profile, one after the other", (), _MODELS, "A,B", comma=True)
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

    triton_launch_mode: Annotated[
        Literal["local"],
        Option("how servers are started; local: tpx serve as a child process", (), _SERVER, "local"),
    ] = "local"
    client_protocol: Annotated[
        Literal["http", "grpc"], Option("protocol of the load", (), _SERVER, "http|grpc")
    ] = "grpc"
    client_max_retries: Annotated[
        int, Option("seconds that a server and its model have to become ready", ("-r",), _SERVER)
    ] = 50

    run_config_search_mode: Annotated[
        Literal["brute"], Option("how the space is searched", (), _SEARCH, "brute")
    ] = "brute"
    batch_sizes: Annotated[
        tuple[int, ...], Option("inferences in one request", ("-b",), _SEARCH, "N,N", comma=True)
    ] = (1,)
    concurrency: Annotated[
        tuple[int, ...],
        Option(
            "exactly these concurrencies, instead of doubling until a plateau",
            ("-c",),
            _SEARCH,
            "N,N",
            comma=True,
        ),
    ] = ()
    run_config_search_min_concurrency: Annotated[int, Option("least concurrency", (), _SEARCH)] = 1
    run_config_search_max_concurrency: Annotated[int, Option("greatest concurrency", (), _SEARCH)] = 1024
    run_config_search_min_instance_count: Annotated[int, Option("least number of instances", (), _SEARCH)] = 1
    run_config_search_max_instance_count: Annotated[
        int, Option("greatest number of instances", (), _SEARCH)
    ] = 5
    run_config_search_min_model_batch_size: Annotated[
        int, Option("least max_batch_size, of models that batch", (), _SEARCH)
    ] = 1
    run_config_search_max_model_batch_size: Annotated[
        int, Option("greatest max_batch_size, of models that batch", (), _SEARCH)
    ] = 128

    latency_budget: Annotated[
        float | None, Option("p99 latency in milliseconds that a configuration may have", (), _GOALS, "MS")
    ] = None
    num_configs_per_model: Annotated[
        int, Option("best configurations that the report draws and shows in detail", (), _GOALS)
    ] = 3

    measurement_interval: Annotated[
        int, Option("milliseconds of a measurement window, of which the last three must agree", (), _MEASURE)
    ] = 1000
    stability_percentage: Annotated[
        float, Option("spread of three windows that counts as stable, in percent", (), _MEASURE)
    ] = 10.0
    max_trials: Annotated[int, Option("windows that one measurement has at most", (), _MEASURE)] = 10
    shape: Annotated[
        tuple[Shape, ...],
        Option(
            "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
            (),
            _MEASURE,
            "NAME:D,D",
            parse=parse_shape,
        ),
    ] = ()
    input_data: Annotated[
        Literal["zero", "random"], Option("what the inputs hold", (), _MEASURE, "zero|random")
    ] = "random"
    monitoring_interval: Annotated[
        float, Option("seconds between two readings of memory and GPUs", ("-i",), _MEASURE, "SECONDS")
    ] = 1.0
    duration_seconds: Annotated[
        int, Option("seconds that the server is watched without a model", ("-d",), _MEASURE)
    ] = 3
    collect_cpu_metrics: Annotated[
        bool, Option("memory of the server as columns of the tables and CSV files too", (), _MEASURE)
    ] = False

    export_path: Annotated[Path, Option("directory for results and reports", ("-e",), _OUTPUT, "DIR")] = (
        Path()
    )
    filename_model_inference: Annotated[str, Option("name of the CSV file of inferences", (), _OUTPUT)] = (
        "metrics-model-inference.csv"
    )
    filename_model_gpu: Annotated[str, Option("name of the CSV file of GPUs", (), _OUTPUT)] = (
        "metrics-model-gpu.csv"
    )
    filename_server_only: Annotated[
        str, Option("name of the CSV file of the server without models", (), _OUTPUT)
    ] = "metrics-server-only.csv"
    html: Annotated[
        Path | None,
        Option("HTML report (report.html in the export path when not given)", (), _OUTPUT, "FILE"),
    ] = None
    pdf: Annotated[
        Path | None, Option("the same report as PDF, where weasyprint is installed", (), _OUTPUT, "FILE")
    ] = None
    quiet: Annotated[bool, Option("no progress on stderr", ("-q",), _OUTPUT)] = False

    def __post_init__(self) -> None:
        for name in ("client_max_retries", "num_configs_per_model", "measurement_interval", "max_trials"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        for name in ("monitoring_interval", "stability_percentage"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0, not {getattr(self, name):g}")
        if self.duration_seconds < 0:
            raise UsageError(f"--duration-seconds must not be negative: {self.duration_seconds}")
        if len(set(self.profile_models)) < len(self.profile_models):
            raise UsageError(f"--profile-models names a model twice: {','.join(self.profile_models)}")

    @property
    def results_path(self) -> Path:
        return self.export_path / "results"

    @property
    def html_path(self) -> Path:
        return self.html or self.export_path / "report.html"

    @property
    def goals(self) -> Goals:
        if self.latency_budget is None:
            return Goals()
        return Goals(
            constraints=(Constraint(tag="perf_latency_p99", bound="max", limit=self.latency_budget),)
        )

    @property
    def space(self) -> SearchSpace:
        """What to search. Raises UsageError where a minimum is above its maximum or a load is below 1."""
        concurrency = Span(
            name="concurrency",
            minimum=self.run_config_search_min_concurrency,
            maximum=self.run_config_search_max_concurrency,
        )
        return SearchSpace(
            loads=LoadSpace(
                values=self.concurrency or concurrency.doublings(),
                batch_sizes=self.batch_sizes,
                until_plateau=not self.concurrency,
            ),
            instances=Span(
                name="instance-count",
                minimum=self.run_config_search_min_instance_count,
                maximum=self.run_config_search_max_instance_count,
            ),
            max_batch_sizes=Span(
                name="model-batch-size",
                minimum=self.run_config_search_min_model_batch_size,
                maximum=self.run_config_search_max_model_batch_size,
            ),
        )

    @property
    def load_settings(self) -> LoadSettings:
        return LoadSettings(
            protocol=self.client_protocol,
            interval_ms=self.measurement_interval,
            stability_percentage=self.stability_percentage,
            max_windows=self.max_trials,
            shapes=self.shape,
            input_data=self.input_data,
        )

    def as_settings(self) -> dict[str, Any]:
        """The options that differ from their defaults, as plain values for the journal."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields_of(ProfileConfig)
            if getattr(self, field.name) != field.default
        }


def read_options(argv: Sequence[str]) -> ProfileConfig:
    """The options of a command line and of the YAML file that it names; the command line wins.

    Raises UsageError, also for what only the whole shows: missing options, and a minimum above its maximum.
    """
    config = from_argv(ProfileConfig, argv)
    if config.config_file is not None:
        base = _from_file(config.config_file)
        config = from_argv(ProfileConfig, argv, base)
    if not config.profile_models:
        raise UsageError("missing: --profile-models, the model to profile (several with commas)")
    if config.model_repository is None:
        raise UsageError("missing: --model-repository, the directory that holds the models")
    if not config.model_repository.is_dir():
        raise UsageError(f"--model-repository {config.model_repository}: no such directory")
    for model in config.profile_models:
        _check_model(config.model_repository, model)
    _ = config.space, config.goals  # they raise now rather than when the first server runs
    return config


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
    values = {str(key).replace("-", "_"): _expanded(key, value, path) for key, value in content.items()}
    config = from_mapping(ProfileConfig, values, source=str(path))
    return {key: getattr(config, key) for key, value in values.items() if value is not None}


def _expanded(key: str, value: Any, path: Path) -> Any:
    """Model Analyzer's longer forms of a value: a stepped range of numbers, a mapping of models."""
    if not isinstance(value, Mapping):
        return value
    if key == "profile_models":
        configured = [name for name, own in value.items() if own]
        if configured:
            raise UsageError(
                f"{path}: profile_models: settings of one model are not supported: {configured[0]}"
            )
        return list(value)
    unknown = set(value) - {"start", "stop", "step"}
    if unknown or not {"start", "stop"} <= set(value):
        raise UsageError(f"{path}: {key}: expected a value, a list, or start, stop and step")
    try:
        start, stop, step = int(value["start"]), int(value["stop"]), int(value.get("step", 1))
    except (TypeError, ValueError) as exc:
        raise UsageError(f"{path}: {key}: start, stop and step are integers") from exc
    if step < 1 or start > stop:
        raise UsageError(f"{path}: {key}: start {start} to stop {stop} by step {step} has no values")
    return list(range(start, stop + 1, step))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Shape):
        return f"{value.name}:{','.join(map(str, value.dims))}"
    return str(value) if isinstance(value, Path) else value
