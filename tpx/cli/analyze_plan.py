"""`tpx analyze plan` and `profile --dry-run`: what would be measured, and how long it would take.

The run itself is executed with a runner whose measurements always improve, so that the search takes
every step it might take.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.measuring import MeasurementSpec
from tpx.analyzer.profile import Event, ModelPlanned, Profile, TrialEnded
from tpx.analyzer.reports.page import duration
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.measurement import Configuration, Latency, LoadPoint, Measurement, Range
from tpx.analyzer.results.run import ModelRun, Run, VariantRun
from tpx.analyzer.runners.load import MOST_WINDOWS
from tpx.analyzer.runners.servers import Runner
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.variants import OutputRepository
from tpx.analyzer.verdict import plural
from tpx.cli.analyze_options import read_with_warnings
from tpx.cli.commands import Exit
from tpx.cli.launching import open_runner
from tpx.cli.messages import terminal_width
from tpx.perf.loops import event_loop
from tpx.report.text import Table, wrapped

CONFIGURATIONS_SHOWN = 60
MOST_TRIALS = 3000
"""Maximum trials of a plan, which notes if more would follow."""
GROWTH = 1.1
P99_NS = 1_000_000
WINDOW_SHARE = 1.2
"""Duration of a window with its warm-up, in measurement intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Time that one measurement takes, by its number of windows."""

    stable_ns: int
    """Time if the first window suffices."""
    longest_ns: int
    """Time if it takes every window."""

    def describe(self, searched: int, final: int) -> str:
        """Return the time of a search and its final repetitions, which are single windows."""
        stable, longest = (
            duration(searched * ns + final * self.stable_ns) for ns in (self.stable_ns, self.longest_ns)
        )
        return f"{stable} if each is stable at once, {longest} if none ever is"


def plan(argv: Sequence[str]) -> int:
    """`tpx analyze plan`, with the options of `profile`."""
    return show_plan(read_with_warnings(argv))


def show_plan(config: ProfileSpec) -> int:
    """Print the plan of a run; return 1 if there is nothing to measure for some model, else 0."""
    pace = pace_of(config.measurement)
    with (
        Console(stderr=True).status("Reading the models' own configurations"),
        tempfile.TemporaryDirectory(prefix="tpx-plan-") as scratch,
    ):
        with asyncio.Runner(loop_factory=event_loop) as loop:
            loop.run(_simulate_search(config, pace, Path(scratch)))
        found = Run.from_records(read_last_run(Path(scratch) / "run.jsonl"))
    width = terminal_width()
    for model in found.models:
        print(_format_model(model, width))
    print("\n".join(wrapped(line, width) for line in _summarize_plan(config, found, pace)))
    return Exit.OK if all(model.measured for model in found.models) else Exit.FAILED


async def _simulate_search(config: ProfileSpec, pace: Pace, place: Path) -> None:
    """Run the search over invented measurements, with its journal in `place`."""
    count = 0

    def observe(event: Event) -> None:
        nonlocal count
        count += isinstance(event, TrialEnded)
        if count >= MOST_TRIALS:
            search.stop()

    trials = TrialRunner(
        PlanningRunner(open_runner(config), pace),
        OutputRepository(place / "output", None),
        monitoring_interval_s=config.watch.monitoring_interval,
    )
    with Journal(place / "run.jsonl") as journal:
        search = Profile(config, trials, journal, observe, rehearsal=True)
        await search.run(("tpx", "analyze", "plan"))


def pace_of(measurement: MeasurementSpec) -> Pace:
    """Return the durations of a run's measurements."""
    window_ns = measurement.measurement_interval * WINDOW_SHARE * 1e6
    limit_ns = measurement.perf_analyzer_timeout * 1e9
    return Pace(
        stable_ns=round(min(limit_ns, window_ns)),
        longest_ns=round(min(limit_ns, (measurement.max_trials or MOST_WINDOWS) * window_ns)),
    )


def outlook(planned: ModelPlanned, config: ProfileSpec) -> str:
    """Return a sentence on what the search of a model may measure, and how long that takes."""
    pace = pace_of(config.measurement)
    search = SearchDriver(planned.mode, planned.spec)
    made_up = MadeUp(pace)
    configurations, count, final = set(), 0, 0
    while count < MOST_TRIALS and (trial := search.ask()) is not None:
        configurations.add(trial.variant.name)
        count += 1
        final += trial.round > 0
        measured = made_up.measurement(trial.load)
        search.tell(trial, replace(measured, variant=trial.variant.name, round=trial.round))
    text = (
        f"{planned.model}: at most {plural(count - final, 'measurement')} of "
        f"{plural(len(configurations), 'configuration')} and {plural(final, 'final repetition')}, "
        f"{pace.describe(count - final, final)}"
    )
    budget = config.budget.budget
    return text if budget is None else f"{text}; the budget of {duration(round(budget * 1e9))} ends it before"


