"""`tpx analyze plan` and `profile --dry-run`: what would be measured, and how long it would take.

The searches run over measurements that always improve, so that they take every step they might take.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rich.console import Console

from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.measuring import MeasurementSpec
from tpx.analyzer.options.spec import groups_of, spec_of
from tpx.analyzer.probes import gpu_names
from tpx.analyzer.profile import ModelPlanned, read_group
from tpx.analyzer.results.journal import ModelRead
from tpx.analyzer.results.measurement import Decision, LoadPoint, Measurement, Trial, Variant
from tpx.analyzer.runners.servers import Runner
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.spec import Mode, SearchSpec
from tpx.analyzer.trial import ROUND_WINDOWS
from tpx.analyzer.variants import changed_parameters, configure, effective
from tpx.analyzer.verdict import plural
from tpx.cli.analyze_options import read_with_warnings
from tpx.cli.commands import Exit
from tpx.cli.launching import open_runner
from tpx.cli.messages import terminal_width
from tpx.errors import TpxError, UsageError
from tpx.perf.levels import Level
from tpx.perf.loops import event_loop
from tpx.perf.results import Estimates, LevelResult
from tpx.perf.statistics.intervals import Interval
from tpx.perf.statistics.summaries import summarize
from tpx.report.digits import duration
from tpx.report.strangers import wrapped
from tpx.report.text import Table

CONFIGURATIONS_SHOWN = 60
MOST_TRIALS = 400
"""Maximum trials of a planned search, so that a plan takes 2 s at most; it notes if more would follow."""
GROWTH = 1.1
LATENCY = summarize(np.array([1_000_000]))
WINDOW_SHARE = 1.2
"""Duration of a window with its warm-up, in measurement intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Time that one measurement takes, by its number of windows."""

    stable_ns: int
    """Time if the first window suffices."""
    longest_ns: int
    """Time if it takes every window."""
    repetition_ns: int
    """Time of a measurement in a final round."""

    def describe(self, searched: int, final: int) -> str:
        """Return the time of a search and its final repetitions."""
        stable, longest = (
            duration(searched * ns + final * self.repetition_ns) for ns in (self.stable_ns, self.longest_ns)
        )
        if stable == longest:
            return f"about {stable}"
        return f"{stable} if each is stable at once, {longest} if none ever is"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSearch:
    """The trials that the search of a model might ask for."""

    model: str
    trials: tuple[Trial, ...] = ()
    configurations_at_most: int = 0
    """Size of the space, if a budget allows only a part of it, which the results decide."""
    defaults: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """JSON of the models' own configurations."""
    reason: str
    """Reason why there is no trial."""
    complete: bool = True
    """False if more trials would follow."""
    left_out: tuple[Decision, ...] = ()
    """Decisions to leave out something that was asked for."""

    @property
    def variants(self) -> list[Variant]:
        return list({trial.variant.name: trial.variant for trial in self.trials}.values())

    @property
    def configurations(self) -> int:
        """Number of configurations that might be tried."""
        return max(len(self.variants), min(self.configurations_at_most, self.searched))

    @property
    def bound(self) -> str:
        """Words before the number of measurements."""
        return "at most" if self.complete else "possibly more than"

    @property
    def repeated(self) -> int:
        """Number of measurements in the final rounds."""
        return sum(trial.round > 0 for trial in self.trials)

    @property
    def searched(self) -> int:
        return len(self.trials) - self.repeated


def plan(argv: Sequence[str]) -> int:
    """`tpx analyze plan`, with the options of `profile`."""
    config = read_with_warnings(argv)
    return Exit.OK if config is None else show_plan(config)


def show_plan(config: ProfileSpec) -> int:
    """Print the plan of a run; return 1 if there is nothing to measure for some model, else 0."""
    pace = pace_of(config.measurement, config.most_windows)
    with (
        Console(stderr=True).status("Reading the models' own configurations"),
        asyncio.Runner(loop_factory=event_loop) as loop,
    ):
        searches = loop.run(plan_searches(config, open_runner(config), pace))
    width = terminal_width()
    for search in searches:
        print(format_search(search, width))
    print("\n".join(wrapped(line, width) for line in _summarize_plan(config, searches, pace)))
    return Exit.OK if all(search.trials for search in searches) else Exit.FAILED


async def plan_searches(config: ProfileSpec, runner: Runner, pace: Pace) -> list[PlannedSearch]:
    """Return what the search of each model, or of several measured together, might measure."""
    gpu = bool(gpu_names())
    planned: list[PlannedSearch] = []

    async def read_model(model: str) -> ModelRead:
        return ModelRead(model=model, config=effective(await runner.default_config(model)), gpu=gpu)

    try:
        for group in groups_of(config):
            try:
                mode, spec = spec_of(config, group, await read_group(config, group, read_model))
                named = tuple(trial.variant for search in planned for trial in search.trials)
                planned.append(simulate_search(mode, replace(spec, named=named), pace))
            except TpxError as exc:
                if isinstance(exc, UsageError) and not planned:
                    raise
                planned.append(PlannedSearch(model=group.name, reason=exc.message))
    finally:
        await runner.close()
    return planned


