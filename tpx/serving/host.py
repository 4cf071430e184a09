"""Services of the server for models, on the event loop."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from tpx.protocol.v2 import DecodedRequest
from tpx.serving.custom_metrics import CustomMetrics
from tpx.serving.request import InferRequest, RequestHead


class Callee(Protocol):
    """A model called by another one."""

    name: str
    decoupled: bool

    def bind(self, request: DecodedRequest) -> RequestHead:
        """Validate a request's head. Raises InvalidRequest."""

    def submit(self, request: InferRequest) -> None:
        """Submit a request. Raises RequestError."""


class Host(Protocol):
    """Other models and the metrics page, as seen by one version of a model."""

    metrics: CustomMetrics
    loop: asyncio.AbstractEventLoop
    loading: bool
    """True while the version is loading; whatever it waits for must not wait for this load."""

    def model(self, name: str, version: str) -> Callee:
        """Return the model that serves a name and version. Raises NotFound, NotReady, InvalidRequest."""

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a version is ready. Raises InvalidRequest unless that is a positive number."""

    async def load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load a model. Raises InvalidRequest, NotReady."""

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Unload a model. Raises NotReady."""
