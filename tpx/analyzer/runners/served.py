"""Trials on a server with model control, wherever it runs: each variant is loaded with its configuration in
the request, and put under load."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from tpx.analyzer.results.measurement import Configuration, Load, Measurement
from tpx.analyzer.runners.base import Launch, Preparation, VisibleServer
from tpx.analyzer.runners.load import LoadGenerator
from tpx.analyzer.runners.loader import Configs, ModelLoader
from tpx.errors import MeasurementError
from tpx.protocol import model_config


class ServedRunner:
    """Implements Runner for every launch mode that has a server."""

    def __init__(
        self,
        loader: ModelLoader,
        load: LoadGenerator,
        *,
        launch: Callable[[str], Launch],
        limit_s: float,
        reloads: bool = True,
    ) -> None:
        """`launch` says what the server of a model is started with, `limit_s` how long one measurement may
        take. Without `reloads` nothing is ever loaded: the models that the server has are measured."""
        self._loader = loader
        self._load = load
        self._launch = launch
        self._limit_s = limit_s
        self._reloads = reloads
        self._configuration: Configuration | None = None

    @property
    def server(self) -> VisibleServer | None:
        running = self._loader.running
        if running is None:
            return None
        return VisibleServer(
            pid=running.pid,
            log_tail=running.log_tail(),
            metrics_url=running.addresses.metrics_url,
            http_address=running.addresses.http,
        )

    async def default_config(self, model: str) -> dict[str, object]:
        await self._put(model, {model: None})
        return await self._loader.config(model)

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation:  # noqa: ARG002
        self._configuration = None
        if configuration is None:
            return await self._put("", {})
        variant = configuration.variant
        if not self._reloads and not variant.is_default:
            raise MeasurementError(
                "--reload-model-disable: only the configuration that the server has can be measured"
            )
        done = await self._put(variant.model, configs_of(configuration))
        self._configuration = configuration
        return done if self._reloads else Preparation(how="found")

    async def measure(self, load: Load, *, one_window: bool = False) -> Measurement:
        running, configuration = self._loader.running, self._configuration
        if running is None or configuration is None:
            raise MeasurementError("no configuration is prepared")
        address = running.addresses.of(self._load.protocol)
        work = self._load.measure(configuration, load, address, one_window=one_window)
        level = asyncio.create_task(work)
        try:
            await self._loader.guard(level, self._limit_s)
            return level.result()
        finally:
            level.cancel()
            await asyncio.wait((level,))

    async def close(self) -> None:
        await self._loader.close()

    async def _put(self, model: str, wanted: Configs) -> Preparation:
        launch = self._launch(model)
        return await (self._loader.put(launch, wanted) if self._reloads else self._loader.ready(launch))


def configs_of(configuration: Configuration) -> Configs:
    """Return what to load for a configuration, its members before what is made of them.

    A model's own configuration is loaded as it is, without one in the request.
    """
    found: dict[str, Mapping[str, object] | None] = {}
    for member in configuration.members:
        found.update(configs_of(member))
    variant = configuration.variant
    if variant.model in found:  # business logic is a member beside what it calls, which has to be there first
        found[variant.model] = found.pop(variant.model)
    elif not (variant.members and "," in variant.model):
        found[variant.model] = None if not variant.delta else _json(configuration)
    return found


def _json(configuration: Configuration) -> dict[str, object]:
    message = model_config.parse(configuration.text, configuration.variant.name)
    return {**model_config.to_json(message, defaults=False), "name": configuration.variant.model}
