"""Loading of one version of a model: configuration, repository agents, model file, instances, warm-up.

Runs in load threads. Every instance runs the samples of `model_warmup` before the model becomes ready.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from tpx.errors import Code, ConfigError, LoadError, TpxError
from tpx.protocol import config_text, messages
from tpx.protocol.datatypes import BY_NUMBER
from tpx.protocol.messages import ModelConfig, ModelWarmup
from tpx.protocol.tensors import Buffer, Tensor, encode_bytes
from tpx.protocol.v2 import DecodedRequest
from tpx.serving.backends.contract import InstanceSpec, MakesResponses, ModelFiles, OpenModel, inside
from tpx.serving.backends.parameters import GivenParameters, instance_specs
from tpx.serving.backends.table import backend as find_backend
from tpx.serving.batch import Batch
from tpx.serving.cache import ResponseCache
from tpx.serving.distributions.latencies import latencies_of
from tpx.serving.distributions.settings import LatencySettings
from tpx.serving.ensemble.graph import Graph, graph_of
from tpx.serving.heap import buffered_bytes
from tpx.serving.host import Host
from tpx.serving.instance import Instance
from tpx.serving.instances.completions import Completions
from tpx.serving.model import ModelInstance, ModelParts, ServedModel, plan_regroup
from tpx.serving.polling import NO_POLLING, BusyPolling
from tpx.serving.repository import configuration
from tpx.serving.repository.agents.ownership import Ownership
from tpx.serving.repository.discovery import Stamps, relative_paths, stamps_of
from tpx.serving.repository.layout import ModelSource, read_labels, versions_in, wanted_versions
from tpx.serving.repository.options import ModelSpec
from tpx.serving.repository.records import Fingerprint
from tpx.serving.repository.scheduling import fill_batching, scheduler_of, stacking_of
from tpx.serving.request import InferRequest, LiveSequence, drop_response
from tpx.serving.scheduling.inline import Arrivals
from tpx.serving.scheduling.limiter import Limiter, NoLimiter
from tpx.serving.signature import Signature

log = logging.getLogger(__name__)

_DEFAULT_MAX_BATCH_SIZE = 4  # Triton's `default-max-batch-size`
_LONGEST_REASON = 10_000
"""Characters of a reason that are kept; it may quote a list of any length from the configuration."""


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Server options that affect loading."""

    options: ModelSpec
    backend_settings: Mapping[str, Mapping[str, str]]
    """--backend-config settings by backend; "" applies to all backends."""
    inline_below_ns: int = 100_000
    latencies: LatencySettings = msgspec.field(default_factory=LatencySettings)
    cache: ResponseCache | None = None
    """--cache-config: response cache for models that enable it."""
    limiter: Limiter = msgspec.field(default_factory=NoLimiter)
    """--rate-limit: shared by all models."""
    polling: BusyPolling = NO_POLLING
    """--busy-poll-us: shared by all models."""


class WantedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model to load: its configuration before any file is opened, and the fingerprints of its versions."""

    source: ModelSource
    config: ModelConfig
    stamps: Stamps
    fingerprints: Mapping[int, Fingerprint]
    graph: Graph | None = None
    """Steps, if the model is an ensemble."""
    labels: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The ensemble's own labels, by output."""


class Regroup(msgspec.Struct, frozen=True, kw_only=True):
    """Replacement instances for a model that serves, ready to join it or to be dropped."""

    model: ServedModel
    config: ModelConfig
    join: Sequence[ModelInstance]
    part: Sequence[InstanceSpec]

    def do(self) -> list[Instance]:
        """Swap the instances, on the event loop. Return those to close once they are drained."""
        self.model.add_instances(self.join)
        ended = self.model.remove_instances(self.part)
        groups = self.model.config.instance_group
        del groups[:]
        groups.MergeFrom(self.config.instance_group)
        return ended

    def drop(self) -> None:
        """Close the new instances because another version failed. Blocks."""
        for one in self.join:
            one.instance.close()


