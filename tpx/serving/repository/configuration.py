"""Completion and validation of a config.pbtxt (Triton: core/src/model_config_utils.cc)."""

from collections.abc import Iterable
from pathlib import Path

from tpx.errors import ConfigError
from tpx.options import nearest
from tpx.protocol import messages
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelConfig, ModelInput, ModelInstanceGroup
from tpx.protocol.model_config import TensorConfig, path_of
from tpx.serving.backends.contract import Backend, CountsInstances, OnGpus
from tpx.serving.backends.table import (
    BACKEND_OF_PLATFORM,
    BACKENDS,
    MISNOMERS,
    PLATFORM_OF_BACKEND,
    RECOGNISED_FILES,
)
from tpx.serving.distributions.latencies import chosen_buckets
from tpx.serving.repository.scheduling import validate_batch_tensors, validate_batching

_KIND = messages.ModelInstanceGroup
_AUTO, _GPU, _CPU, _MODEL = _KIND.KIND_AUTO, _KIND.KIND_GPU, _KIND.KIND_CPU, _KIND.KIND_MODEL

_RUNTIMES = {"pytorch": ("model.py",)}
"""Values of `runtime` that are supported, by backend."""
_BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
_LISTED = 5
"""Maximum number of file names in an error message."""
MAX_ELEMENTS = 2**63 - 1
WITH_OPERATORS = ("onnxruntime",)
"""Backends that can load libraries of custom operators."""


def set_name(config: ModelConfig, directory_name: str) -> None:
    """Set the model's name to that of its directory. Raises ConfigError if the file gives another name."""
    if config.name and config.name != directory_name:
        raise ConfigError(
            f"unexpected directory name '{directory_name}' for model '{config.name}', directory name must "
            "equal model name",
            field="name",
        )
    config.name = directory_name


def fill_backend(config: ModelConfig, version_directory: Path | None) -> None:
    """Derive platform and backend from each other, or from the name of the model file or the model."""
    if not config.platform and not config.backend and version_directory is not None:
        for name, (backend, platform) in RECOGNISED_FILES.items():
            if (version_directory / name).exists() or config.default_model_filename == name:
                config.backend, config.platform = backend, platform
                break
        else:
            suffix = config.name.rpartition(".")[2]
            config.backend = suffix if suffix in PLATFORM_OF_BACKEND else ""
    if config.platform and not config.backend:
        config.backend = _find_platform_backend(config.platform, config.name)
    elif config.backend and not config.platform:
        config.platform = PLATFORM_OF_BACKEND.get(config.backend, "")
    elif config.platform:
        own = [each for each, name in BACKEND_OF_PLATFORM.items() if name == config.backend]
        if own and config.platform not in own:
            raise ConfigError(
                f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}",
                field="platform",
            )
    if not config.backend and config.platform != "ensemble":
        raise ConfigError(
            f"Invalid model name: Could not determine backend for model '{config.name}' with no backend in "
            "model configuration. Expected model name of the form 'model.<backend_name>'. "
            + _explain_unrecognised(config.name, version_directory)
        )


def _find_platform_backend(platform: str, model: str) -> str:
    backend = BACKEND_OF_PLATFORM.get(platform, "")
    if backend or platform == "ensemble":
        return backend
    meant = nearest(platform, [*BACKEND_OF_PLATFORM, "ensemble"])
    known = MISNOMERS.get(platform.lower(), platform)
    if known in PLATFORM_OF_BACKEND:
        is_backend = "it is the name of a backend, whose platform" if known == platform else "its platform"
        meant = f": {is_backend} is '{PLATFORM_OF_BACKEND[known]}'"
    elif known in BACKENDS.known:
        meant = f': it is the name of a backend: write backend: "{known}" instead'
    raise ConfigError(f"unexpected platform type '{platform}' for {model}{meant}", field="platform")


