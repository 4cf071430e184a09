"""A run over all its models: read the defaults, drive the search, record and report the outcomes."""

import asyncio
import importlib.metadata
import os
import platform
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from statistics import fmean

import tpx
from tpx.analyzer.machine import MachineType
from tpx.analyzer.objectives import unmeasured
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.spec import ModelGroup, groups_of, members_of, spec_of
from tpx.analyzer.results import journal as records
from tpx.analyzer.results.measurement import (
    Configuration,
    Measurement,
    Outcome,
    Trial,
    TrialFailure,
    Variant,
)
from tpx.analyzer.results.run import RunRecords
from tpx.analyzer.search.driver import SearchDriver
from tpx.analyzer.search.spec import Mode, SearchSpec
from tpx.analyzer.trial import Ahead, Known, Trials
from tpx.analyzer.variants import ModelFacts, configure, effective, facts_of, fingerprint
from tpx.errors import ServerLost, TpxError, UsageError

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "torch", "tensorrt", "protobuf", "uvloop")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """Event: a measurement of the `number`th of at most `configurations_at_most` configurations begins."""

    trial: Trial
    number: int
    configurations_at_most: int
    model_number: int = 1
    models: int = 1
    """Models of the run; a group measured together counts as one."""
    elapsed_ns: int
    remaining_ns: int | None
    """Estimated upper bound of the time left for the whole run; None until one configuration is finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """Event: a trial has ended, with its measurement or its failure."""

    trial: Trial
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStarted:
    """Event: a model is loaded for the first time, to read its default configuration."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlanned:
    """Event: the search begins, of one model or of several that are measured together."""

    model: str
    mode: Mode
    spec: SearchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Event: a message for the user."""

    text: str


Event = TrialStarted | TrialEnded | ModelStarted | ModelPlanned | Remark
Observer = Callable[[Event], None]

Read = dict[str, tuple[ModelFacts, dict[str, object]]]
"""Facts for the search and JSON of the effective default configuration, by model."""


async def read_group(
    config: ProfileSpec, group: ModelGroup, read_model: Callable[[str], Awaitable[records.ModelRead]]
) -> Read:
    """Read the facts and default of every model in a search, and of the models they are composed of."""
    found: Read = {}
    names = [model.name for model in group.models]
    while names:
        name = names.pop(0)
        read = await read_model(name)
        configure(Variant(models=(name,), name=name), read.config)
        found[name] = facts_of(name, read.config, gpu=read.gpu), read.config
        if len(found) == 1:
            names += members_of(config, group, found[name][0])
        names = [each for each in names if each not in found]
    return found


class Profile:
    """One run over all its models. The journal holds every result once `run` returns or is interrupted."""

    def __init__(
        self,
        config: ProfileSpec,
        trials: Trials,
        journal: records.Journal,
        observe: Observer,
        earlier: RunRecords | None = None,
        stop: asyncio.Event | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """`earlier` is the run to resume; once `stop` is set, the run ends after the current measurement."""
        self._config = config
        self._groups = groups_of(config)
        self._trials = trials
        self._journal = journal
        self._observe = observe
        self._earlier = earlier or RunRecords()
        self._named: list[Variant] = []
        self._measured = False
        self._stop = stop or asyncio.Event()
        self._progress = _Progress(len(self._groups), clock)

    async def run(self, command: tuple[str, ...]) -> None:
        """Search every model. Raises UsageError and the journal's errors; all other errors are recorded."""
        reason = ""
        try:
            self._journal.append(self._make_start_record(command))
            await self._measure_server()
            for number, group in enumerate(self._groups, 1):
                if not self._stop.is_set() and not self._earlier.models[group.name].unavailable:
                    self._progress.model_number = number
                    await self._profile_group(group)
        except ServerLost as exc:
            reason = exc.message
            self._observe(Remark(text=f"the run ends here: {reason}"))
        finally:
            await self._trials.close()
        self._journal.append(
            records.RunEnded(
                outcome="interrupted" if reason or self._stop.is_set() else "complete",
                elapsed_ns=self._earlier.elapsed_ns + self._progress.elapsed_ns,
                reason=reason,
            )
        )

    def _make_start_record(self, command: tuple[str, ...]) -> records.RunStarted | records.RunResumed:
        config = self._config
        if self._earlier.started is not None:
            return records.RunResumed(
                provenance=provenance(command, self._trials.machine), retry=self._earlier.retried
            )
        return records.RunStarted(
            schema=records.SCHEMA,
            models=tuple(group.names for group in self._groups),
            goals=config.goals,
            top=config.goal.num_configs_per_model,
            settings=config.as_settings(),
            provenance=provenance(command, self._trials.machine),
        )

    async def _measure_server(self) -> None:
        if self._earlier.server is not None:
            return
        try:
            server = await self._trials.server_only(self._config.watch.duration_seconds)
        except (UsageError, ServerLost):
            raise
        except TpxError as exc:
            self._observe(Remark(text=f"the server without models could not be measured: {exc.message}"))
            return
        if server is not None:
            self._journal.append(records.ServerMeasured(server=server))

    async def _profile_group(self, group: ModelGroup) -> None:
        """Search one group; if its models cannot be read or do not fit, go on with the next group."""
        read: Read = {}
        try:
            read = await read_group(self._config, group, self._read_model)
            mode, spec = spec_of(self._config, group, read)
            spec = replace(spec, named=(*self._earlier.named, *self._named))
            if self._earlier.started is None:
                self._observe(ModelPlanned(model=group.name, mode=mode, spec=spec))
            await self._search_group(group, SearchDriver(mode, spec), read)
        except TpxError as exc:
            unreadable = not read and not isinstance(exc, UsageError | ServerLost)
            if not unreadable and not (isinstance(exc, UsageError) and self._measured):
                raise
            failed = records.ModelFailed(
                model=group.name, reason=exc.message, log_tail=self._trials.log_tail()
            )
            self._journal.append(failed)
            self._observe(Remark(text=f"model '{group.name}' cannot be profiled: {exc.message}"))

    async def _read_model(self, model: str) -> records.ModelRead:
        """Return the model's own configuration, from the journal or from a server, and record it."""
        known = self._earlier.models[model].read
        if known is not None:
            return known
        self._observe(ModelStarted(model=model))
        config = effective(await self._trials.default_config(model))
        repository = self._config.models.model_repository
        read = records.ModelRead(
            model=model,
            config=config,
            gpu=bool(self._trials.machine.gpus),
            fingerprint="" if repository is None else fingerprint(repository / model),
        )
        self._journal.append(read)
        return read

    async def _search_group(self, group: ModelGroup, search: SearchDriver, read: Read) -> None:
        defaults = {name: default for name, (_, default) in read.items()}
        configurations: dict[str, Configuration] = {}
        decided = 0

        def configured(trial: Trial) -> Configuration:
            return configure(trial.variant, defaults.get(trial.variant.model, {}), defaults)

        def ahead(known: Known) -> Iterator[tuple[Callable[[], Configuration], Trial]]:
            for trial in search.expected(known):
                yield partial(configured, trial), trial

        while not self._stop.is_set():
            trial = search.ask()
            if trial is None:
                break
            configuration = configurations.get(trial.variant.name)
            if configuration is None:
                configuration = configured(trial)
                configurations[trial.variant.name] = configuration
                # a name identifies one change across all searches of the run
                self._named.append(trial.variant)
                if not self._earlier.knows(configuration):
                    self._journal.append(records.Configured(configuration=configuration))
            outcome = self._earlier.outcome(trial)
            if outcome is None:
                event = self._progress.started(
                    trial, len(configurations), search.history.configurations_at_most
                )
                self._observe(event)
                outcome = await self._measure_trial(configuration, trial, ahead)
            if isinstance(outcome, Measurement):
                self._check_objectives(group, outcome)
                self._measured = True
            search.tell(trial, outcome)
            decided = self._record_decisions(group.name, search, decided)
        self._record_decisions(group.name, search, decided)

    def _record_decisions(self, model: str, search: SearchDriver, kept: int) -> int:
        """Record the decisions from `kept` on that the journal lacks; return the total number."""
        for decision in search.history.decisions[kept:]:
            if not self._earlier.skips_decision(model):
                self._journal.append(records.Decided(model=model, decision=decision))
        return len(search.history.decisions)

    def _check_objectives(self, group: ModelGroup, measurement: Measurement) -> None:
        """Raise UsageError for an objective that is never measured, since it cannot rank configurations."""
        lacking = unmeasured(measurement, self._config.goals.of(*group.names))
        if lacking:
            why = " (no GPU could be read)" if lacking[0].startswith("gpu_") else ""
            raise UsageError(
                f"objective {lacking[0]} of model '{group.name}' was not measured{why}; leave it out"
            )

    async def _measure_trial(self, configuration: Configuration, trial: Trial, ahead: Ahead) -> Outcome:
        outcome = await self._trials.run(configuration, trial, ahead)
        if self._trials.prepared is not None:
            self._journal.append(self._trials.prepared)
        model = trial.variant.model
        self._journal.append(
            records.TrialFailed(model=model, failure=outcome)
            if isinstance(outcome, TrialFailure)
            else records.Measured(model=model, measurement=outcome)
        )
        self._observe(TrialEnded(trial=trial, outcome=outcome))
        return outcome