@dataclass(eq=False)
class Loader:
    """Loads versions. Used by several load threads at once."""

    settings: LoadSettings
    _completions: Completions
    _loop: asyncio.AbstractEventLoop
    _arrivals: Arrivals = field(init=False, default_factory=Arrivals)

    def __post_init__(self) -> None:
        self._options = self.settings.options

    def want(self, source: ModelSource, ownership: Ownership, served: Ownership | None = None) -> WantedModel:
        """Read a model as it is stored, or as its repository agents change it.

        `served` is the ownership of what serves now: its agents are not called again for unchanged
        files. Raises ConfigError, LoadError.
        """
        with locating_faults(source):
            # before reading: a file that changes while it is read is reloaded next time
            stamps = stamps_of(source)
            written = self._read_config(source)
            agents = written.model_repository_agents
            if not agents.agents:
                return self._build_wanted_model(source, written, stamps)
            files = (f"{version} {stamp}" for version, stamp in sorted(stamps.versions.items()))
            fingerprint = Fingerprint(  # of all versions: it covers every file that agents see
                config=written.SerializeToString(deterministic=True),
                groups=b"",
                directory=source.location if source.origin is not None else str(source.directory),
                shared=stamps.shared,
                files="\n".join(files),
            )
            same = None if served is None else served.wanted
            if same is not None and fingerprint in same.fingerprints.values():
                return replace(same, stamps=stamps)
            source = _run_agents(source, written, ownership, self._options.repoagent_directory)
            config = self._read_config(source)
            config.model_repository_agents.CopyFrom(agents)
            wanted = self._build_wanted_model(source, config, stamps)
            ownership.wanted = replace(wanted, fingerprints=dict.fromkeys(wanted.fingerprints, fingerprint))
            return ownership.wanted

    def _build_wanted_model(self, source: ModelSource, config: ModelConfig, stamps: Stamps) -> WantedModel:
        self._fill_config(config, source)
        composed, fingerprints = configuration.is_ensemble(config), dict[int, Fingerprint]()
        rest, groups = deepcopy(config), messages.ModelConfig(instance_group=config.instance_group)
        rest.ClearField("version_policy")
        rest.ClearField("instance_group")
        for version in wanted_versions(config, source):
            location = str(source.file or source.versions[version])
            fingerprints[version] = Fingerprint(
                config=rest.SerializeToString(deterministic=True),
                groups=groups.SerializeToString(deterministic=True),
                # where it is stored, not where it was fetched to
                directory=location if source.origin is None else f"{source.origin.url}/{version}",
                shared=stamps.shared,
                files=stamps.versions.get(version, ""),
            )
        return WantedModel(
            source=source,
            config=config,
            stamps=stamps,
            fingerprints=fingerprints,
            graph=graph_of(config, source.namespace) if composed else None,
            labels=read_labels(config, source.directory) if composed else {},
        )

    def _read_config(self, source: ModelSource) -> ModelConfig:
        if source.fault:
            raise LoadError(source.fault)
        if not self._options.auto_complete and not source.has_config:
            raise ConfigError(
                f"failed to open text file for read {source.config_path}: No such file or directory"
            )
        config = source.read_config()
        configuration.set_name(config, source.name)
        return config

    def _fill_config(self, config: ModelConfig, source: ModelSource) -> None:
        """Complete and validate the parts of a configuration that need no open model file."""
        configuration.refuse_unsupported(config)
        if configuration.is_ensemble(config):
            configuration.complete_ensemble(config, auto_complete=self._options.auto_complete)
            configuration.validate_ensemble(config, namespaces=self._options.model_namespacing)
            graph_of(config)
            configuration.validate(config)
            return
        first = source.versions[min(source.versions)] if source.versions else None
        configuration.fill_backend(config, first)
        configuration.validate_model(config, completed=not self._options.auto_complete)
        if not self._options.auto_complete:
            configuration.validate_tensors(config)
        with suppress(LoadError):  # loading the version reports this error
            configuration.fill_defaults(config, find_backend(config.backend, self._options.backend_directory))

    def load(
        self, source: ModelSource, version: int, written: ModelConfig, host: Host | None = None
    ) -> ServedModel:
        """Load one version, completing its own copy of the configuration from the model file.

        `host` lets the model call the server. Raises LoadError.
        """
        with locating_faults(source):
            return self._load_version(source, version, deepcopy(written), host)

    def _load_version(
        self, source: ModelSource, version: int, config: ModelConfig, host: Host | None
    ) -> ServedModel:
        began = time.perf_counter_ns()
        backend = find_backend(config.backend, self._options.backend_directory)
        configuration.validate_instance_groups(config)
        configuration.validate_tensors(config, completed=not self._options.auto_complete)
        if source.origin is not None:
            source.origin.fetch_version(source.directory, version)
        files = ModelFiles(
            model_name=source.name,
            version=version,
            directory=source.versions[version],
            settings=self._merge_backend_settings(config.backend),
            host=host,
        )
        opened = backend.open(files, config)
        try:
            self._complete_config(opened, config)
            specs = instance_specs(config)
            self.settings.limiter.check([spec.needs for spec in specs])
            signature = Signature.of(config, read_labels(config, source.directory))
            model = ServedModel(
                config,
                version,
                ModelParts(
                    signature=signature,
                    scheduler=scheduler_of(config),
                    stacking=stacking_of(config, source.directory, opened),
                    opened=opened,
                    cache=self.settings.cache if config.response_cache.enable else None,
                    preserve_ordering=config.dynamic_batching.preserve_ordering,
                    namespace=source.namespace,
                    limiter=self.settings.limiter,
                    arrivals=self._arrivals,
                    polling=self.settings.polling,
                ),
                self._loop,
                inline_below_ns=self.settings.inline_below_ns,
            )
            model.statistics.latencies = latencies_of(config, self.settings.latencies)
            model.add_instances(self._create_instances(model, specs, config, source))
        except BaseException:
            opened.close()
            raise
        if host is not None:
            host.loading = False
        model.statistics.load_ns = time.perf_counter_ns() - began
        return model

    def _create_instances(
        self, model: ServedModel, specs: Sequence[InstanceSpec], config: ModelConfig, source: ModelSource
    ) -> list[ModelInstance]:
        """Create instances and warm them up. They do not compute for the model until they join it."""
        prepared = model.prepare(specs, config, self._completions)
        try:
            warm_up(model, [one.instance for one in prepared], source.directory)
        except BaseException:
            for one in prepared:
                one.instance.close()
            raise
        return prepared

    def regroup(self, model: ServedModel, source: ModelSource, written: ModelConfig) -> Regroup:
        """Create the instances that new groups add to a model. Raises LoadError, changing nothing."""
        config = deepcopy(model.config)
        del config.instance_group[:]
        config.instance_group.MergeFrom(written.instance_group)
        configuration.validate_instance_groups(config)
        wanted = instance_specs(config)
        self.settings.limiter.check([spec.needs for spec in wanted])
        add, end = plan_regroup(model.specs, wanted)
        return Regroup(
            model=model, config=config, join=self._create_instances(model, add, config, source), part=end
        )

    def _complete_config(self, opened: OpenModel, config: ModelConfig) -> None:
        if self._options.auto_complete:
            settings = self._merge_backend_settings(config.backend)
            given = GivenParameters.of_backend(config.backend, settings)
            size = given.whole("default-max-batch-size", default=_DEFAULT_MAX_BATCH_SIZE)
            opened.complete(config, default_max_batch_size=size)
        fill_batching(config)
        configuration.validate_model(config)
        configuration.validate_tensors(config)
        if not isinstance(opened, MakesResponses):
            configuration.validate_outputs(config)
            if config.sequence_batching.iterative_sequence:
                raise ConfigError(
                    f"model '{config.name}': sequence_batching.iterative_sequence needs a backend whose "
                    "models can reschedule requests (python, and those in --backend-directory), not "
                    f"'{config.backend}'",
                    field="sequence_batching.iterative_sequence",
                )
        opened.check(config)

    def _merge_backend_settings(self, backend: str) -> dict[str, str]:
        settings = self.settings.backend_settings
        return {**settings.get("", {}), **settings.get(backend, {})}


