"""The models that trials have on a server: put there, taken away, and in the end left as they were found."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tpx.analyzer.runners.control import ModelControl
from tpx.errors import MeasurementError

POLL_S = 0.02
_BUSY = ("READY", "LOADING", "UNLOADING")

Configs = Mapping[str, Mapping[str, Any] | None]
"""By model the configuration to load it with; None is the model's own."""


class LoadedModels:
    """What of a server's models is ours; models that it served before are left alone unless asked for.

    Everything raises WireError where the server does not answer, MeasurementError where it refuses.
    """

    def __init__(self, control: ModelControl, timeout_s: float) -> None:
        self._control = control
        self._timeout_s = timeout_s
        self._before: frozenset[str] = frozenset()
        self._touched: list[str] = []
        self._now: Configs | None = None

    async def begin(self) -> None:
        """Remember what the server serves by itself."""
        self._before = frozenset(await self._serving("READY"))

    @property
    def others(self) -> frozenset[str]:
        """Models that were served before and that nobody has asked for."""
        return self._before - set(self._touched)

    async def put(self, wanted: Configs) -> bool:
        """Serve exactly these of ours, in this order; False where they were there already."""
        if self._now == wanted:
            return False
        await self._clear()
        for model, config in wanted.items():
            if model not in self._touched:
                self._touched.append(model)
            await self._unload([model])
            await self._control.load(model, config, self._timeout_s)
        self._now = dict(wanted)
        return True

    async def config(self, model: str) -> dict[str, Any]:
        """JSON of the configuration that a model is served with."""
        return await self._control.config(model)

    def forget(self) -> None:
        """What the server has now is not known any more."""
        self._now = None

    async def restore(self) -> None:
        """Take ours away, and load again what was served before as it is in its repository."""
        await self._clear()
        for model in self._touched:
            if model in self._before:
                await self._control.load(model, None, self._timeout_s)

    async def _clear(self) -> None:
        """Unload what is ours: what was loaded for us, and what came along with it."""
        self._now = None
        ours = [name for name in await self._serving("READY") if name not in self.others]
        order = [name for name in reversed(self._touched) if name in ours]
        await self._unload([*order, *(name for name in ours if name not in order)])

    async def _unload(self, models: list[str]) -> None:
        """Unload, and wait until it is done, so that no variant is measured beside another's remains."""
        serving = await self._serving(*_BUSY)
        for model in models:
            if model in serving:
                await self._control.unload(model)
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._timeout_s
        while left := set(models).intersection(await self._serving(*_BUSY)):
            if loop.time() > ends:
                raise MeasurementError(
                    f"model '{min(left)}' was not unloaded after {self._timeout_s:g} s "
                    "(--client-max-retries sets the limit)"
                )
            await asyncio.sleep(POLL_S)

    async def _serving(self, *states: str) -> list[str]:
        return list(dict.fromkeys(m.name for m in await self._control.index() if m.state in states))
