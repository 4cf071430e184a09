"""Connects to the model under test: adapts the run to its server and makes the requests."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tpx.errors import MeasurementError, UsageError
from tpx.options import given
from tpx.perf.clients.base import Client, Control, RequestFields
from tpx.perf.clients.endpoint import Endpoint, connect
from tpx.perf.clients.model import (
    ModelDescription,
    ModelKey,
    ServerDescription,
    TensorDescription,
    check_names,
)
from tpx.perf.inputs.dataset import open_data
from tpx.perf.inputs.feed import MixedFeed
from tpx.perf.inputs.prompts import PromptSpec, learn_words, make_prompts
from tpx.perf.inputs.requests import FeedSettings, Requests, make_requests
from tpx.perf.inputs.shared_memory import TensorRegions, shared_tensors
from tpx.perf.inputs.steps import DataSet
from tpx.perf.inputs.workloads import read_workload, workload_data
from tpx.perf.levels import ModelShare
from tpx.perf.options import SessionSpec
from tpx.perf.server_statistics import ModelTree, ServerStatistics, model_tree
from tpx.protocol.v2 import RequestedOutput

if TYPE_CHECKING:
    from tpx.perf.capture import Capture

SINGLE_REQUEST_STREAMS = frozenset({"mlserver"})
"""Names of servers whose streams carry one request each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedModel:
    """A model on a server, connected and described, and the requests to send to it."""

    server: ServerDescription
    model: ModelDescription
    client: Client
    control: Control
    requests: Requests
    statistics: ServerStatistics
    prompts: PromptSpec = field(default_factory=PromptSpec)
    """Options of the prompts, with what was learnt of the service."""
    sequences: bool = False
    """True if its requests belong to sequences."""
    members: tuple[tuple[ModelShare, ServerStatistics], ...] = ()
    """Models that are measured at once, if several; `model` is then the first of them."""
    notices: tuple[str, ...] = ()
    """Assumptions about the server and the model's inputs, for the user."""


@asynccontextmanager
async def open_model(
    spec: SessionSpec, in_process: str = "", capture: "Capture | None" = None
) -> AsyncIterator[ConnectedModel]:
    """Connect to the model that `spec` names and make its requests; closes with the context.

    `in_process` is the module that connects to the engine in this process, which this package must not
    import. `capture` keeps the requests and responses. Raises WireError if the server does not answer,
    MeasurementError if the model cannot be measured, UsageError if the options do not fit it.
    """
    if spec.target.models:
        async with _open_mix(spec, in_process, capture) as mixed:
            yield mixed
        return
    key = ModelKey(spec.target.model, spec.target.model_version)
    connections = connect(spec.target.protocol, spec.endpoint(key), in_process)
    client, control = connections.client, connections.control
    try:
        server = await control.server()
        fit, notice = fitted(spec, server)
        if fit is not spec:
            client = connect(fit.target.protocol, fit.endpoint(key)).client
        model = with_declared(await control.model(key), spec.inputs.declare)
        if model.decoupled and not spec.wire.streaming:
            raise MeasurementError(
                "Decoupled models must be run with `--async` and `--streaming` and either `-i grpc` or "
                f"`--service-kind=triton_c_api` (model '{model.name}' is one)"
            )
        if model.scheduler == "sequence" and spec.wire.asynchronous and spec.levels.unbounded:
            raise UsageError(
                "The 'end' concurrency can not be 0 for sequence models when using asynchronous API."
            )
        if spec.wire.trace_settings:
            with _require_extension("trace", server, "--trace-level and its like"):
                await control.set_trace(spec.wire.trace_settings)
        tree = await model_tree(control, model, key, calls=spec.service.bls_composing_models)
        data, prompts = await _open_data(spec, model, spec.endpoint(key), client)
        async with shared_tensors(
            control, spec.inputs.shared_memory, spec.inputs.output_shared_memory_size
        ) as shared:
            requests = await make_requests(
                client, model, data, _build_feed_settings(spec, model, tree, shared), capture
            )
            if shared is not None:
                with _require_extension(
                    f"{spec.inputs.shared_memory}_shared_memory", server, "--shared-memory"
                ):
                    await shared.publish()
            yield ConnectedModel(
                server=server,
                model=model,
                client=client,
                control=control,
                requests=requests,
                statistics=ServerStatistics(control, tree, available="statistics" in server.extensions),
                prompts=prompts,
                sequences=tree.takes_sequences,
                notices=tuple(filter(None, (spec.route.notice, notice, *data.notices, *requests.notices))),
            )
    finally:
        await client.close()
        await control.close()


