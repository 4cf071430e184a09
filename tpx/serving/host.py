"""Services of the server for models: handed down to them, all on the event loop."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from tpx.protocol.v2 import DecodedRequest
from tpx.serving.custom_metrics import CustomMetrics
from tpx.serving.request import InferRequest, RequestHead


class Callee(Protocol):
    """A model that another one calls."""

    name: str
    decoupled: bool

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Raises InvalidRequest."""

    def submit(self, request: InferRequest) -> None:
        """Raises RequestError."""


class Host(Protocol):
    """Other models, and the metrics page, as one version of a model sees them."""

    metrics: CustomMetrics
    loop: asyncio.AbstractEventLoop
    loading: bool
    """The version is being loaded, so that nothing it waits for may wait for it."""

    def model(self, name: str, version: str) -> Callee:
        """The model that serves a name and version. Raises NotFound, NotReady, InvalidRequest."""

    def is_ready(self, name: str, version: str) -> bool:
        """Raises InvalidRequest for a version that is no positive number."""

    async def load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Raises InvalidRequest, NotReady."""

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Raises NotReady."""