def reason_of(error: BaseException) -> str:
    """Return the reason of a failed load as the repository index shows it."""
    if isinstance(error, MemoryError):
        advice = "reduce its instances, threads or warm-up samples, or unload other models"
        return f"{Code.UNAVAILABLE.value}: not enough memory to load the model: {advice}"
    if not isinstance(error, TpxError):
        log.error("internal error while loading", exc_info=error)
        return relative_paths(f"{Code.INTERNAL.value}: {type(error).__name__}: {error}")
    name = error.code.value if error.code is not Code.UNKNOWN else Code.INTERNAL.value
    message = relative_paths(error.message)
    return f"{name}: {message if len(message) <= _LONGEST_REASON else message[:_LONGEST_REASON] + '...'}"


def _run_agents(
    source: ModelSource, written: ModelConfig, ownership: Ownership, agent_directory: Path
) -> ModelSource:
    """Let the agents of the ModelConfig `written` prepare a model; they see all of its files.

    If they provide other files without a configuration, `written` applies. Raises LoadError.
    """
    parent = None
    if source.origin is not None:
        parent = source.origin.private_parent
        for version in source.versions:
            source.origin.fetch_version(source.directory, version)
    loaded = ownership.load(written, source.directory, agent_directory, parent)
    if loaded == source.directory:
        return replace(source, origin=None)
    moved = replace(source, origin=None, directory=loaded, versions=versions_in(loaded))
    return moved if moved.has_config else replace(moved, override=written)