def _explain_unrecognised(model: str, version_directory: Path | None) -> str:
    known = ", ".join(RECOGNISED_FILES)
    if version_directory is None:
        return f"The model has no version: '{model}/1' should contain a file that identifies it ({known})"
    entries = (
        sorted(entry.name for entry in version_directory.iterdir()) if version_directory.is_dir() else []
    )
    listed = ", ".join(entries[:_LISTED]) + (", ..." if entries[_LISTED:] else "")
    return (
        f"'{version_directory}' has no file that identifies it ({known}), but {listed or 'nothing'}: rename "
        "the file, or say backend and default_model_filename in config.pbtxt"
    )


def fill_defaults(config: ModelConfig, backend: Backend) -> None:
    """Fill defaults that need no model file: file name, version policy, instance groups, pinned memory."""
    config.default_model_filename = config.default_model_filename or backend.default_filename
    if config.version_policy.WhichOneof("policy_choice") is None:
        config.version_policy.latest.num_versions = 1
    if not config.instance_group:
        config.instance_group.add(name=config.name)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        _choose_devices(group, f"instance_group[{index}]", config.name, backend)
        if not group.count:
            kind = "KIND_CPU" if group.kind == _CPU else "KIND_GPU"
            group.count = backend.default_instance_count(kind) if isinstance(backend, CountsInstances) else 1
    for field in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(field):
            getattr(config.optimization, field).enable = True


def _choose_devices(group: ModelInstanceGroup, field: str, model: str, backend: Backend) -> None:
    """Choose the kind and GPUs of an instance group that leaves them open."""
    gpus = backend.gpus() if isinstance(backend, OnGpus) and group.kind in (_AUTO, _GPU) else ()
    only = isinstance(backend, OnGpus) and backend.gpus_only
    if group.kind == _AUTO:
        group.kind = _GPU if gpus or group.gpus or only else _CPU
    if group.kind == _GPU and not group.gpus:
        group.gpus.extend(gpus)
        if only and not group.gpus:
            raise ConfigError(
                f"instance group {group.name} of model {model} has kind KIND_GPU but no GPUs are available",
                field=f"{field}.kind",
            )


def is_ensemble(config: ModelConfig) -> bool:
    """Return True if a model is composed of other models."""
    return config.platform == "ensemble" or bool(config.HasField("ensemble_scheduling"))


def complete_ensemble(config: ModelConfig, *, auto_complete: bool) -> None:
    """Fill the fields that an ensemble may omit: it has no instances, model file or memory itself."""
    if auto_complete and not config.platform and not config.backend:
        config.platform = "ensemble"
    if config.version_policy.WhichOneof("policy_choice") is None:
        config.version_policy.latest.num_versions = 1


def validate_ensemble(config: ModelConfig, *, namespaces: bool = True) -> None:
    """Raise ConfigError for fields that an ensemble cannot have, without `namespaces` also for those of its
    steps. Its graph is checked elsewhere.
    """
    name = config.name
    if not config.HasField("ensemble_scheduling"):
        raise ConfigError(
            f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble",
            field="platform",
        )
    if config.platform != "ensemble":
        raise ConfigError(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
            field="ensemble_scheduling",
        )
    if config.backend:
        raise ConfigError(
            f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type",
            field="backend",
        )
    agents = bool(config.model_repository_agents.agents)
    for field, given, fault in (
        ("instance_group[0]", bool(config.instance_group), "instance group should not be specified for {}"),
        ("optimization", config.HasField("optimization"), "optimization should not be specified for {}"),
        ("model_repository_agents", agents, "model_repository_agents are for models with files, {} has none"),
        ("model_warmup[0]", bool(config.model_warmup), "model_warmup can not be specified for {}"),
    ):
        if given:
            raise ConfigError(fault.format(f"ensemble '{name}'"), field=field)
    for index, step in enumerate(config.ensemble_scheduling.step):
        if step.model_namespace and not namespaces:
            raise ConfigError(
                f"step {index} of ensemble '{name}' has model_namespace '{step.model_namespace}', "
                "which needs --model-namespacing=true",
                field=f"ensemble_scheduling.step[{index}].model_namespace",
            )


