"""Every verb of the v2 protocol, independent of transport: plain values in and out, errors raised."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import cast

import msgspec
from msgspec.structs import replace

from tpx import __version__
from tpx.errors import InvalidRequest, NotFound, NotReady, TpxError, Unsupported
from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import ModelConfig
from tpx.protocol.v2 import EXTENSIONS, DecodedRequest, LoadParameter, RequestedOutput, check_string_count
from tpx.serving.deferred import Tasks
from tpx.serving.inference_plane import FastPath, ServerLoad
from tpx.serving.logs import LogControl
from tpx.serving.model import ServedModel
from tpx.serving.model_id import ModelId
from tpx.serving.offload import COPIED_AT_ONCE_BYTES, LONG_BYTES, Offload, Postponed
from tpx.serving.repository.coordinator import Coordinator
from tpx.serving.repository.discovery import override_of
from tpx.serving.repository.records import VersionState
from tpx.serving.repository.table import AmbiguousName, ModelRepository, parse_version
from tpx.serving.request import (
    CHECKED_AT_ONCE_BYTES,
    Bound,
    InferRequest,
    RequestHead,
    TensorSpec,
    with_request_id,
)
from tpx.serving.served import Served
from tpx.serving.shared_memory.regions import (
    RegionPlacement,
    RegionsInUse,
    Registration,
    SharedHead,
    SharedInput,
    SharedMemory,
)
from tpx.serving.signature import Signature
from tpx.serving.tracing.settings import parse_update
from tpx.serving.tracing.tracer import Tracer

_MAX_NAME = 8192
"""Characters of the name of a model to load; files have much shorter names."""


class TensorMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output. The shape includes the batch dimension if there is one."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The server's name and extensions."""

    name: str
    version: str
    extensions: list[str]


class RepositoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model in the repository index; no version if none is known."""

    name: str
    version: str
    state: str
    reason: str
    namespace: str = ""

    @property
    def model(self) -> str:
        """Return the model's name as logged."""
        return str(ModelId(self.name, self.namespace))


class Watching(msgspec.Struct, frozen=True):
    """Observers of requests in progress."""

    tracer: Tracer
    logs: LogControl


