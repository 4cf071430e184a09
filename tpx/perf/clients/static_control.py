"""The control of a service that says nothing about its models: they are taken to be as their API has them."""

from collections.abc import Mapping, Sequence

from tpx.errors import MeasurementError
from tpx.perf.clients.model import ModelCounters, ModelDescription, ModelKey, ServerDescription, TensorSpec
from tpx.protocol.http1.client import HttpConnector


class StaticControl:
    """Implements Control: every model has the same inputs."""

    def __init__(self, connector: HttpConnector, kind: str, *inputs: TensorSpec) -> None:
        self._connector = connector
        self._kind = kind
        self._inputs = inputs

    async def server(self) -> ServerDescription:
        """Raises WireError where nobody listens."""
        (await self._connector.connect()).close()
        return ServerDescription(name=self._kind, version="", extensions=frozenset())

    async def model(self, model: ModelKey) -> ModelDescription:
        return ModelDescription(name=model.name, platform=self._kind, inputs=self._inputs)

    async def statistics(self, model: ModelKey) -> tuple[ModelCounters, ...]:  # noqa: ARG002 (there are none)
        return ()

    async def set_trace(self, settings: Mapping[str, Sequence[str]]) -> None:  # noqa: ARG002
        raise MeasurementError(f"a service of kind {self._kind} has no trace settings")

    async def close(self) -> None:
        """Nothing stays open."""