@contextmanager
def locating_faults(source: ModelSource) -> Iterator[None]:
    """Add the file, line and field of config.pbtxt to a ConfigError, if the file contains the field."""
    try:
        yield
    except ConfigError as error:
        if not error.field or source.file is not None:
            raise
        where = f"in {error.field}"
        if source.override is None:
            path, found = source.config_path, None
            with suppress(OSError, UnicodeDecodeError):
                found = config_text.position_of(path.read_text(encoding="utf-8-sig"), error.field)
            if found is None:  # the field comes from the model file
                raise
            where = f"{source.location}/{path.relative_to(source.directory)}:{found[0]}: {found[1]}"
        raise ConfigError(f"{error.message} ({where})", code=error.code) from error


_SEQUENCE = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
_SEED = 0
_MAX_WARMUPS = 10_000
"""Maximum executions of one warm-up sample."""
_ELEMENT_BYTES = 16
"""Memory that it takes to make one element of a sample, whatever its datatype."""


def warm_up(model: ServedModel, instances: Sequence[Instance], directory: Path) -> None:
    """Run every sample on every instance, in the model's directory. Raises ConfigError with all failures."""
    failures = []
    for index, sample in enumerate(model.config.model_warmup):
        field = f"model_warmup[{index}]"
        if sample.count > _MAX_WARMUPS:
            fault = f"its count is {sample.count}, it may be {_MAX_WARMUPS}"
            failures.append((f"failed to run warmup sample '{sample.name}': {fault}; ", f"{field}.count"))
            continue
        if not sample.batch_size:
            log.info("skipping batch 0 warmup sample '%s' of model '%s'", sample.name, model.name)
            continue
        for instance in instances:
            for iteration in range(max(1, sample.count)):
                running = f"is running warmup sample '{sample.name}' for iteration {iteration + 1}"
                log.info("model '%s' instance %s %s", model.name, instance.name, running)
                try:
                    error = instance.warm(_build_warmup_batch(model, sample, directory, field))
                except TpxError as exc:
                    error = exc
                if error is not None:
                    where = error.field if isinstance(error, ConfigError) and error.field else field
                    failure = f"failed to run warmup sample '{sample.name}': {error.message}; "
                    failures.append((failure, where))
                    break
    if failures:
        message = "".join(dict.fromkeys(failure for failure, _ in failures))
        raise ConfigError(message, field=failures[0][1], code=Code.INTERNAL)