class DataPlane:
    """Verbs that frontends call. `generation` changes when a cached RequestHead may be stale."""

    def __init__(
        self,
        repository: ModelRepository,
        control: Coordinator,
        shared_memory: SharedMemory,
        watching: Watching,
        server_name: str,
        *,
        strict_readiness: bool,
        max_string_elements: int,
    ) -> None:
        self._repository = repository
        self.control = control
        self.shared_memory = shared_memory
        self.tracer = watching.tracer
        self.logs = watching.logs
        self._server_name = server_name
        self._strict_readiness = strict_readiness
        self.max_string_elements = max_string_elements
        """Maximum elements in the BYTES inputs of a request."""
        self.offload = Offload(shared_memory.budget)
        self.started = False
        self.exiting = False
        """True while draining: not ready, but still serving."""
        self.stopping = False
        """True once new requests are refused."""

    @property
    def generation(self) -> int:
        return self._repository.generation

    # health

    def live(self) -> bool:
        return self.started

    def ready(self) -> bool:
        """True if the server has started, does not drain and, with strict readiness, all models are ready."""
        if not self.started or self.exiting:
            return False
        return self._repository.all_ready() or not self._strict_readiness

    async def check_ready(self) -> bool:
        """Return `ready`; with strict readiness, also ask every model that has a readiness hook."""
        if not self.ready() or not self._strict_readiness:
            return self.ready()
        checks = [
            model.check_ready() for model in self._repository.in_processes() if model.has_readiness_hook
        ]
        return not checks or all(await asyncio.gather(*checks))

    async def check_model_ready(self, name: str, version: str) -> bool:
        """Return True if a request would be answered, possibly after loading the model; False during
        shutdown.

        A model with a readiness hook decides for itself.
        """
        if self.exiting:
            return False
        if not self._repository.is_ready(name, version):
            return self.control.would_load(name)
        model = self._repository.get(name, version)
        return not model.has_readiness_hook or await model.check_ready()

    # metadata

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata(name=self._server_name, version=__version__, extensions=list(EXTENSIONS))

    def model_metadata(self, name: str, version: str) -> ModelMetadata:
        model = self.model(name, version)
        versions = [str(each.version) for each in self._repository.versions(model.model_id)]
        return ModelMetadata(
            name=name,
            versions=[str(model.version)] if version else versions,
            platform=model.config.platform or model.config.backend,
            inputs=_describe_tensors(model.signature, model.signature.inputs.values()),
            outputs=_describe_tensors(model.signature, model.signature.outputs.values()),
        )

    def model_config(self, name: str, version: str) -> ModelConfig:
        """Return the complete ModelConfig message."""
        return self.model(name, version).config

    # the model repository

    @property
    def tasks(self) -> Tasks:
        """Owner of the tasks that answer requests later."""
        return self.control.tasks

    def check_explicit(self) -> None:
        """Raise NotReady unless clients may load and unload."""
        self.control.check_explicit()

    @staticmethod
    def refuse_repository(name: str | None) -> None:
        """Raise Unsupported for a verb that names a repository."""
        if name:
            raise Unsupported("'repository_name' specification is not supported")

    def index(
        self, *, ready_only: bool, on_disk: Mapping[ModelId, str] | None = None
    ) -> list[RepositoryEntry]:
        """Return every version that is, was, or should be loaded, and the models `on_disk`."""
        return [
            RepositoryEntry(
                name=model.name,
                version="" if entry.version is None else str(entry.version),
                state=entry.state.value if entry.state is not None else "",
                reason=entry.reason,
                namespace=model.namespace,
            )
            for model, entry in self._repository.index(on_disk)
            if entry.state is VersionState.READY or not ready_only
        ]

    async def complete_index(self) -> list[RepositoryEntry]:
        """Return all models, loaded or not."""
        return self.index(ready_only=False, on_disk=await self.control.names_on_disk())

    async def load(self, name: str, parameters: Mapping[str, LoadParameter]) -> None:
        """Load a model from the repository, with the overrides in the parameters `config` and
        `file:<path>`.

        Raises InvalidRequest, NotReady.
        """
        self.check_explicit()
        if len(name) > _MAX_NAME:  # errors quote it, and so does the log
            raise InvalidRequest(f"a model name has at most {_MAX_NAME} characters, got {len(name)}")
        override = await asyncio.get_running_loop().run_in_executor(None, override_of, parameters, name)
        await self.control.load(name, override)

    async def unload(self, name: str, parameters: Mapping[str, object], wrong_type: str) -> None:
        """Unload a model, and its composing models if the parameter `unload_dependents` is true.

        Raises NotReady, and InvalidRequest with the text `wrong_type` if the parameter is not a
        boolean.
        """
        for key, value in parameters.items():
            if key != "unload_dependents":
                raise InvalidRequest(f"unrecognized unload parameter '{key}'.")
            if not isinstance(value, bool):
                raise InvalidRequest(wrong_type)
        await self.control.unload(name, unload_dependents=bool(parameters.get("unload_dependents")))

    # statistics

    def statistics(self, name: str, version: str) -> Iterator[JsonObject]:
        """Return the entries of `model_stats` for one version, all versions of a model, or, with an
        empty name, all models.

        Raises InvalidRequest.
        """
        if not name:
            return map(_describe_statistics, self._repository.served())
        named = self._repository.named(name)
        if len(named) > 1:
            raise AmbiguousName(name, len(named))
        chosen = [served for model in named for served in self._repository.versions(model)]
        if not chosen:
            raise InvalidRequest(f"requested model '{name}' is not available")
        if version:
            number = parse_version(version)
            chosen = [model for model in chosen if model.version == number]
            if not chosen:
                raise InvalidRequest(f"requested model version is not available for model '{name}'")
        return map(_describe_statistics, chosen)

    def served(self) -> list[Served]:
        """Return the models shown on the metrics page."""
        return self._repository.served()

    def server_load(self) -> ServerLoad:
        """Return the numbers of requests in flight, and of those among them that wait."""
        models = [model for model in self.served() if not model.composed_of]
        return ServerLoad(sum(model.in_flight for model in models), sum(model.pending for model in models))

    # inference

    def signature(self, name: str, version: str) -> Signature:
        """Return the tensors of a model. Raises NotFound, NotReady, InvalidRequest."""
        return self.model(name, version).signature

    def bind(self, request: DecodedRequest) -> Bound:
        """Validate a request against its model.

        Raises NotFound, NotReady, InvalidRequest, and Postponed if long work has to be done before
        binding again.
        """
        model = self.model(request.model_name, request.model_version)
        if request.shared_inputs and not request.regions:
            return self._bind_shared(model, request)
        head = model.bind(request)
        if head.total_size < 0:
            check_strings(head, self.max_string_elements)
        regions = list(request.regions)
        if request.outputs:
            regions += self._place_outputs(request.outputs, head)
        return Bound(head, [tensor.data for tensor in request.inputs], regions)

    def _bind_shared(self, model: Served, request: DecodedRequest) -> Bound:
        """Bind a request with inputs in shared memory. Raises Postponed for long reads, and while there is
        no memory for them.
        """
        total = self.shared_memory.check_inputs(request.shared_inputs)
        if not self.shared_memory.has_room(total):
            wait = self.shared_memory.budget.wait_for_room
            raise Postponed(lambda go_on, fail: wait(total, partial(go_on, request), fail))
        inputs = self.shared_memory.inputs(request.shared_inputs)
        for (tensor, _), shared_input in zip(request.shared_inputs, inputs, strict=True):
            tensor.data = shared_input.memory
        request.regions = [shared_input.registration for shared_input in inputs]
        size = sum(len(shared_input.memory) for shared_input in inputs)
        if any(tensor.datatype == "BYTES" for tensor, _ in request.shared_inputs):
            return self._bind_strings(model, request, inputs, size)
        bound = self.bind(request)
        head = bound.head
        if size > COPIED_AT_ONCE_BYTES and not self._reads_later(head, inputs):
            raise self._postpone_reads(request, inputs, size)
        if len(inputs) == len(request.inputs):
            placements = [output.placement for output in head.outputs if output.placement is not None]
            placed = cast("list[RegionPlacement]", placements)
            head = head.in_shared_memory(SharedHead(self.shared_memory, inputs, placed, self._read_inputs))
        return replace(bound, head=head, unread=self._read_inputs(head, inputs))

    def _bind_strings(
        self, model: Served, request: DecodedRequest, inputs: Sequence[SharedInput], size: int
    ) -> Bound:
        """Validate strings in shared memory if that is quick. Raises Postponed."""
        if size <= LONG_BYTES:
            for shared_input in inputs:
                shared_input.read()
            return self.bind(request)
        for shared_input in inputs:
            if len(shared_input.memory) <= CHECKED_AT_ONCE_BYTES:
                shared_input.read()
        check_strings(model.bind(request), self.max_string_elements)
        for (tensor, _), shared_input in zip(request.shared_inputs, inputs, strict=True):
            if tensor.datatype == "BYTES":
                try:
                    shared_input.check_strings(tensor.name, model.name, math.prod(tensor.shape))
                except InvalidRequest as exc:
                    raise with_request_id(exc, request.request_id) from exc
        raise self._postpone_reads(request, inputs, size)

    def _postpone_reads(self, request: DecodedRequest, inputs: Sequence[SharedInput], size: int) -> Postponed:
        """Return an exception to raise: a thread reads the inputs, then the request is bound again."""

        def read() -> DecodedRequest:
            for shared_input in inputs:
                shared_input.read()
            return request

        return Postponed.for_decoding(self.offload, size, read)

    def _reads_later(self, head: RequestHead, inputs: Sequence[SharedInput]) -> bool:
        """Return True if instances read a request's inputs; tracing needs them earlier."""
        model = cast("Served", head.model)
        if self.tracer.on:
            return False
        if model.takes_gpu_memory and any(each.gpu_address for each in inputs):
            return True
        return model.reads_inputs and head.total_size > COPIED_AT_ONCE_BYTES

    def _read_inputs(self, head: RequestHead, inputs: Sequence[SharedInput]) -> Sequence[SharedInput]:
        """Read inputs now, or return them if that takes long and is left to the instance."""
        if self._reads_later(head, inputs):
            return inputs
        for shared_input in inputs:
            shared_input.read()
        return ()

    def model(self, name: str, version: str) -> Served:
        """Return the model that serves. Raises NotFound, NotReady, InvalidRequest, NotLoaded."""
        try:
            return self._repository.get(name, version)
        except (NotFound, NotReady):
            self.control.ask_for(name)
            raise

    def _place_outputs(self, wanted: Sequence[RequestedOutput], head: RequestHead) -> list[Registration]:
        regions = []
        for output, bound in zip(wanted, head.outputs, strict=True):
            if output.shared_memory is not None:
                bound.placement = placement = self.shared_memory.placement(output.shared_memory)
                bound.binary = True
                head.placed = head.converted = True
                regions.append(placement.registration)
        return regions

    def fast_path(self, head: RequestHead) -> FastPath | None:
        """Return the fast path for requests with this head, or None if inputs or outputs are in shared
        memory, or scheduling may delay requests. Its outputs are not converted. Do not use it while the
        server stops or traces requests.
        """
        model = head.model
        plain = head.shared is None and not head.placed
        return model.fast_path(head) if plain and isinstance(model, ServedModel) else None

    def remote_path(self, head: RequestHead) -> None:
        """Return None: this process computes."""

    def infer(self, request: InferRequest) -> None:
        """Submit a request; responses arrive through its `reply`. Raises NotReady, Overloaded."""
        head, used = request.head, None
        if request.regions:
            request.reply = used = RegionsInUse(request.regions, request.reply)
            request.regions = ()
        try:
            if self.stopping:
                self._check_continues(head)
            head.model.submit(request)
        except TpxError:
            if used is not None:
                used.end()
            if request.trace is not None:
                request.trace.refused()
            raise

    def _check_continues(self, head: RequestHead) -> None:
        """Raise NotReady unless the request belongs to a started sequence or has waited for a load."""
        model = cast("Served", head.model)
        if self.control.in_use.awaited[model.name]:
            return
        takes_part = (model.model_id, *model.composed_of)
        has_sequences = any(one.sequences for each in takes_part for one in self._repository.versions(each))
        parameters = head.parameters
        if has_sequences and parameters.get("sequence_id") and not parameters.get("sequence_start"):
            return
        # Triton's sequence batcher omits the request id
        of_sequences = model.config.HasField("sequence_batching")
        prefix = "" if of_sequences else f"[request id: {head.request_id or '<id_unknown>'}] "
        if model.composed_of:
            prefix = f"in ensemble '{model.name}', {prefix}"
        raise NotReady(
            f"{prefix}Server is stopping, scheduler for model has stopped accepting new inference requests"
        )

    # tracing

    def trace_setting(
        self, model: str, given: Mapping[str, Sequence[str] | None] | None = None, *, got: str = "got: "
    ) -> dict[str, list[str]]:
        """Return the trace setting of a model, or with an empty name the server's, after applying
        `given`.

        None clears a value; `got` introduces a count that is too small. Raises InvalidRequest,
        Unsupported.
        """
        if model and not self._repository.is_ready(model, ""):
            raise InvalidRequest(f"Request for unknown model : {model}")
        if given:
            self.tracer.update(parse_update(given, self.tracer.setting().fixed, got=got), model)
        return self.tracer.setting(model).as_texts()


def check_strings(head: RequestHead, most: int) -> None:
    """Raise InvalidRequest if a BYTES input of a request has more than `most` strings."""
    for bound in head.inputs:
        if bound.size < 0:
            check_string_count(bound.spec.name, math.prod(bound.shape), most)


def _describe_tensors(signature: Signature, specs: Iterable[TensorSpec]) -> list[TensorMetadata]:
    return [
        TensorMetadata(name=spec.name, datatype=spec.datatype, shape=signature.wire_shape(spec))
        for spec in specs
    ]


def _describe_statistics(model: Served) -> dict[str, object]:
    statistics = model.statistics
    return {
        "name": model.name,
        "version": str(model.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {phase: asdict(duration) for phase, duration in statistics.durations().items()},
        "response_stats": {
            str(index): responses.as_dict() for index, responses in sorted(statistics.responses.items())
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": {"count": batch.count, "ns": batch.compute_input_ns},
                "compute_infer": {"count": batch.count, "ns": batch.compute_infer_ns},
                "compute_output": {"count": batch.count, "ns": batch.compute_output_ns},
            }
            for size, batch in sorted(statistics.batches.items())
        ],
        "memory_usage": [],  # no backend can measure the memory of a single model
    }