def provenance(command: Iterable[str], machine: MachineType) -> records.Provenance:
    """Return the command, the machine that measures, and the installed versions, read without imports."""
    host = machine.facts
    if hasattr(os, "getloadavg"):
        host["Load average at the start"] = f"{os.getloadavg()[0]:.2f} (1 min)"
    versions = {"tpx": tpx.__version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return records.Provenance(
        command=tuple(command),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions,
        host=host,
    )


class _Progress:
    """The progress of a run over several models, and the time left."""

    def __init__(self, models: int, clock: Callable[[], int]) -> None:
        self._models = models
        self.model_number = 0
        """Number of the current model, from 1."""
        self._clock = clock
        self._began_ns = clock()
        self._measured: list[str] = []
        """Configurations that this run itself measured, in order."""
        self._first_ns: int | None = None
        """Start of the first measurement; None before it."""
        self._sizes: dict[int, int] = {}
        """Maximum number of configurations in the search, by number of each model begun."""

    @property
    def elapsed_ns(self) -> int:
        return self._clock() - self._began_ns

    def started(self, trial: Trial, number: int, configurations_at_most: int) -> TrialStarted:
        """Return the event for a measurement of the model's `number`th configuration."""
        now_ns = self._clock()
        self._first_ns = now_ns if self._first_ns is None else self._first_ns
        if trial.variant.name not in self._measured:
            self._measured.append(trial.variant.name)
        self._sizes[self.model_number] = configurations_at_most
        finished, remaining_ns = len(self._measured) - 1, None
        if finished > 0:
            # a model that has not begun counts with the mean size of the others
            later = (self._models - self.model_number) * fmean(self._sizes.values())
            left = configurations_at_most - number + 0.5 + later
            remaining_ns = round((now_ns - self._first_ns) / (finished + 0.5) * left)
        return TrialStarted(
            trial=trial,
            number=number,
            configurations_at_most=configurations_at_most,
            model_number=self.model_number,
            models=self._models,
            elapsed_ns=now_ns - self._began_ns,
            remaining_ns=remaining_ns,
        )
