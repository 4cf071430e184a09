"""What models may ask of the server that hosts them."""

import asyncio
from collections.abc import Mapping

from tpx.errors import NotReady
from tpx.serving.custom_metrics import CustomMetrics
from tpx.serving.host import Callee
from tpx.serving.repository.control import ModelControl
from tpx.serving.repository.overrides import LoadParameter, override_of
from tpx.serving.repository.repository import ModelRepository


class ServerHost:
    """Implements Host over the repository; `control` comes when there is one."""

    def __init__(self, repository: ModelRepository, loop: asyncio.AbstractEventLoop) -> None:
        self.metrics = CustomMetrics()
        self.loop = loop
        self.control: ModelControl | None = None
        self._repository = repository

    def model(self, name: str, version: str) -> Callee:
        return self._repository.get(name, version)

    def is_ready(self, name: str, version: str) -> bool:
        return self._repository.is_ready(name, version)

    async def load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        control = self._explicit()
        parameters: dict[str, LoadParameter] = {}
        if config:
            parameters["config"] = config
        parameters.update(
            {path if path.startswith("file:") else f"file:{path}": data for path, data in files.items()}
        )
        override = await self.loop.run_in_executor(None, override_of, parameters, name)
        with control.asked_by_model():
            await control.load(name, override)

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        control = self._explicit()
        with control.asked_by_model():
            await control.unload(name, unload_dependents=unload_dependents)

    def _explicit(self) -> ModelControl:
        if self.control is None:
            raise NotReady("the server has not started yet")
        self.control.check_explicit()
        return self.control
