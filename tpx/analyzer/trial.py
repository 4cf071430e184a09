"""One trial: write the variant, serve it, apply the load and monitor it; an error becomes a TrialFailure.

A different execution provider, graph optimization level or precision may change a model's results; such a
variant is measured only once its outputs for seeded requests are within the tolerance of the default's. Of a
language model, the number of greedy answers that are the default's is recorded.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from tpx.analyzer.machine import HostWatch, MachineType, open_probes, this_machine
from tpx.analyzer.probes import ResourceProbe, Watch
from tpx.analyzer.results.journal import VariantPrepared
from tpx.analyzer.results.measurement import Configuration, Outcome, ServerOnly, Trial, TrialFailure, Variant
from tpx.analyzer.runners.outputs import Outputs, describe_answers, difference
from tpx.analyzer.runners.servers import Runner
from tpx.analyzer.variants import OutputRepository
from tpx.errors import MeasurementError, ServerLost, TpxError, UsageError

UNCERTAIN = frozenset({"kv_cache_type", "device", "n_gpu_layers", "kv_cache_dtype", "quantization", "dtype"})
"""Parameters of language models that may change what they answer."""


def may_answer_otherwise(variant: Variant) -> bool:
    """Return True if the variant changes settings that may affect the model's results."""
    parameters: Mapping[str, object] = variant.delta.get("parameters") or {}
    own = "optimization" in variant.delta or "default_model_filename" in variant.delta
    return own or not UNCERTAIN.isdisjoint(parameters) or any(map(may_answer_otherwise, variant.members))


ROUND_WINDOWS = 3
"""Windows of a measurement in a final round: their median survives one that was disturbed."""

Known = Callable[[Trial], Outcome | None]
"""Returns the outcome of a trial, or None if there is none yet."""
Ahead = Callable[[Known], Iterator[tuple[Callable[[], Configuration], Trial]]]
"""Yields the trials without an outcome that the search will probably ask for next, each with what makes its
configuration: few of them are measured.
"""


class Trials(Protocol):
    """Carries out trials: `TrialRunner` sequentially, `SideBySide` on several nodes."""

    machine: MachineType
    """The type of the machines that measure."""
    prepared: VariantPrepared | None
    """Record of how the last trial's configuration was loaded; None if it was loaded already."""

    async def default_config(self, model: str) -> dict[str, object]:
        """Return JSON of the model's effective default configuration. Raises TpxError if that fails."""
        ...

    async def server_only(self, duration_s: float) -> ServerOnly | None:
        """Monitor the server without a model for this time; return None if its process is not visible."""
        ...

    async def run(self, configuration: Configuration, trial: Trial, ahead: Ahead) -> Outcome:
        """Measure a configuration. Raises only UsageError and ServerLost, which would fail every trial."""
        ...

    def log_tail(self) -> tuple[str, ...]: ...

    async def close(self) -> None: ...


