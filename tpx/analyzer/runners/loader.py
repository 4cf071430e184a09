"""Trials on a server with model control, wherever it runs: configurations are loaded on request.

There is one server at a time, which stays running between trials. It is replaced only if a variant
needs other server options, or after a failure that may have left it in a bad state.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from tpx.analyzer.results.measurement import Configuration, LoadPoint, Measurement, Models
from tpx.analyzer.runners.load import LoadGenerator
from tpx.analyzer.runners.outputs import Outputs
from tpx.analyzer.runners.servers import (
    STOP_TIMEOUT_S,
    Addresses,
    Launch,
    ModelControl,
    Preparation,
    ServerProcess,
    StartServer,
    VisibleServer,
)
from tpx.errors import MeasurementError, TpxError, WireError
from tpx.protocol import model_config

POLL_S = 0.02
DEATH_GRACE_S = 0.5
DISTRUST_PATIENCE_S = 1.0
"""Time in which a server in an unknown state may terminate before it is killed."""
_BUSY = ("READY", "LOADING", "UNLOADING")

Configs = Mapping[str, Mapping[str, object] | None]
"""Configuration to load, by model; None is the model's own."""


class ServedRunner:
    """Implements Runner for every launch mode with a server; models that it served before are untouched
    unless requested.
    """

    def __init__(
        self,
        start: StartServer,
        control: Callable[[Addresses], ModelControl],
        load: LoadGenerator,
        *,
        launch: Callable[[Models], Launch],
        timeout_s: float,
        limit_s: float,
        reloads: bool = True,
    ) -> None:
        """`launch` returns the options of the server for these models. `timeout_s` limits each start,
        load and unload, `limit_s` for each measurement. Without `reloads` the server's models stay as they
        are.
        """
        self._start = start
        self._open_control = control
        self._load = load
        self._launch_of = launch
        self._timeout_s = timeout_s
        self._limit_s = limit_s
        self._reloads = reloads
        self._configuration: Configuration | None = None
        self._launch = Launch()
        self._control: ModelControl | None = None
        self._death: asyncio.Task[str] | None = None
        self._distrust = ""
        self._before: frozenset[str] = frozenset()
        self._touched: list[str] = []
        self._loaded: Configs | None = None
        """Configurations loaded last; None if unknown."""
        self._ours = True
        self._running: ServerProcess | None = None

    @property
    def server(self) -> VisibleServer | None:
        running = self._running
        if running is None:
            return None
        return VisibleServer(
            pid=running.pid,
            log_tail=running.log_tail(),
            metrics_url=running.addresses.metrics_url,
        )

    async def default_config(self, model: str) -> dict[str, object]:
        await self._put_models((model,), {model: None})
        return await self._models.config(model)

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation:  # noqa: ARG002
        self._configuration = None
        if configuration is None:
            return await self._put_models((), {})
        variant = configuration.variant
        if not self._reloads and not variant.is_default:
            raise MeasurementError(
                "--reload-model-disable: only the server's current configuration can be measured"
            )
        done = await self._put_models(variant.models, configs_of(configuration))
        self._configuration = configuration
        return done if self._reloads else Preparation(how="found")

    async def measure(self, load: LoadPoint, *, windows: int = 0) -> Measurement:
        running, configuration = self._running, self._configuration
        if running is None or configuration is None:
            raise MeasurementError("no configuration is prepared")
        address = running.addresses.of(self._load.protocol)
        level = asyncio.create_task(self._load.measure(configuration, load, address, windows=windows))
        try:
            await self.guard(level, self._limit_s)
            return level.result()
        finally:
            level.cancel()
            await asyncio.wait((level,))

    async def outputs(self, model: str) -> Outputs:
        if self._running is None:
            raise MeasurementError("no server is ready")
        return await self._load.outputs(model, self._running.addresses.of(self._load.protocol))

    async def _put_models(self, models: Models, wanted: Configs) -> Preparation:
        launch = self._launch_of(models)
        return await (self.put(launch, wanted) if self._reloads else self.ready(launch))

    async def put(self, launch: Launch, wanted: Configs) -> Preparation:
        """Serve exactly these models, loaded in this order, on a server with this launch.

        A server that fails while loading is restarted once. Raises MeasurementError if that fails too or
        it refuses, ServerLost if no server can be reached anymore.
        """
        preparation = await self.ready(launch)
        try:
            changed = await self._load_models(wanted)
        except WireError as exc:
            self._distrust = await self._describe_death() or exc.message
            preparation = await self.ready(launch)
            try:
                changed = await self._load_models(wanted)
            except WireError as again:
                self._distrust = await self._describe_death() or again.message
                raise MeasurementError(
                    f"the server crashes when it loads this configuration: {self._distrust}"
                ) from again
        return preparation if changed or preparation.how != "loaded" else Preparation(how="found")

    async def ready(self, launch: Launch) -> Preparation:
        """Ensure that a healthy server with this launch is running, whatever its models."""
        why = self._distrust
        if not why and self._death is not None and self._death.done():
            why = self._death.result()
        if not why and self._running is not None and launch != self._launch:
            why = "other options or environment of the server"
        if self._control is not None and self._running is not None and not why:
            return Preparation(how="loaded")
        first = self._running is None and not why
        await self._stop()
        self._launch, self._distrust, self._loaded = launch, "", None
        self._running = running = await self._start(launch, self._timeout_s)
        self._death = asyncio.create_task(running.died())
        self._ours = running.ours
        if self._control is None:
            control = self._open_control(running.addresses)
            self._before, self._touched = frozenset(await _list_models(control, "READY")), []
            self._control = control
        if not running.ours:
            return Preparation(how="loaded")
        return Preparation(how="started" if first else "restarted", why=why)

    async def guard(self, work: "asyncio.Task[object]", limit_s: float) -> None:
        """Wait until the work is done, the time is up, or the server has died; then it is replaced.

        Raises MeasurementError in the last two cases, ServerLost if a remote server is gone.
        """
        death = self._death
        waiting = (work,) if death is None else (work, death)
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        error = work.exception() if work.done() else None
        if work.done() and error is None:
            return
        words = await self._describe_death()
        if words:
            error = MeasurementError(words)
        elif error is None:
            error = too_long(limit_s)
        self._distrust = f"the measurement before failed: {error}"
        if not self._ours:
            await self._start(self._launch, self._timeout_s)  # raises ServerLost: not the trial's fault
        raise error

    async def close(self) -> None:
        """Restore a remote server's models, or stop a server of ours."""
        try:
            if self._control is not None and not self._ours:
                await self._unload_own_models()
                for model in self._touched:
                    if model in self._before:
                        await self._models.load(model, None, self._timeout_s)
        except TpxError:
            pass  # the server is gone: nothing to restore
        finally:
            await self._stop()

    @property
    def _models(self) -> ModelControl:
        if self._control is None:
            raise MeasurementError("no server is ready")
        return self._control

    async def _describe_death(self) -> str:
        """Describe how the server died; return an empty string while it is alive."""
        if self._death is None:
            return ""
        # a broken connection may precede the exit of the process
        await asyncio.wait((self._death,), timeout=DEATH_GRACE_S)
        return self._death.result() if self._death.done() else ""

    async def _stop(self) -> None:
        running, self._running = self._running, None
        death, self._death = self._death, None
        if death is not None:
            death.cancel()
            await asyncio.wait((death,))
        # the next child listens on other ports; a remote server keeps its control and model list
        if self._ours:
            self._control = None
        if running is not None:
            await running.stop(DISTRUST_PATIENCE_S if self._distrust else STOP_TIMEOUT_S)

    async def _load_models(self, wanted: Configs) -> bool:
        """Load these models and unload all others of ours; return False if they were loaded already."""
        if self._loaded == wanted:
            return False
        await self._unload_own_models()
        for model, config in wanted.items():
            if model not in self._touched:
                self._touched.append(model)
            await self._unload_models([model])
            await self._models.load(model, config, self._timeout_s)
        self._loaded = dict(wanted)
        return True

    async def _unload_own_models(self) -> None:
        """Unload the models that were loaded for this run, and those loaded along with them."""
        self._loaded = None
        others = self._before - set(self._touched)
        own = [name for name in await _list_models(self._models, "READY") if name not in others]
        order = [name for name in reversed(self._touched) if name in own]
        await self._unload_models([*order, *(name for name in own if name not in order)])

    async def _unload_models(self, models: list[str]) -> None:
        """Unload models and wait for completion, so that a variant's remains do not disturb the next one."""
        serving = await _list_models(self._models, *_BUSY)
        for model in models:
            if model in serving:
                await self._models.unload(model)
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._timeout_s
        while left := set(models).intersection(await _list_models(self._models, *_BUSY)):
            if loop.time() > ends:
                raise MeasurementError(
                    f"model '{min(left)}' was not unloaded after {self._timeout_s:g} s "
                    "(--client-max-retries sets the limit)"
                )
            await asyncio.sleep(POLL_S)


async def _list_models(control: ModelControl, *states: str) -> list[str]:
    return list(dict.fromkeys(m.name for m in await control.index() if m.state in states))


def too_long(limit_s: float) -> MeasurementError:
    """Return the error for a measurement that does not end."""
    return MeasurementError(
        f"no result after {limit_s:g} s (--perf-analyzer-timeout sets the limit): the model hangs, "
        "or the windows are too long for it"
    )


def configs_of(configuration: Configuration) -> Configs:
    """Return what to load, members first; None for a model's own configuration, loaded by its name."""
    found: dict[str, Mapping[str, object] | None] = {}
    for member in configuration.members:
        found.update(configs_of(member))
    variant = configuration.variant
    # a business-logic model is its own member: load it last, after the models that it calls
    if variant.model in found:
        found[variant.model] = found.pop(variant.model)
    elif not variant.is_group:
        found[variant.model] = None
        if variant.delta:
            message = model_config.parse(configuration.text, variant.name)
            found[variant.model] = {**model_config.to_json(message, defaults=False), "name": variant.model}
    return found
