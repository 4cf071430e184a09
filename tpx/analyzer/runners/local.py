"""Trials on servers of our own: one child `tpx serve` per configuration, on this machine."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import Configuration, Load, Measurement
from tpx.analyzer.runners.base import Server
from tpx.analyzer.runners.load import LoadSettings, measure_level
from tpx.analyzer.runners.server import ServerProcess
from tpx.errors import MeasurementError

DEATH_GRACE_S = 0.5


def serve_command(repository: Path) -> Sequence[str]:
    """`tpx serve` of this very installation, on free ports, which it prints."""
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    return (sys.executable, "-m", "tpx", "serve", "--model-repository", str(repository), *ports)


class LocalRunner:
    """Starts a server for each configuration it is given, and stops the one before."""

    def __init__(
        self,
        model_repository: Path,
        load: LoadSettings,
        *,
        ready_timeout_s: float,
        command: Callable[[Path], Sequence[str]] = serve_command,
    ) -> None:
        """`command` is what starts a server over a repository, on ports of its own choice."""
        self._models = model_repository.absolute()
        self._load = load
        self._ready_timeout_s = ready_timeout_s
        self._command = command
        self._scratch = Path(tempfile.mkdtemp(prefix="tpx-analyze-"))
        self._process: ServerProcess | None = None
        self._model = ""
        self._variant = ""

    @property
    def server(self) -> Server | None:
        if self._process is None:
            return None
        return Server(pid=self._process.pid, log_tail=self._process.log_tail())

    async def default_config(self, model: str) -> dict[str, Any]:
        process = await self._serve(model, self._models / model)
        return await process.config_of(model)

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:
        self._variant = configuration.variant.name if configuration else ""
        await self._serve(configuration.variant.model if configuration else None, directory)

    async def measure(self, load: Load) -> Measurement:
        process = self._process
        if process is None:
            raise MeasurementError("no configuration is prepared")
        address = process.address(self._load.protocol)
        level = asyncio.create_task(measure_level(self._load, self._model, self._variant, address, load))
        death = asyncio.create_task(process.died())
        try:
            await asyncio.wait((level, death), return_when=asyncio.FIRST_COMPLETED)
            if level.done() and level.exception() is not None:
                await asyncio.wait(
                    (death,), timeout=DEATH_GRACE_S
                )  # a broken connection may be its first sign
            if death.done():
                raise MeasurementError(death.result())
            return level.result()
        finally:
            for task in (level, death):
                task.cancel()
            await asyncio.wait((level, death))

    async def close(self) -> None:
        await self._stop()
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _serve(self, model: str | None, directory: Path) -> ServerProcess:
        """A server over a repository that holds `directory` alone, as `model`; None is an empty one."""
        await self._stop()
        repository = self._scratch / "repository"
        shutil.rmtree(repository, ignore_errors=True)
        repository.mkdir()
        if model is not None:
            (repository / model).symlink_to(directory, target_is_directory=True)
        self._model = model or ""
        self._process = process = await ServerProcess.start(
            self._command(repository), self._scratch / "server.log"
        )
        await process.wait_ready(model, self._ready_timeout_s)
        return process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop()
