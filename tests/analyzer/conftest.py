"""Runs of the analyzer over recorded tables: the whole of it but a server."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.analyzer.simulated import OfflineRunner, read_table, replayed
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.profile import Event, Profile
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.measurement import LoadPoint, Measurement, Variant
from tpx.analyzer.results.run import Run
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.variants import OutputRepository
from tpx.options import build

HEADLINE = Path(__file__).parent / "headline.csv"
"""Triton's published walkthrough of AlexNet: its four published rows and the concurrencies of its default are
as printed there; the points between are filled in so that every printed figure comes out."""

ALEXNET: dict[str, Any] = {
    "name": "alexnet",
    "platform": "onnxruntime_onnx",
    "max_batch_size": 0,
    "input": [{"name": "data_0", "data_type": "TYPE_FP32", "dims": [1, 3, 224, 224]}],
    "output": [{"name": "prob_1", "data_type": "TYPE_FP32", "dims": [1, 1000]}],
    "instance_group": [{"name": "alexnet", "count": 1, "kind": "KIND_GPU", "gpus": [0]}],
}

Replay = Callable[..., Run]


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    """Profile `alexnet` over a table of measurements, or what measures; keywords are options of the run."""

    def run(
        recorded: Iterable[Measurement] | Callable[[Variant, LoadPoint], Measurement] | None = None,
        *,
        default: dict[str, Any] | None = None,
        stop_after: int | None = None,
        **options: Any,
    ) -> Run:
        measure = recorded
        if not callable(measure):
            measure = replayed(read_table(HEADLINE) if measure is None else measure)
        config = build(
            ProfileSpec,
            {"profile_models": (ModelToProfile(name="alexnet"),), "export_path": tmp_path, **options},
        )
        runner = OfflineRunner({"alexnet": default or ALEXNET}, measure)
        trials = TrialRunner(
            runner, OutputRepository(tmp_path / "output", None, override=True), monitoring_interval_s=1
        )
        events: list[Event] = []
        stop = asyncio.Event()
        with Journal(tmp_path / "results" / "run.jsonl") as journal:

            def observe(event: Event) -> None:
                events.append(event)
                if stop_after is not None and len(events) > 2 * stop_after:
                    stop.set()

            profile = Profile(config, trials, journal, observe, stop=stop)
            asyncio.run(profile.run(("tpx", "analyze", "profile")))
        return Run.from_records(read_last_run(tmp_path / "results" / "run.jsonl"))

    return run