def _build_warmup_batch(model: ServedModel, sample: ModelWarmup, directory: Path, field: str) -> Batch:
    """Build `batch_size` requests of one row each, or one request for a model without a batch dimension."""
    rows = sample.batch_size if model.max_batch_size > 0 else 1
    if rows > max(1, model.max_batch_size):
        fault = f"batch size {rows} is more than max_batch_size {model.max_batch_size}"
        raise ConfigError(fault, field=f"{field}.batch_size")
    return Batch([_build_warmup_request(model, sample, directory, field, row) for row in range(rows)])


def _build_warmup_request(
    model: ServedModel, sample: ModelWarmup, directory: Path, field: str, row: int
) -> InferRequest:
    decoded = DecodedRequest(model_name=model.name, default_binary=True)
    if model.config.HasField("sequence_batching"):
        decoded.parameters = dict(_SEQUENCE)
    room = buffered_bytes(0)
    for name, given in sample.inputs.items():
        where = f"{field}.inputs[{name}]"
        if given.data_type not in BY_NUMBER:
            raise ConfigError(f"warmup input '{name}' must specify 'data_type'", field=where)
        if any(size < 0 for size in given.dims):
            dims = ", ".join(map(str, given.dims))
            fault = f"the dims of warmup input '{name}' must be fixed numbers, got [ {dims} ]"
            raise ConfigError(fault, field=f"{where}.dims")
        if given.WhichOneof("input_data_type") is None:
            fault = f"warmup setting expects input '{name}' to have input_data_type set"
            sources = "zero_data: true, random_data: true, or input_data_file"
            raise ConfigError(f"{fault} ({sources})", field=where)
        shape = [1, *given.dims] if model.max_batch_size > 0 else list(given.dims)
        datatype = BY_NUMBER[given.data_type]
        room -= math.prod(given.dims) * _ELEMENT_BYTES * sample.batch_size
        if room < 0:
            fault = (
                f"the dims of warmup sample '{sample.name}' need more than a quarter of this machine's memory"
            )
            raise ConfigError(fault, field=f"{where}.dims")
        decoded.inputs.append(Tensor(name, datatype.name, shape, _make_warmup_data(given, directory, where)))
    head = model.bind(decoded)
    infer = InferRequest(head, [tensor.data for tensor in decoded.inputs], drop_response, None)
    infer.sequence = LiveSequence(1, slot=row)
    return infer


def _make_warmup_data(given: "ModelWarmup.Input", directory: Path, field: str) -> Buffer:
    datatype, count = BY_NUMBER[given.data_type], math.prod(given.dims)
    kind, dtype = given.WhichOneof("input_data_type"), datatype.numpy
    if kind == "input_data_file":
        field += ".input_data_file"
        path = inside(directory / "warmup", given.input_data_file, field)
        try:
            return path.read_bytes()
        except OSError as exc:
            raise ConfigError(f"failed to read warmup data '{path}': {exc.strerror}", field=field) from exc
    if datatype.size == 0:
        return encode_bytes([b""] * count)
    if kind != "random_data":
        return bytes(count * datatype.size)
    generator = np.random.default_rng(_SEED)
    if dtype.kind == "f":
        return generator.random(count).astype(dtype).tobytes()
    if datatype.name == "BF16":
        return (generator.random(count, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return generator.integers(0, 2 if datatype.name == "BOOL" else 127, count).astype(dtype).tobytes()
