"""A run over the published headline that takes its time, for tests that kill its process.

Every measurement made is a line of
`measured.log`, written and synced before the journal hears of it.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from tests.analyzer.simulated import OfflineRunner, read_table, replayed
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.profile import Event, Profile
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.measurement import LoadPoint, Measurement
from tpx.analyzer.results.run import RunRecords
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.variants import OutputRepository
from tpx.options import build

ALEXNET: dict[str, Any] = {
    "name": "alexnet",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 0,
    "input": [{"name": "data_0", "data_type": "TYPE_FP32", "dims": [1, 3, 224, 224]}],
    "output": [{"name": "prob_1", "data_type": "TYPE_FP32", "dims": [1, 1000]}],
    "instance_group": [{"name": "alexnet", "count": 1, "kind": "KIND_GPU", "gpus": [0]}],
}


class SlowReplay(OfflineRunner):
    """A replay whose measurements take time and leave a trace of their own."""

    def __init__(self, directory: Path, pause_s: float) -> None:
        table = read_table(Path(__file__).parent / "headline.csv")
        super().__init__({"alexnet": ALEXNET}, replayed(table))
        self._log = os.open(directory / "measured.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._pause_s = pause_s

    async def measure(self, load: LoadPoint, *, windows: int = 0) -> Measurement:
        found = await super().measure(load)
        await asyncio.sleep(self._pause_s)
        os.write(self._log, f"{found.variant} {found.load}\n".encode())
        return found


def run(directory: Path, pause_s: float) -> None:
    """Begin the run of this directory, or go on with it."""
    path = directory / "run.jsonl"
    config = build(
        ProfileSpec, {"profile_models": (ModelToProfile(name="alexnet"),), "export_path": directory}
    )
    with Journal(path) as journal:
        begun = path.stat().st_size > 0
        earlier = RunRecords(read_last_run(path)) if begun else None
        repository = OutputRepository(directory / "output", None, keep=begun)
        trials = TrialRunner(SlowReplay(directory, pause_s), repository, monitoring_interval_s=1)
        asyncio.run(Profile(config, trials, journal, _ignore, earlier).run(("tpx",)))


def _ignore(event: Event) -> None:
    """Nobody watches."""