def validate(config: ModelConfig) -> None:
    """Raise ConfigError, naming the field, for anything invalid in a completed configuration."""
    validate_model(config)
    validate_outputs(config)
    validate_tensors(config)


def validate_model(config: ModelConfig, *, completed: bool = True) -> None:
    """Raise ConfigError for anything invalid but inputs and outputs. `completed` as in `validate_tensors`."""
    if config.max_batch_size < 0:
        raise ConfigError(
            f"'max_batch_size' must be non-negative value for {config.name}", field="max_batch_size"
        )
    validate_batching(config, completed=completed)
    for what, present in (
        ("sequence batching scheduler", config.HasField("sequence_batching")),
        ("'decoupled' transaction policy", config.model_transaction_policy.decoupled),
    ):
        if present and config.response_cache.enable:
            raise ConfigError(
                f"Response Cache does not currently support model {config.name} with {what}. Please disable "
                "the response cache.",
                field="response_cache.enable",
            )
    chosen_buckets(config)
    if _BATCH_STRATEGY in config.parameters:
        raise ConfigError(
            f"{_BATCH_STRATEGY} of model '{config.name}' names a library of Triton's: tpx does not load it",
            field=f"parameters[{_BATCH_STRATEGY}]",
        )
    if config.model_operations.op_library_filename and config.backend not in WITH_OPERATORS:
        raise ConfigError(
            f"model '{config.name}': model_operations.op_library_filename needs a backend that loads "
            f"libraries of operators ({', '.join(WITH_OPERATORS)}), not '{config.backend}'",
            field="model_operations.op_library_filename",
        )


def validate_outputs(config: ModelConfig) -> None:
    """Raise ConfigError without outputs. Only models that create their own responses may have none."""
    if not config.output:
        untold = "; a TorchScript file does not tell them: `tpx serve --describe` prints the lines to write"
        hint = untold if config.backend == "pytorch" else ""
        raise ConfigError(f"model '{config.name}' must specify at least one output{hint}")


def validate_tensors(config: ModelConfig, *, completed: bool = True) -> None:
    """Raise ConfigError for invalid inputs and outputs.

    Until `completed`, missing fields are no error: the backend fills in what the configuration omits.
    """
    for kind, items in (("input", config.input), ("output", config.output)):
        seen: set[str] = set()
        for item in items:
            _validate_tensor(config, kind, item, completed=completed)
            if item.name in seen:
                raise ConfigError(
                    f"model {kind} '{item.name}' is specified more than once for {config.name}",
                    field=path_of(config, item, "name"),
                )
            seen.add(item.name)
    if completed or (config.input and config.output):
        validate_batch_tensors(config)


def _validate_tensor(config: ModelConfig, kind: str, item: TensorConfig, *, completed: bool) -> None:
    """Raise ConfigError with the wording and order of checks of Triton's ValidateIOShape."""
    fault, field = _missing_field(config, kind, item, completed=completed) or _wrong_field(config, kind, item)
    if fault:
        raise ConfigError(fault, field=path_of(config, item, field))


def _missing_field(
    config: ModelConfig, kind: str, item: TensorConfig, *, completed: bool
) -> tuple[str, str] | None:
    """Return what is missing in an input or output, and its field; None if there is nothing."""
    where, model = f"model {kind} '{item.name}'", config.name
    if not item.name:
        return f"model {kind} must specify 'name' for {model}", "name"
    if item.data_type not in BY_NUMBER and (completed or item.data_type):
        return f"{where} must specify 'data_type' for {model}", "data_type"
    if completed and not item.dims:
        return f"{where} must specify 'dims' for {model}", "dims"
    if completed and not config.max_batch_size and item.HasField("reshape") and not item.reshape.shape:
        fault = "cannot have empty reshape for non-batching model as scalar tensors are not supported"
        return f"{where} {fault} for {model}", "reshape"
    return None


