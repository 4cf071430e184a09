"""One server at a time, kept warm: variants are loaded into it by request.

Another is started only where a variant needs that, or the one before is not to be trusted any more.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tpx.analyzer.runners.base import Preparation
from tpx.analyzer.runners.control import ModelControl
from tpx.analyzer.runners.hosts import STOP_TIMEOUT_S, Addresses, Host, Launch, Running
from tpx.analyzer.runners.loaded import Configs, LoadedModels
from tpx.errors import MeasurementError, TpxError, WireError

DEATH_GRACE_S = 0.5
DISTRUST_PATIENCE_S = 1.0
"""What a server that is not to be trusted may take to end by itself."""


class WarmServer:
    """The server of a run, wherever it comes from."""

    def __init__(self, host: Host, control: Callable[[Addresses], ModelControl], *, timeout_s: float) -> None:
        """`timeout_s` is what a start, a load and an unload may take, each."""
        self._host = host
        self._control = control
        self._timeout_s = timeout_s
        self._launch = Launch()
        self._models: LoadedModels | None = None
        self._death: asyncio.Task[str] | None = None
        self._distrust = ""
        self.running: Running | None = None

    async def put(self, launch: Launch, wanted: Configs) -> Preparation:
        """Serve exactly these models, on a server that was started like this.

        A server that breaks while it loads is started again for a second attempt. Raises MeasurementError
        where that is in vain or the server refuses, ServerLost where no server is to be had any more.
        """
        preparation = await self.ready(launch)
        try:
            changed = await self._change(wanted)
        except WireError as exc:
            self._distrust = await self.last_words() or exc.message
            preparation = await self.ready(launch)
            try:
                changed = await self._change(wanted)
            except WireError as again:
                self._distrust = await self.last_words() or again.message
                raise MeasurementError(
                    f"the server breaks when it loads this configuration: {self._distrust}"
                ) from again
        return preparation if changed or preparation.how != "loaded" else Preparation(how="found")

    async def config(self, model: str) -> dict[str, Any]:
        """JSON of the configuration that a model is served with; the server is ready."""
        return await self._loaded.config(model)

    async def ready(self, launch: Launch) -> Preparation:
        """Have a server that was started like this and is to be trusted, with whatever models."""
        why = self._reason_to_restart(launch)
        if self.running is not None and not why:
            return Preparation(how="loaded")
        first = self.running is None and not why
        await self._stop(DISTRUST_PATIENCE_S if self._distrust else STOP_TIMEOUT_S)
        self._launch, self._distrust = launch, ""
        self.running = running = await self._host.start(launch, self._timeout_s)
        self._death = asyncio.create_task(running.died())
        if self._models is None or self._host.restarts:
            self._models = LoadedModels(self._control(running.addresses), self._timeout_s)
            await self._models.begin()
        self._models.forget()
        if not self._host.restarts:
            return Preparation(how="loaded")
        return Preparation(how="started" if first else "restarted", why=why)

    @property
    def others(self) -> frozenset[str]:
        """Models that the server serves for somebody else."""
        return self._loaded.others

    async def guard(self, work: "asyncio.Task[Any]", limit_s: float) -> None:
        """Wait for work on the server: until it is done, or the time is over, or the server has died.

        Raises MeasurementError for the latter two, ServerLost for a server of somebody else; after that,
        and when the work has failed, the next variant gets a fresh server.
        """
        death = self._death
        waiting = (work,) if death is None else (work, death)
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        error = work.exception() if work.done() else None
        if work.done() and error is None:
            return
        words = await self.last_words()
        if words:
            error = MeasurementError(words)
        elif error is None:
            error = MeasurementError(
                f"no result after {limit_s:g} s (--perf-analyzer-timeout sets the limit): the model hangs, "
                "or the windows are too long for it"
            )
        self._distrust = f"the measurement before failed: {error}"
        if not self._host.restarts:
            await self._host.start(self._launch, self._timeout_s)  # a server that is lost is no failed trial
        raise error

    async def last_words(self) -> str:
        """What there is to say about the server's death; empty while it lives."""
        if self._death is None:
            return ""
        # a broken connection may be the first sign of it
        await asyncio.wait((self._death,), timeout=DEATH_GRACE_S)
        return self._death.result() if self._death.done() else ""

    async def close(self) -> None:
        """Leave somebody else's server as it was found, end one of ours."""
        try:
            if not self._host.restarts and self._models is not None:
                await self._models.restore()
        except TpxError:
            pass  # it is gone: there is nothing to put back
        finally:
            await self._stop(DISTRUST_PATIENCE_S if self._distrust else STOP_TIMEOUT_S)
            self._host.close()

    @property
    def _loaded(self) -> LoadedModels:
        if self._models is None:
            raise MeasurementError("no server is ready")
        return self._models

    def _reason_to_restart(self, launch: Launch) -> str:
        if self._distrust:
            return self._distrust
        if self._death is not None and self._death.done():
            return self._death.result()
        if self.running is not None and launch != self._launch:
            return "other options or environment of the server"
        return ""

    async def _change(self, wanted: Configs) -> bool:
        try:
            return await self._loaded.put(wanted)
        except MeasurementError:
            self._loaded.forget()
            raise

    async def _stop(self, patience_s: float) -> None:
        running, self.running = self.running, None
        death, self._death = self._death, None
        if death is not None:
            death.cancel()
            await asyncio.wait((death,))
        if running is not None:
            await running.stop(patience_s)
