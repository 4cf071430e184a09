"""What models may ask of the server that hosts them."""

import asyncio
from collections.abc import Mapping

from tpx.errors import NotReady
from tpx.serving.custom_metrics import CustomMetrics
from tpx.serving.host import Callee
from tpx.serving.model_id import ModelId
from tpx.serving.repository.control import ModelControl
from tpx.serving.repository.overrides import LoadParameter, override_of
from tpx.serving.repository.repository import ModelRepository


class ServerHost:
    """What is behind the Host of every model; `control` comes when there is one."""

    def __init__(self, repository: ModelRepository, loop: asyncio.AbstractEventLoop) -> None:
        self.metrics = CustomMetrics()
        self.loop = loop
        self.control: ModelControl | None = None
        self._repository = repository

    def of(self, model: ModelId) -> "ModelHost":
        """The Host of a model that is about to be loaded."""
        return ModelHost(self, model)

    def model(self, name: str, version: str) -> Callee:
        return self._repository.get(name, version)

    def is_ready(self, name: str, version: str) -> bool:
        return self._repository.is_ready(name, version)

    async def load(self, name: str, config: str, files: Mapping[str, bytes], asker: ModelId | None) -> None:
        control = self._explicit()
        parameters: dict[str, LoadParameter] = {}
        if config:
            parameters["config"] = config
        parameters.update(
            {path if path.startswith("file:") else f"file:{path}": data for path, data in files.items()}
        )
        override = await self.loop.run_in_executor(None, override_of, parameters, name)
        with control.asked_by_model():
            # not until instances have ended: one of them may be computing the request that asks
            await control.load(name, override, asker, until_dismissed=False)

    async def unload(self, name: str, *, unload_dependents: bool, asker: ModelId | None) -> None:
        control = self._explicit()
        with control.asked_by_model():
            await control.unload(name, unload_dependents=unload_dependents, asker=asker)

    def _explicit(self) -> ModelControl:
        if self.control is None:
            raise NotReady("the server has not started yet")
        self.control.check_explicit()
        return self.control


class ModelHost:
    """Implements Host."""

    def __init__(self, server: ServerHost, model: ModelId) -> None:
        self.metrics = server.metrics
        self.loop = server.loop
        self.loading = True
        self.model = server.model
        self.is_ready = server.is_ready
        self._server = server
        self._model = model

    @property
    def _asker(self) -> ModelId | None:
        return self._model if self.loading else None

    async def load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        await self._server.load(name, config, files, self._asker)

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        await self._server.unload(name, unload_dependents=unload_dependents, asker=self._asker)
