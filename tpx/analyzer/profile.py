"""The life of a search: the default read, trials asked for, carried out, written down and told."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tpx.analyzer.asking import ModelGroup, groups_of, members_of, spec_of
from tpx.analyzer.fingerprint import fingerprint
from tpx.analyzer.monitors.gpu import gpu_names
from tpx.analyzer.objectives import unmeasured
from tpx.analyzer.options import ProfileConfig
from tpx.analyzer.provenance import provenance
from tpx.analyzer.results.journal import (
    SCHEMA,
    Configured,
    Decided,
    Failed,
    Journal,
    Measured,
    ModelFailed,
    ModelRead,
    Prepared,
    RunEnded,
    RunResumed,
    RunStarted,
    ServerMeasured,
)
from tpx.analyzer.results.measurement import (
    Configuration,
    Decision,
    Failure,
    Measurement,
    Outcome,
    Trial,
    Variant,
)
from tpx.analyzer.resume import Earlier
from tpx.analyzer.runners.base import Preparation
from tpx.analyzer.search.driver import Done, SearchDriver
from tpx.analyzer.trial import Bench
from tpx.analyzer.variants import ModelFacts, configure, effective, facts_of
from tpx.errors import ServerLost, TpxError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A measurement begins: the `number`th configuration of at most `configurations_at_most`."""

    trial: Trial
    number: int
    configurations_at_most: int
    elapsed_ns: int
    remaining_ns: int | None
    """At most, judged by the pace so far; None until one configuration is finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial is over, with its measurement or its failure."""

    trial: Trial
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStarted:
    """A model is loaded for the first time, to learn its default configuration."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something a person wants to know while it happens."""

    text: str


Event = TrialStarted | TrialEnded | ModelStarted | Remark
Observer = Callable[[Event], None]


