"""`tpx analyze plan`, and `profile --dry-run`: what would be measured, how much of it, and for how long."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tpx.analyzer.options import ProfileConfig
from tpx.analyzer.plan import (
    MOST_TRIALS,
    ModelPlan,
    Pace,
    Planned,
    PlanningRunner,
    RunPlan,
    pace_of,
    plan_of,
)
from tpx.analyzer.profile import Event, Profile, TrialEnded
from tpx.analyzer.reports.page import duration
from tpx.analyzer.results.journal import Journal, read_last_run
from tpx.analyzer.results.measurement import Load
from tpx.analyzer.results.run import Run
from tpx.analyzer.trial import TrialRunner
from tpx.analyzer.variants import OutputRepository
from tpx.cli.analyze_runs import read_with_warnings
from tpx.cli.exits import Exit
from tpx.cli.launching import open_runner
from tpx.perf.run import event_loop

CONFIGURATIONS_SHOWN = 60


def plan(argv: Sequence[str]) -> int:
    """`tpx analyze plan`, with the options of `profile`."""
    return show_plan(read_with_warnings(argv))


def show_plan(config: ProfileConfig) -> int:
    """Print the plan of a run: 0, or 1 where there is nothing to measure of some model."""
    pace = pace_of(
        interval_ms=config.measurement_interval,
        max_windows=config.max_trials,
        limit_s=config.perf_analyzer_timeout,
    )
    with Console(stderr=True).status("Reading the models' own configurations"):
        found = _planned(config, pace)
    for model in found.models:
        print(_model_text(model))
    print(_summary(config, found, pace))
    return Exit.FAILED if any(model.nothing for model in found.models) else Exit.OK


def _planned(config: ProfileConfig, pace: Pace) -> RunPlan:
    with tempfile.TemporaryDirectory(prefix="tpx-plan-") as scratch:
        place = Path(scratch)
        with asyncio.Runner(loop_factory=event_loop) as loop:
            loop.run(_follow(config, pace, place))
        return plan_of(Run.from_records(read_last_run(place / "run.jsonl")))


async def _follow(config: ProfileConfig, pace: Pace, place: Path) -> None:
    """The search over made up measurements, its journal in `place`."""
    count = 0

    def observe(event: Event) -> None:
        nonlocal count
        count += isinstance(event, TrialEnded)
        if count >= MOST_TRIALS:
            search.stop()

    trials = TrialRunner(
        PlanningRunner(open_runner(config), pace),
        OutputRepository(place / "output", None),
        monitoring_interval_s=config.monitoring_interval,
    )
    with Journal(place / "run.jsonl") as journal:
        search = Profile(config, trials, journal, observe, rehearsal=True)
        await search.run(("tpx", "analyze", "plan"))


def _model_text(model: ModelPlan) -> str:
    if model.nothing:
        return f"{model.model} cannot be profiled: {model.nothing}\n"
    count = len(model.configurations)
    lines = [
        f"{model.model}: at most {model.measurements} measurements of {count} "
        f"configuration{'s' if count != 1 else ''}, and {model.repetitions} final repetitions"
    ]
    loads = {_loads_text(each.loads) for each in model.configurations}
    alike = loads.pop() if len(loads) == 1 else ""
    if alike:
        lines.append(f"  each under {alike}")
    width = max((len(each.configuration.variant.name) for each in model.configurations), default=0)
    for each in model.configurations[:CONFIGURATIONS_SHOWN]:
        name = each.configuration.variant.name.ljust(width)
        own = "" if alike else _loads_text(each.loads)
        lines.append(f"  {name}  {_configuration_text(each):<48}  {own}".rstrip())
    if count > CONFIGURATIONS_SHOWN:
        lines.append(f"  ... and {count - CONFIGURATIONS_SHOWN} more")
    return "\n".join(lines) + "\n"


def _configuration_text(planned: Planned) -> str:
    configuration = planned.configuration
    parts = [configuration.instance_group, f"batches of up to {configuration.max_batch_size}"]
    if not configuration.max_batch_size:
        parts[1] = "no batches"
    if configuration.dynamic_batching:
        parts.append("dynamic batching")
    return ", ".join(parts)


def _loads_text(loads: Sequence[Load]) -> str:
    """`concurrency 1, 2, 4`, of each batch size."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for load in loads:
        groups.setdefault((load.kind.replace("_", " "), load.batch_sizes), []).append(
            "+".join(str(part.value) for part in load.members or (load,))
        )
    return "; ".join(
        f"{kind} {', '.join(values)}" + (f" with batch {'+'.join(map(str, sizes))}" if max(sizes) > 1 else "")
        for (kind, sizes), values in groups.items()
    )


def _summary(config: ProfileConfig, found: RunPlan, pace: Pace) -> str:
    count = found.measurements
    stable, longest = (duration(count * each) for each in (pace.stable_ns, pace.longest_ns))
    lines = [
        f"In all: at most {count} measurements, {stable} where they are stable at once, {longest} where none "
        "ever is; fewer where more load or larger batches bring nothing.",
        _server_text(config),
    ]
    if config.budget is not None:
        lines.append(f"The budget of {duration(round(config.budget * 1e9))} for each model ends it before.")
    if not found.complete:
        lines.append(f"The plan was followed for {MOST_TRIALS} measurements only: more would come.")
    return "\n".join(lines)


def _server_text(config: ProfileConfig) -> str:
    if config.triton_launch_mode == "remote":
        if config.reload_model_disable:
            return "The running server is measured as it is; nothing is loaded."
        return "Every configuration is loaded into the running server, which is never restarted."
    launches = {
        repr((model.triton_server_flags, model.triton_server_environment, model.triton_docker_args))
        for model in config.profile_models
    }
    times = "once" if len(launches) == 1 else f"{len(launches)} times, as models have options of their own"
    return (
        f"The server is started {times}; configurations are loaded into it while it runs, and it is "
        "restarted only after one that breaks it."
    )