def simulate_search(mode: Mode, spec: SearchSpec, pace: Pace) -> PlannedSearch:
    """Run a search over measurements that improve each time, so that it takes every step it might take."""
    search, throughput = SearchDriver(mode, spec), 1.0
    trials: list[Trial] = []
    while len(trials) < MOST_TRIALS and (trial := search.ask()) is not None:
        trials.append(trial)
        throughput *= GROWTH
        measured = Measurement(
            variant=trial.variant.name,
            load=trial.load,
            round=trial.round,
            result=LevelResult(
                level=Level(trial.load.kind, trial.load.value),
                batch_size=trial.load.batch_size,
                throughput_infer_per_s=throughput,
                latency=LATENCY,
                estimates=Estimates(
                    throughput=Interval(value=throughput, low=throughput * 0.99, high=throughput * 1.01),
                    latency=(),
                ),
            ),
            duration_ns=pace.repetition_ns if trial.round else pace.stable_ns,
            cost_ns=pace.repetition_ns if trial.round else pace.stable_ns,
        )
        search.tell(trial, measured)
    decisions = search.history.decisions
    return PlannedSearch(
        model=spec.facts.model,
        trials=tuple(trials),
        configurations_at_most=search.history.space_size if search.history.spent else 0,
        defaults=spec.defaults,
        reason=decisions[0].text if decisions else "",
        complete=search.ask() is None,
        left_out=tuple(search.history.left_out),
    )


def pace_of(measurement: MeasurementSpec, most_windows: int) -> Pace:
    """Return the durations of a run's measurements, each of at most so many windows."""
    interval_ns = measurement.measurement_interval * 1e6
    window_ns = interval_ns * WINDOW_SHARE
    limit_ns = measurement.perf_analyzer_timeout * 1e9
    return Pace(
        stable_ns=round(min(limit_ns, window_ns)),
        longest_ns=round(min(limit_ns, most_windows * window_ns)),
        repetition_ns=round(min(limit_ns, window_ns + (ROUND_WINDOWS - 1) * interval_ns)),
    )


def outlook(planned: ModelPlanned, config: ProfileSpec) -> str:
    """Return a sentence on what the search of a model may measure, and how long that takes."""
    pace = pace_of(config.measurement, config.most_windows)
    search = simulate_search(planned.mode, planned.spec, pace)
    measurements = plural(search.searched, "measurement")
    text = (
        f"{search.model}: {search.bound} {measurements} of "
        f"{plural(search.configurations, 'configuration')} and "
        f"{plural(search.repeated, 'final repetition')}, {pace.describe(search.searched, search.repeated)}"
    )
    budget = config.budget.budget
    return (
        text if budget is None else f"{text}; the budget of {duration(round(budget * 1e9))} may end it sooner"
    )


def format_search(search: PlannedSearch, width: int | None) -> str:
    """Return the configurations and loads of one model's search, and what it leaves out."""
    if not search.trials:
        return f"{search.model} cannot be profiled: {search.reason}\n"
    count = search.configurations
    title = (
        f"{search.model}: {search.bound} {search.searched} measurements of "
        f"{plural(count, 'configuration')}, and {search.repeated} final repetitions"
    )
    rows: list[tuple[str, ...]] = []
    for variant in search.variants[:CONFIGURATIONS_SHOWN]:
        own = configure(variant, search.defaults.get(variant.model, {}), search.defaults)
        most = own.max_batch_size
        parts = [own.instance_group, f"batches of up to {most}" if most else "no batches"]
        parts += ["dynamic batching"] * own.dynamic_batching
        parts += [f"{name} {value}" for name, value in changed_parameters(variant).items()]
        loads = [t.load for t in search.trials if t.variant == variant and not t.round]
        rows.append((variant.name, ", ".join(parts), _format_loads(loads)))
    lines = [title]
    headers: tuple[str, ...] = ("Configuration", "Settings", "Loads")
    if len({loads for *_, loads in rows}) == 1:
        lines.append(f"  each under {rows[0][2]}")
        headers, rows = headers[:2], [row[:2] for row in rows]
    table = Table(title="", headers=headers, rows=tuple(rows), padding=1)
    left = f"... and {count - len(rows)} more\n" if count > len(rows) else ""
    parts = [*(wrapped(line, width) for line in lines), table.to_console(width), left]
    parts += [f"{wrapped(line, width)}\n" for line in _describe_left_out(search.left_out)]
    return "\n".join(parts)


def _describe_left_out(decisions: Iterable[Decision]) -> list[str]:
    """Return a line per reason, with the configurations that it concerns."""
    concerned: dict[str, list[str]] = {}
    for decision in decisions:
        concerned.setdefault(decision.text, []).append(decision.variant)
    return [
        f"{text} ({names[0]}{f' and {len(names) - 1} more' if names[1:] else ''})"
        for text, names in concerned.items()
    ]


def _format_loads(loads: Iterable[LoadPoint]) -> str:
    """Return text such as `concurrency 1, 2, 4`, per batch size."""
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for load in loads:
        groups.setdefault((load.kind.replace("_", " "), load.batch_sizes), []).append(
            "+".join(str(part.value) for part in load.members or (load,))
        )
    return "; ".join(
        f"{kind} {', '.join(values)}" + (f" with batch {'+'.join(map(str, sizes))}" if max(sizes) > 1 else "")
        for (kind, sizes), values in groups.items()
    )


def _summarize_plan(config: ProfileSpec, searches: Sequence[PlannedSearch], pace: Pace) -> list[str]:
    searched = sum(search.searched for search in searches)
    final = sum(search.repeated for search in searches)
    cut = [search for search in searches if not search.complete]
    bound = cut[0].bound if cut else "at most"
    lines = [
        f"In total: {bound} {searched + final} measurements, {pace.describe(searched, final)}; fewer if more "
        "load or larger batches gain nothing.",
        _describe_server(config),
    ]
    if config.budget.budget is not None:
        lines.append(
            f"The budget of {duration(round(config.budget.budget * 1e9))} for each model may end it sooner."
        )
    if cut:
        names = ", ".join(search.model for search in cut)
        lines.append(
            f"The plan of {names} was followed for {MOST_TRIALS} measurements only: more would come."
        )
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