class Profile:
    """One run over all its models. Everything found is in the journal when `run` returns or is cut off."""

    def __init__(
        self,
        config: ProfileConfig,
        bench: Bench,
        journal: Journal,
        observe: Observer,
        earlier: Earlier | None = None,
        *,
        rehearsal: bool = False,
    ) -> None:
        """`earlier` is the run in the same journal that goes on with this one; without it one begins. Of a
        rehearsal the measurements are made up, and lack figures that real ones have."""
        self._config = config
        self._earlier = earlier or Earlier()
        self._rehearsal = rehearsal
        self._bench = bench
        self._journal = journal
        self._observe = observe
        self._named: list[Variant] = []
        self._measured = False
        self._stop = asyncio.Event()
        self._started_ns = time.perf_counter_ns()

    def stop(self) -> None:
        """End the run after the measurement in progress."""
        self._stop.set()

    async def run(self, command: tuple[str, ...]) -> None:
        """Search every model. Raises UsageError and what the journal raises; the rest is written down."""
        reason = ""
        try:
            self._journal.append(self._start(command))
            await self._measure_server()
            for group in groups_of(self._config):
                if not self._stop.is_set():
                    await self._search_group(group)
        except ServerLost as exc:
            reason = exc.message
            self._observe(Remark(text=f"the run ends here: {reason}"))
        finally:
            await self._bench.close()
        self._journal.append(
            RunEnded(
                outcome="interrupted" if reason or self._stop.is_set() else "complete",
                elapsed_ns=self._earlier.elapsed_ns + time.perf_counter_ns() - self._started_ns,
                reason=reason,
            )
        )

    def _start(self, command: tuple[str, ...]) -> RunStarted | RunResumed:
        config = self._config
        if self._earlier.started is not None:
            return RunResumed(provenance=provenance(command), retry=self._earlier.retries)
        return RunStarted(
            schema=SCHEMA,
            models=tuple(group.name for group in groups_of(config)),
            goals=config.goals,
            top=config.num_configs_per_model,
            tolerance_percent=config.stability_percentage,
            settings=config.as_settings(),
            final_rounds=config.final_rounds,
            provenance=provenance(command),
        )

    async def _measure_server(self) -> None:
        if self._earlier.server_measured:
            return
        try:
            server = await self._bench.server_only(self._config.duration_seconds)
        except (UsageError, ServerLost):
            raise
        except TpxError as exc:
            self._observe(Remark(text=f"the server without models could not be measured: {exc.message}"))
            return
        if server is not None:
            self._journal.append(ServerMeasured(server=server))

    async def _search_group(self, group: ModelGroup) -> None:
        if group.name in self._earlier.unavailable:
            return
        try:
            await self._profile(group)
        except UsageError as exc:
            if not self._measured:
                raise
            self._give_up(group, exc)  # what does not go with one model is no end of what others showed

    def _give_up(self, group: ModelGroup, error: TpxError) -> None:
        tail = self._bench.log_tail()
        self._journal.append(ModelFailed(model=group.name, reason=error.message, log_tail=tail))
        self._observe(Remark(text=f"model '{group.name}' cannot be profiled: {error.message}"))

    async def _profile(self, group: ModelGroup) -> None:
        try:
            read = await self._read_all(group)
        except (UsageError, ServerLost):
            raise
        except TpxError as exc:
            self._give_up(group, exc)
            return
        mode, spec = spec_of(self._config, group, read)
        spec = replace(spec, named=(*self._earlier.named, *self._named))
        defaults = {name: config for name, (_, config) in read.items()}
        walk = _Walk(SearchDriver(mode, spec), self._started_ns)
        await self._search(walk, defaults)
        self._keep_decisions(group.name, walk)

    async def _read_all(self, group: ModelGroup) -> dict[str, tuple[ModelFacts, dict[str, Any]]]:
        """Facts and default of every model that a search is about, and of those that they are composed of."""
        found: dict[str, tuple[ModelFacts, dict[str, Any]]] = {}
        names = [model.name for model in group.models]
        while names:
            name = names.pop(0)
            read = await self._read(name)
            configure(Variant(model=name, name=name), read.config)
            found[name] = facts_of(name, read.config, gpu=read.gpu), read.config
            if len(found) == 1:
                names += members_of(self._config, group, found[name][0])
            names = [each for each in names if each not in found]
        return found

    async def _read(self, model: str) -> ModelRead:
        """The model's own configuration, from the journal or from a server."""
        known = self._earlier.models.get(model)
        if known is not None:
            return known
        self._observe(ModelStarted(model=model))
        config = effective(await self._bench.default_config(model))
        read = ModelRead(
            model=model, config=config, gpu=bool(gpu_names()), fingerprint=self._fingerprint(model)
        )
        self._journal.append(read)
        return read

    def _fingerprint(self, model: str) -> str:
        repository = self._config.model_repository
        return "" if repository is None else fingerprint(repository / model)

    async def _search(self, walk: "_Walk", defaults: dict[str, dict[str, Any]]) -> None:
        search = walk.search
        configurations: dict[str, Configuration] = {}
        while not self._stop.is_set():
            trial = search.ask()
            if isinstance(trial, Done):
                break
            configuration = configurations.get(trial.variant.name)
            if configuration is None:
                configuration = configure(trial.variant, defaults.get(trial.variant.model, {}), defaults)
                configurations[trial.variant.name] = configuration
                self._named.append(trial.variant)  # a name stands for one change, whichever search tries it
                if not self._earlier.knows(configuration):
                    self._journal.append(Configured(configuration=configuration))
            started = walk.started(trial)
            outcome = self._earlier.outcome(trial)
            if outcome is None:
                self._observe(started)
                outcome = await self._measure(configuration, trial)
            self._check_objectives(trial.variant.model, outcome)
            self._measured = self._measured or isinstance(outcome, Measurement)
            search.tell(trial, outcome)
            self._keep_decisions(trial.variant.model, walk)

    def _check_objectives(self, model: str, outcome: Outcome) -> None:
        """Raise UsageError for an objective that nothing measures: by it no configuration is better."""
        if self._rehearsal or isinstance(outcome, Failure):
            return
        lacking = unmeasured(outcome, self._config.goals.of(model))
        if lacking:
            why = " (no GPU could be read)" if lacking[0].startswith("gpu_") else ""
            raise UsageError(
                f"objective {lacking[0]} of model '{model}': nothing measured it{why}; leave it out"
            )

    def _keep_decisions(self, model: str, walk: "_Walk") -> None:
        for decision in walk.new_decisions():
            if not self._earlier.skips_decision(model):
                self._journal.append(Decided(model=model, decision=decision))

    async def _measure(self, configuration: Configuration, trial: Trial) -> Outcome:
        outcome = await self._bench.run(configuration, trial)
        preparation = self._bench.take_preparation()
        if preparation is not None:
            self._journal.append(_prepared(configuration, preparation))
        self._keep(trial.variant.model, outcome)
        self._observe(TrialEnded(trial=trial, outcome=outcome))
        return outcome

    def _keep(self, model: str, outcome: Outcome) -> None:
        if isinstance(outcome, Failure):
            self._journal.append(Failed(model=model, failure=outcome))
        else:
            self._journal.append(Measured(model=model, measurement=outcome))


def _prepared(configuration: Configuration, preparation: Preparation) -> Prepared:
    return Prepared(
        model=configuration.variant.model,
        variant=configuration.variant.name,
        how=preparation.how,
        why=preparation.why,
        duration_ns=preparation.duration_ns,
    )


class _Walk:
    """A search with what its progress line needs: how far it is and how long the rest may take."""

    def __init__(self, search: SearchDriver, started_ns: int) -> None:
        self.search = search
        self._started_ns = started_ns
        self._walk_started_ns = time.perf_counter_ns()
        self._variants: list[str] = []
        self._decisions_seen = 0

    def started(self, trial: Trial) -> TrialStarted:
        if trial.variant.name not in self._variants:
            self._variants.append(trial.variant.name)
        now_ns = time.perf_counter_ns()
        return TrialStarted(
            trial=trial,
            number=len(self._variants),
            configurations_at_most=self.search.configurations_at_most,
            elapsed_ns=now_ns - self._started_ns,
            remaining_ns=self._remaining_ns(now_ns),
        )

    def new_decisions(self) -> list[Decision]:
        fresh = list(self.search.decisions[self._decisions_seen :])
        self._decisions_seen += len(fresh)
        return fresh

    def _remaining_ns(self, now_ns: int) -> int | None:
        finished = len(self._variants) - 1
        if finished < 1:
            return None
        left = self.search.configurations_at_most - finished
        per_configuration_ns = (now_ns - self._walk_started_ns) / (finished + 0.5)
        return round(per_configuration_ns * (left - 0.5))
