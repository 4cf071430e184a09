"""Queries to a server about itself and its models, in terms of the v2 protocol's methods."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from tpx.errors import MeasurementError, ResponseError, WireError
from tpx.perf.clients.base import Region
from tpx.perf.clients.model import (
    ModelCounters,
    ModelDescription,
    ModelKey,
    ServerDescription,
    TensorDescription,
    index_entries,
    instead,
    model_counters,
    model_description,
    server_description,
)
from tpx.protocol.http1.client import HttpConnector
from tpx.protocol.json_values import JsonObject

ASK_S = 30.0


class Asker(Protocol):
    """Calls the methods of the v2 protocol on one server; implemented for HTTP and for gRPC."""

    hint: str
    """Advice to append to the error if the first query fails."""

    async def ask(
        self,
        method: str,
        name: str = "",
        version: str = "",
        body: JsonObject | None = None,
        timeout_s: float = ASK_S,
    ) -> JsonObject:
        """Call a method by its gRPC name for a model or region; `body` has the members of HTTP's body.

        Raises ResponseError with the server's message, WireError if there is no response,
        MeasurementError for a response that does not follow the protocol.
        """
        ...

    async def close(self) -> None: ...


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise a server's error as a MeasurementError that says what failed."""
    try:
        yield
    except ResponseError as exc:
        raise MeasurementError(f"failed to {what}: {exc.message}") from exc


class V2Control:
    """Implements Control and Registrar."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def server(self) -> ServerDescription:
        try:
            with refusals("get server metadata"):
                return server_description(await self._asker.ask("ServerMetadata"))
        except WireError as exc:
            if not self._asker.hint or str(exc).startswith("cannot connect"):
                raise
            raise WireError(f"failed to get server metadata: {exc} ({self._asker.hint})") from exc

    async def model(self, model: ModelKey) -> ModelDescription:
        try:
            metadata = await self._asker.ask("ModelMetadata", model.name, model.version)
        except ResponseError as exc:
            words = exc.message + await self._instead(model)
            raise MeasurementError(f"failed to get model metadata: {words}") from exc
        config: JsonObject | None = None
        with suppress(ResponseError):  # the server may lack this extension
            config = await self._asker.ask("ModelConfig", model.name, model.version)
        return model_description(metadata, config)

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:
        with refusals("get model statistics"):
            return model_counters(await self._asker.ask("ModelStatistics", model.name, model.version))

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        # in the protocol's JSON only trace_level is a list
        members = {name: list(v) if name == "trace_level" else v[0] for name, v in settings.items()}
        with refusals("set trace settings"):
            await self._asker.ask("TraceSetting", body=members)

    async def register(self, region: Region) -> None:
        body: JsonObject = {"byte_size": region.byte_size}
        if region.handle:
            body |= {"raw_handle": {"b64": base64.b64encode(region.handle).decode()}}
            body |= {"device_id": region.device}
        else:
            body |= {"key": region.key, "offset": 0}
        with refusals("register shared memory"):
            await self._asker.ask(f"{region.kind.capitalize()}SharedMemoryRegister", region.name, body=body)

    async def unregister(self, region: Region) -> None:
        with refusals("unregister shared memory"):
            await self._asker.ask(f"{region.kind.capitalize()}SharedMemoryUnregister", region.name, body={})

    async def close(self) -> None:
        await self._asker.close()

    async def _instead(self, model: ModelKey) -> str:
        """Return advice on which models exist; empty if the server does not list them."""
        try:
            index = await self._asker.ask("RepositoryIndex", body={})
        except (MeasurementError, ResponseError):
            return ""
        return instead(model, index_entries(index.get("models", ())))


class StaticControl:
    """Implements Control for a service that does not describe its models: all have the inputs of its API."""

    def __init__(self, connector: HttpConnector, kind: str, *inputs: TensorDescription) -> None:
        self._connector = connector
        self._kind = kind
        self._inputs = inputs

    async def server(self) -> ServerDescription:
        """Return a description with the service's kind. Raises WireError if nothing listens."""
        (await self._connector.connect()).close()
        return ServerDescription(name=self._kind, version="", extensions=frozenset())

    async def model(self, model: ModelKey) -> ModelDescription:
        return ModelDescription(name=model.name, platform=self._kind, inputs=self._inputs)

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:  # noqa: ARG002 (there are none)
        return ()

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        raise MeasurementError(f"a service of kind {self._kind} has no trace settings")

    async def close(self) -> None:
        """Do nothing: no connection stays open."""
