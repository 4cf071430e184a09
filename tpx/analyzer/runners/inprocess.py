"""Trials on the engine in this process: no network and no second process, like Model Analyzer's c_api
mode.

Each measurement starts its own engine over the variant's files, through the load generator. A crash of
the engine ends the run, which `--resume` can continue.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpx.analyzer.results.measurement import Configuration, LoadPoint, Measurement
from tpx.analyzer.runners.load import LoadGenerator
from tpx.analyzer.runners.loader import too_long
from tpx.analyzer.runners.outputs import Outputs
from tpx.analyzer.runners.servers import Preparation, VisibleServer
from tpx.errors import MeasurementError
from tpx.options import build
from tpx.protocol import model_config
from tpx.serving.options import ServeConfig
from tpx.serving.server import InferenceServer


class InProcessRunner:
    """Implements Runner with the engine in this process."""

    def __init__(self, model_repository: Path, load: LoadGenerator, *, limit_s: float) -> None:
        """`load` names the module that connects the load generator to the engine."""
        self._models = model_repository.absolute()
        self._scratch = Path(tempfile.mkdtemp(prefix="tpx-analyze-"))
        self._load = load.over(self._scratch)
        self._limit_s = limit_s
        self._configuration: Configuration | None = None

    @property
    def server(self) -> VisibleServer:
        return VisibleServer(pid=os.getpid())

    async def default_config(self, model: str) -> dict[str, object]:
        return await self._try_loading(
            {entry.name: entry for entry in self._models.iterdir() if entry.is_dir()}, model
        )

    async def prepare(self, configuration: Configuration | None, directory: Path) -> Preparation | None:
        self._configuration = None
        if configuration is None:
            self._link_models({})
            return None
        parts = [part.variant for part in (*configuration.members, configuration)]
        variants = {each.model: directory.parent / each.name for each in parts if not each.is_group}
        for model in configuration.variant.models:
            await self._try_loading(variants, model)
        self._configuration = configuration
        return Preparation(how="loaded")

    async def measure(self, load: LoadPoint, *, windows: int = 0) -> Measurement:
        if self._configuration is None:
            raise MeasurementError("no configuration is prepared")
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._load.measure(self._configuration, load, windows=windows)
        except TimeoutError as exc:
            raise too_long(self._limit_s) from exc

    async def outputs(self, model: str) -> Outputs:  # noqa: ARG002
        """Return none: the load generator sees no outputs of the engine."""
        return ()

    async def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _try_loading(self, directories: Mapping[str, Path], model: str) -> dict[str, Any]:
        """Load models briefly and return a model's configuration. Raises MeasurementError if that fails."""
        self._link_models(directories)
        engine = InferenceServer(
            build(
                ServeConfig,
                {
                    "model_repository": (self._scratch,),
                    "model_control_mode": "explicit",
                    "load_model": (model,),
                    "allow_http": False,
                    "allow_grpc": False,
                    "allow_metrics": False,
                    "exit_on_error": False,
                },
            )
        )
        await engine.start()
        try:
            failed = [entry for entry in engine.status() if entry.name == model and entry.state != "READY"]
            if failed:
                raise MeasurementError(f"the engine could not load model '{model}': {failed[0].reason}")
            return model_config.to_json(engine.plane.model_config(model, ""))
        finally:
            await engine.stop()

    def _link_models(self, directories: Mapping[str, Path]) -> None:
        """Make these models, and no others, the content of the engine's repository."""
        for entry in self._scratch.iterdir():
            entry.unlink()
        for model, directory in directories.items():
            (self._scratch / model).symlink_to(directory, target_is_directory=True)