async def _open_data(
    spec: SessionSpec, model: ModelDescription, endpoint: Endpoint, client: Client
) -> tuple[DataSet, PromptSpec]:
    """Return the data of the requests, and the options of prompts with what was learnt of the service."""
    prompts, inputs = spec.prompts, spec.inputs
    if spec.service.service_kind == "openai" and inputs.files:
        most = prompts.prompts if "prompts" in given(prompts) else None
        workload = read_workload(inputs.files, conversing=endpoint.sessions, most=most)
        if workload is not None:
            if workload.counts:
                prompts = await learn_words(prompts, workload.mean_tokens, inputs.seed, endpoint, client)
            return workload_data(workload, prompts, inputs.seed, endpoint), prompts
    if prompts.misplaced:
        raise UsageError(prompts.misplaced)
    if not prompts.wanted:
        return open_data(model, inputs), prompts
    if prompts.input_tokens is not None:
        prompts = await learn_words(prompts, prompts.input_tokens.mean, inputs.seed, endpoint, client)
    return make_prompts(prompts, inputs.string_data, inputs.seed, endpoint), prompts


@asynccontextmanager
async def _open_mix(
    spec: SessionSpec, in_process: str, capture: "Capture | None"
) -> AsyncIterator[ConnectedModel]:
    """Open several models as one; each has its own requests, all sent over the first one's connections."""
    shares = spec.target.models or ()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(
                open_model(
                    replace(spec, target=replace(spec.target, model=share.name, models=None)),
                    in_process,
                    capture,
                )
            )
            for share in shares
        ]
        for each in opened:
            if each.sequences or each.requests.timestamps_ns or each.requests.conversations:
                raise UsageError(
                    f"--models: requests of '{each.model.name}' belong together, or to a schedule"
                )
        feed = MixedFeed(
            [each.requests.feed for each in opened], [s.weight for s in shares], spec.inputs.seed
        )
        yield replace(
            opened[0],
            requests=Requests(feed=feed, data=opened[0].requests.data),
            statistics=ServerStatistics(
                opened[0].control,
                *(tree for each in opened for tree in each.statistics.trees),
                available=opened[0].statistics.available,
            ),
            members=tuple(zip(shares, (each.statistics for each in opened), strict=True)),
            notices=tuple(dict.fromkeys(notice for each in opened for notice in each.notices)),
        )


def fitted(spec: SessionSpec, server: ServerDescription) -> tuple[SessionSpec, str]:
    """Return `spec` adapted to the server, and a notice for the user, which may be empty.

    Tensors are sent as JSON if the server does not list the binary extension and the user chose no
    format. Each request gets its own stream if the server's streams carry only one.

    Raises UsageError if the options contradict that.
    """
    wire, kind = spec.wire, spec.service.service_kind
    if kind != "triton":
        shared = (
            "the engine and the load generator share this process: the figures are those of both together"
        )
        return spec, shared if kind == "inprocess" else ""
    chosen = wire.input_tensor_format or wire.output_tensor_format
    if spec.target.protocol == "http" and not chosen and "binary_tensor_data" not in server.extensions:
        wire = replace(wire, input_tensor_format="json", output_tensor_format="json")
        return replace(spec, wire=wire), (
            f"server '{server.name}' does not say that it has the extension binary_tensor_data, so tensors "
            "go as JSON; --input-tensor-format binary and --output-tensor-format binary send bytes "
            "all the same"
        )
    if wire.streaming and server.name in SINGLE_REQUEST_STREAMS and not wire.stream_per_request:
        if spec.load.periodic_concurrency_range is not None:
            raise UsageError(
                f"--periodic-concurrency-range needs streams that carry several requests; those of server "
                f"'{server.name}' carry one"
            )
        return replace(spec, wire=replace(wire, stream_per_request=True)), (
            f"a stream of server '{server.name}' carries one request, so every request uses a separate "
            "stream, as with --stream-per-request"
        )
    return spec, ""


def with_declared(model: ModelDescription, declared: tuple[TensorDescription, ...]) -> ModelDescription:
    """Return the model with declared inputs. Raises UsageError if its server lists inputs itself."""
    if not declared:
        return model
    if model.inputs:
        listed = ", ".join(map(str, model.inputs))
        raise UsageError(f"--declare: the server lists the inputs of model '{model.name}' itself: {listed}")
    return replace(model, inputs=declared)


@contextmanager
def _require_extension(extension: str, server: ServerDescription, flag: str) -> Iterator[None]:
    """Raise MeasurementError naming the flag to leave out if a server lacks an `extension` and refuses."""
    try:
        yield
    except MeasurementError as exc:
        if extension in server.extensions:
            raise
        raise MeasurementError(
            f"{exc.message}; server '{server.name}' does not list the extension {extension}: leave out {flag}"
        ) from exc


def _build_feed_settings(
    spec: SessionSpec, model: ModelDescription, tree: ModelTree, shared: TensorRegions | None
) -> FeedSettings:
    if model.outputs:
        check_names("--output", spec.inputs.output, model, "output")
    return FeedSettings(
        fields=RequestFields(
            parameters={each.name: each.value for each in spec.wire.request_parameter},
            outputs=tuple(RequestedOutput(name=name) for name in spec.inputs.output),
        ),
        batch_size=spec.inputs.batch_size,
        sequences=spec.sequences if tree.takes_sequences else None,
        scheduled=spec.load.fixed_schedule,
        conversing=spec.load.session_concurrency is not None,
        tolerance=spec.inputs.tolerance,
        pace=spec.pace,
        shared=shared,
        seed=spec.inputs.seed,
    )
