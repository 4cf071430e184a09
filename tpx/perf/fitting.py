"""What a run leaves open, decided by what the server says of itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tpx.errors import MeasurementError, UsageError
from tpx.perf.clients.model import ModelDescription, ServerDescription, TensorSpec
from tpx.perf.options import PerfConfig

SINGLE_REQUEST_STREAMS = frozenset({"mlserver"})
"""Servers whose models are asked once by a stream."""


def fitted(config: PerfConfig, server: ServerDescription) -> PerfConfig:
    """The same run as the server takes it: tensors in the JSON, where it does not say that it takes others
    and the user said nothing; a stream for every request, where it takes no second one.

    Raises UsageError where the run cannot be as the server needs it.
    """
    if config.service_kind != "triton":
        return config
    chosen = config.input_tensor_format or config.output_tensor_format
    if config.protocol == "http" and not chosen and "binary_tensor_data" not in server.extensions:
        return replace(config, input_tensor_format="json", output_tensor_format="json")
    if config.streaming and server.name in SINGLE_REQUEST_STREAMS and not config.stream_per_request:
        if config.periodic_concurrency_range is not None:
            raise UsageError(
                f"--periodic-concurrency-range needs streams that carry several requests; those of server "
                f"'{server.name}' carry one"
            )
        return replace(config, stream_per_request=True)
    return config


def with_declared(model: ModelDescription, declared: tuple[TensorSpec, ...]) -> ModelDescription:
    """The model with the inputs that its server does not list. Raises UsageError where it lists some."""
    if not declared:
        return model
    if model.inputs:
        listed = ", ".join(map(str, model.inputs))
        raise UsageError(f"--declare: the server lists the inputs of model '{model.name}' itself: {listed}")
    return replace(model, inputs=declared)


@contextmanager
def needing(extension: str, server: ServerDescription, flag: str) -> Iterator[None]:
    """What asks the server for something of an extension. A refusal by one that never said that it has it
    tells what to leave out, as MeasurementError."""
    try:
        yield
    except MeasurementError as exc:
        if extension in server.extensions:
            raise
        raise MeasurementError(
            f"{exc.message}; server '{server.name}' does not list the extension {extension}: leave out {flag}"
        ) from exc


def fitting_notices(config: PerfConfig, fit: PerfConfig, server: ServerDescription) -> tuple[str, ...]:
    """What the user is told of it."""
    if fit.stream_per_request != config.stream_per_request:
        return (
            f"a stream of server '{server.name}' carries one request, so every request has a stream of its "
            "own, as with --stream-per-request",
        )
    if fit is not config:
        return (
            f"server '{server.name}' does not say that it has the extension binary_tensor_data, so tensors "
            "go as JSON; --input-tensor-format binary and --output-tensor-format binary send bytes "
            "all the same",
        )
    if config.service_kind == "inprocess":
        return (
            "the engine and the load generator share this process: the figures are those of both together",
        )
    return ()