def _wrong_field(config: ModelConfig, kind: str, item: TensorConfig) -> tuple[str, str]:
    """Return what is wrong in an input or output, and its field; both are empty if there is nothing."""
    where, model = f"model {kind} '{item.name}'", config.name
    for dims, what, field in (
        (item.dims, "dimension", "dims"),
        (item.reshape.shape, "reshape dimensions", "reshape.shape"),
    ):
        if any(dim < 1 and dim != -1 for dim in dims):
            fault = "must be integer >= 1, or -1 to indicate a variable-size dimension"
            return f"{where} {what} {fault} for {model}", field
    fault = _reshape_fault(item)
    if fault:
        return f"{where} has {fault} for {model}", "reshape"
    if isinstance(item, ModelInput) and item.format and len(item.dims) != 3:
        return f"model input NHWC/NCHW require 3 dims for {model}: input '{item.name}'", "dims"
    for field, what in (
        ("is_shape_tensor", "shape tensors are only supported for TensorRT"),
        ("is_non_linear_format_io", "Non-linear IO format is only supported for the TensorRT"),
    ):
        if getattr(item, field) and config.backend != "tensorrt":
            return f"{what} platform for {model}: {kind} '{item.name}'", field
    return "", ""


def _reshape_fault(item: TensorConfig) -> str:
    """Return what is wrong unless both shapes have as many elements between variable dimensions, or ""."""
    if not item.HasField("reshape") or not item.dims:
        return ""
    dims, shape = _multiply_fixed_dims(item.dims), _multiply_fixed_dims(item.reshape.shape)
    if max(*dims, *shape) > MAX_ELEMENTS:
        return f"more than {MAX_ELEMENTS} elements"
    if len(dims) != len(shape) and min(len(dims), len(shape)) > 1:
        return "different number of variable-size dimensions for dims and reshape"
    return "different size for dims and reshape" if dims != shape else ""


def _multiply_fixed_dims(dims: Iterable[int]) -> list[int]:
    """Return the products of the fixed dimensions before, between and after the variable ones."""
    sizes = [1]
    for dim in dims:
        if dim == -1:
            sizes.append(1)
        elif sizes[-1] <= MAX_ELEMENTS:  # beyond the limit integers would grow without bound
            sizes[-1] *= dim
    return sizes


def validate_instance_groups(config: ModelConfig) -> None:
    """Raise ConfigError for invalid instance groups. Call after fill_defaults; needs no model file."""
    for index, group in enumerate(config.instance_group):
        where, field = f"instance group {group.name} of model {config.name}", f"instance_group[{index}]"
        if group.kind not in (_AUTO, _GPU, _CPU, _MODEL):
            raise ConfigError(f"{where} has the unknown kind {group.kind}", field=f"{field}.kind")
        if group.count < 1:
            raise ConfigError(f"{where} must have a count of at least 1", field=f"{field}.count")
        if group.kind in (_CPU, _MODEL) and group.gpus:
            kind = "KIND_CPU" if group.kind == _CPU else "KIND_MODEL"
            raise ConfigError(
                f"{where} has kind {kind} but specifies one or more GPUs", field=f"{field}.gpus"
            )
        if group.profile and config.backend != "tensorrt":
            raise ConfigError(
                f"{where} and platform {config.platform}specifies profile field which is only supported for "
                "TensorRT models",
                field=f"{field}.profile",
            )


def refuse_unsupported(config: ModelConfig) -> None:
    """Raise ConfigError for settings that this version of tpx would otherwise have to ignore."""
    backend = config.backend or BACKEND_OF_PLATFORM.get(config.platform, "")
    if config.runtime and config.runtime not in _RUNTIMES.get(backend, ()):
        raise ConfigError(
            f"model '{config.name}': this version of tpx does not support runtime", field="runtime"
        )