@dataclass(slots=True)
class MadeUp:
    """Measurements that improve each time, so that a search takes every step it might take."""

    _pace: Pace
    _throughput: float = 1.0

    def measurement(self, load: LoadPoint) -> Measurement:
        """Return the next measurement."""
        self._throughput *= GROWTH
        value = self._throughput
        return Measurement(
            variant="",
            load=load,
            throughput=value,
            latency=Latency(avg_ns=P99_NS, p50_ns=P99_NS, p90_ns=P99_NS, p95_ns=P99_NS, p99_ns=P99_NS),
            throughput_range=Range(low=value * 0.99, high=value * 1.01),
            duration_ns=self._pace.stable_ns,
            cost_ns=self._pace.stable_ns,
        )


class PlanningRunner:
    """Implements Runner with the configurations of a real runner and made-up measurements."""

    def __init__(self, runner: Runner, pace: Pace) -> None:
        self._runner = runner
        self._made_up = MadeUp(pace)

    @property
    def server(self) -> None:
        return None

    async def default_config(self, model: str) -> dict[str, object]:
        return await self._runner.default_config(model)

    async def prepare(self, configuration: Configuration | None, directory: Path) -> None:
        """Do nothing: a plan loads no model."""

    async def measure(self, load: LoadPoint, *, one_window: bool = False) -> Measurement:  # noqa: ARG002
        return self._made_up.measurement(load)

    async def close(self) -> None:
        await self._runner.close()


def repetitions(model: ModelRun) -> int:
    """Return the number of measurements in the final rounds."""
    return sum(len(variant.repetitions) for variant in model.variants)


def _format_model(model: ModelRun, width: int | None) -> str:
    if not model.measured:
        return f"{model.model} cannot be profiled: {model.failure_reason}\n"
    count = len(model.variants)
    title = (
        f"{model.model}: at most {model.measurement_count} measurements of {count} "
        f"configuration{'s' if count != 1 else ''}, and {repetitions(model)} final repetitions"
    )
    rows: list[tuple[str, ...]] = []
    for each in model.variants[:CONFIGURATIONS_SHOWN]:
        most = each.configuration.max_batch_size
        parts = [each.configuration.instance_group, f"batches of up to {most}" if most else "no batches"]
        parts += ["dynamic batching"] * each.configuration.dynamic_batching
        rows.append((each.variant.name, ", ".join(parts), _format_loads(each)))
    lines = [title]
    headers: tuple[str, ...] = ("Configuration", "Settings", "Loads")
    if len({loads for *_, loads in rows}) == 1:
        lines.append(f"  each under {rows[0][2]}")
        headers, rows = headers[:2], [row[:2] for row in rows]
    table = Table(title="", headers=headers, rows=tuple(rows), padding=1)
    left = f"... and {count - CONFIGURATIONS_SHOWN} more\n" if count > CONFIGURATIONS_SHOWN else ""
    return "\n".join([*(wrapped(line, width) for line in lines), table.to_console(width), left])


def _format_loads(variant: VariantRun) -> str:
    """Return text such as `concurrency 1, 2, 4`, per batch size."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for load in (measured.load for measured in variant.measurements):
        groups.setdefault((load.kind.replace("_", " "), load.batch_sizes), []).append(
            "+".join(str(part.value) for part in load.members or (load,))
        )
    return "; ".join(
        f"{kind} {', '.join(values)}" + (f" with batch {'+'.join(map(str, sizes))}" if max(sizes) > 1 else "")
        for (kind, sizes), values in groups.items()
    )


def _summarize_plan(config: ProfileSpec, found: Run, pace: Pace) -> list[str]:
    searched = sum(model.measurement_count for model in found.models)
    final = sum(map(repetitions, found.models))
    lines = [
        f"In total: at most {searched + final} measurements, {pace.describe(searched, final)}; fewer if more "
        "load or larger batches gain nothing.",
        _describe_server(config),
    ]
    if config.budget.budget is not None:
        lines.append(
            f"The budget of {duration(round(config.budget.budget * 1e9))} for each model ends it before."
        )
    if found.outcome != "complete":
        lines.append(f"The plan was followed for {MOST_TRIALS} measurements only: more would come.")
    return lines


def _describe_server(config: ProfileSpec) -> str:
    if config.server.triton_launch_mode == "remote":
        if config.server.reload_model_disable:
            return "The running server is measured as it is; nothing is loaded."
        return "Every configuration is loaded into the running server, which is never restarted."
    launches = {
        repr((model.triton_server_flags, model.triton_server_environment, model.triton_docker_args))
        for model in config.models.profile_models
    }
    times = "once" if len(launches) == 1 else f"{len(launches)} times, as models have options of their own"
    return (
        f"The server is started {times}; configurations are loaded into it while it runs, and it is "
        "restarted only after one that breaks it."
    )
