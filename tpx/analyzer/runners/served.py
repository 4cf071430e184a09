"""Trials on a server with model control, wherever it runs: each variant is loaded with its configuration in
the request, and put under load."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import Configuration, Load, Measurement
from tpx.analyzer.runners.base import Preparation, Server
from tpx.analyzer.runners.hosts import Addresses, Launch
from tpx.analyzer.runners.load import LoadSettings, measure_level
from tpx.analyzer.runners.loaded import Configs
from tpx.analyzer.runners.together import measure_together
from tpx.analyzer.runners.warm import WarmServer
from tpx.errors import MeasurementError
from tpx.protocol import model_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How models are measured."""

    load: LoadSettings
    launch: Callable[[str], Launch] = lambda _: Launch()
    """What the server of a model is started with."""
    limit_s: float = 600
    """How long one measurement may take."""
    reloads: bool = True
    """Otherwise nothing is ever loaded: what the server has is measured."""


class ServedRunner:
    """Implements Runner for every launch mode that has a server."""

    def __init__(self, server: WarmServer, manner: Manner) -> None:
        self._server = server
        self._manner = manner
        self._configuration: Configuration | None = None

    @property
    def server(self) -> Server | None:
        running = self._server.running
        if running is None:
            return None
        return Server(pid=running.pid, log_tail=running.log_tail(), metrics_url=running.addresses.metrics_url)

    @property
    def http_address(self) -> str | None:
        """host:port that answers over HTTP; None while no server runs."""
        running = self._server.running
        return None if running is None else running.addresses.of("http")

    async def default_config(self, model: str) -> dict[str, Any]:
        launch = self._manner.launch(model)
        if self._manner.reloads:
            await self._server.put(launch, {model: None})
        else:
            await self._server.ready(launch)
        return await self._server.config(model)

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation:  # noqa: ARG002
        self._configuration = None
        if configuration is None:
            return await self._without_models()
        variant = configuration.variant
        launch = self._manner.launch(variant.model)
        if self._manner.reloads:
            done = await self._server.put(launch, configs_of(configuration))
        elif variant.is_default:
            await self._server.ready(launch)
            done = Preparation(how="found")
        else:
            raise MeasurementError(
                "--reload-model-disable: only the configuration that the server has can be measured"
            )
        self._configuration = configuration
        return done

    async def measure(self, load: Load) -> Measurement:
        running, configuration = self._server.running, self._configuration
        if running is None or configuration is None:
            raise MeasurementError("no configuration is prepared")
        level = asyncio.create_task(self._level(running.addresses, configuration, load))
        try:
            await self._server.guard(level, self._manner.limit_s)
            return level.result()
        finally:
            level.cancel()
            await asyncio.wait((level,))

    async def close(self) -> None:
        await self._server.close()

    async def _without_models(self) -> Preparation:
        if self._manner.reloads:
            return await self._server.put(self._manner.launch(""), {})
        return await self._server.ready(self._manner.launch(""))

    async def _level(self, where: Addresses, configuration: Configuration, load: Load) -> Measurement:
        settings, variant = load_of(self._manner.load, configuration), configuration.variant
        address = where.http if settings.endpoint else where.of(settings.protocol)
        if load.members:
            return await measure_together(settings, address, variant, load)
        return await measure_level(settings, variant.model, variant.name, address, load)


def load_of(settings: LoadSettings, configuration: Configuration) -> LoadSettings:
    """The settings for these models: those that are decoupled answer over streams."""
    parts = (configuration, *configuration.members)
    decoupled = frozenset(part.variant.model for part in parts if "decoupled: true" in part.text)
    if decoupled and settings.protocol == "http" and not settings.endpoint and settings.repository is None:
        raise MeasurementError(
            f"model '{min(decoupled)}' is decoupled, which takes streams: use --client-protocol grpc"
        )
    return replace(settings, decoupled=decoupled) if decoupled else settings


def configs_of(configuration: Configuration) -> Configs:
    """What to load for a configuration, its members before what is made of them.

    A model's own configuration is loaded as it is, without one in the request.
    """
    found: dict[str, Mapping[str, Any] | None] = {}
    for member in configuration.members:
        found.update(configs_of(member))
    variant = configuration.variant
    if variant.model in found:  # business logic is a member beside what it calls, which has to be there first
        found[variant.model] = found.pop(variant.model)
    elif not (variant.members and "," in variant.model):
        found[variant.model] = None if not variant.delta else _json(configuration)
    return found


def _json(configuration: Configuration) -> dict[str, Any]:
    message = model_config.parse(configuration.text, configuration.variant.name)
    return {**model_config.to_json(message, defaults=False), "name": configuration.variant.model}