class TrialRunner:
    """Carries out trials sequentially; a configuration stays loaded until another is requested.

    Each final round loads it anew: loads of one configuration differ, and a round is to show by how much.
    """

    def __init__(
        self,
        runner: Runner,
        repository: OutputRepository,
        *,
        monitoring_interval_s: float,
        tolerance: float = 0.01,
        gpus: Sequence[str] | None = None,
    ) -> None:
        """`tolerance` is that of floats that a variant may change, relative to the greatest of the output;
        `gpus` of None monitors all.
        """
        self._gpus = gpus
        self._runner = runner
        self._tolerance = tolerance
        self._reference: dict[str, Outputs] = {}
        """Outputs of the defaults, by model."""
        self._faults: dict[str, str] = {}
        """Why outputs differ from the default's, by name of each compared variant; empty if they do not."""
        self._repository = repository
        self._interval_s = monitoring_interval_s
        self._served = ""
        self._round = 0
        """Final round in which it was loaded; 0 is the search."""
        self.machine = this_machine()
        self.prepared: VariantPrepared | None = None

    async def default_config(self, model: str) -> dict[str, object]:
        # the runner loads the default instead of the variant
        self._served = ""
        return await self._runner.default_config(model)

    def log_tail(self) -> tuple[str, ...]:
        server = self._runner.server
        return server.log_tail if server else ()

    async def run(self, configuration: Configuration, trial: Trial, ahead: Ahead | None = None) -> Outcome:  # noqa: ARG002
        started_ns = time.perf_counter_ns()
        self.prepared = None
        variant, load = configuration.variant.name, trial.load
        try:
            await self._serve(configuration, trial.round)
            await self._compare_outputs(configuration)
            server = self._runner.server
            host = HostWatch(server.pid if server else None)
            measured_ns = time.perf_counter_ns()
            async with Watch(self._probes, self._interval_s) as watch:
                measurement = await self._runner.measure(load, windows=ROUND_WINDOWS if trial.round else 0)
            took_ns = time.perf_counter_ns() - measured_ns
            usage = watch.usage
        except (UsageError, ServerLost):
            raise
        except TpxError as exc:
            self._served = ""  # the server's state is unknown: prepare the next trial from scratch
            return TrialFailure(
                variant=variant,
                load=load,
                round=trial.round,
                reason=exc.message,
                log_tail=self.log_tail(),
                duration_ns=time.perf_counter_ns() - started_ns,
                cost_ns=time.perf_counter_ns() - started_ns,
            )
        return replace(
            measurement,
            variant=variant,
            load=load,
            round=trial.round,
            memory=usage.memory or measurement.memory,
            gpus=usage.gpus or measurement.gpus,
            cpu_percent=usage.cpu_percent or measurement.cpu_percent,
            energy=usage.energy or measurement.energy,
            duration_ns=measurement.duration_ns or took_ns,
            cost_ns=measurement.cost_ns or time.perf_counter_ns() - started_ns,
            host=None if server is None or server.pid is None else host.use(),
        )

    async def server_only(self, duration_s: float) -> ServerOnly | None:
        self._served = ""
        await self._runner.prepare(None, self._repository.path)
        probes = self._probes
        if not probes:
            return None
        async with Watch(probes, self._interval_s) as watch:
            await asyncio.sleep(duration_s)
        usage = watch.usage
        return ServerOnly(memory=usage.memory, gpus=usage.gpus, energy=usage.energy)

    async def close(self) -> None:
        await self._runner.close()

    async def _serve(self, configuration: Configuration, number: int) -> None:
        """Load a configuration unless it is loaded already, in the same final round if it is in one."""
        name = configuration.variant.name
        if self._served == name and self._round == number:
            return
        started_ns = time.perf_counter_ns()
        if self._served == name:
            await self._runner.prepare(None, self._repository.path)
        self._served = ""
        done = await self._runner.prepare(configuration, self._repository.write(configuration))
        self._served, self._round = name, number
        if done is not None:
            self.prepared = VariantPrepared(
                model=configuration.variant.model,
                variant=name,
                how=done.how,
                why=done.why,
                duration_ns=time.perf_counter_ns() - started_ns,
            )

    async def _compare_outputs(self, configuration: Configuration) -> None:
        """Raise MeasurementError if the variant's outputs differ from the default's; tell it of answers."""
        variant = configuration.variant
        if not may_answer_otherwise(variant):
            return
        fault, models = self._faults.get(variant.name, ""), variant.models
        for model in () if variant.name in self._faults else models:
            if model not in self._reference:
                await self.default_config(model)
                self._reference[model] = await self._runner.outputs(model)
                await self._serve(configuration, self._round)
            outputs = await self._runner.outputs(model)
            told = describe_answers(self._reference[model], outputs)
            if told and self.prepared is not None:
                self.prepared = msgspec.structs.replace(self.prepared, answers=told)
            fault = fault or ("" if told else difference(self._reference[model], outputs, self._tolerance))
        self._faults[variant.name] = fault
        if fault:
            raise MeasurementError(f"{fault}: it does not return the same results as the default")

    @property
    def _probes(self) -> Sequence[ResourceProbe]:
        server = self._runner.server
        return () if server is None else open_probes(server.pid, server.metrics_url, self._gpus)
