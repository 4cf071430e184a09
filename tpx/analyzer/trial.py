"""One trial: write the variant, serve it, apply the load and monitor it; an error becomes a TrialFailure.

A different execution provider, graph optimization level or precision may change a model's results; such a
variant is measured only once its outputs for seeded requests are within the tolerance of the default's.
"""

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tpx.analyzer.machine import HostWatch, MachineType, open_probes, this_machine
from tpx.analyzer.probes import ResourceProbe, Watch
from tpx.analyzer.results.journal import VariantPrepared
from tpx.analyzer.results.measurement import Configuration, Outcome, ServerOnly, Trial, TrialFailure, Variant
from tpx.analyzer.runners.servers import Runner
from tpx.analyzer.variants import OutputRepository
from tpx.errors import MeasurementError, ServerLost, TpxError, UsageError
from tpx.protocol.tensors import Array

REQUESTS, STRING_LENGTH, TIMEOUT_S = 3, 8, 30.0

Answers = Sequence[Mapping[str, Array]]
"""Outputs by name, one mapping per request."""

_INTEGERS = {f"TYPE_{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Settings for comparing outputs."""

    tolerance: float = 0.01
    """Tolerance for floats, relative to the output's greatest magnitude; other types must match exactly."""
    seed: int = 0
    shapes: Mapping[str, Sequence[int]] | None = None
    """Shapes of dynamic inputs by name, without the batch dimension; unlisted dimensions are 1."""


def may_answer_otherwise(variant: Variant) -> bool:
    """Return True if the variant changes settings that may affect the model's results."""
    return "optimization" in variant.delta or any(map(may_answer_otherwise, variant.members))


def requests_of(config: Mapping[str, Any], gate: Gate) -> list[dict[str, Any]]:
    """Return requests as protocol JSON for a model with this configuration, the same for the same seed."""
    chance = np.random.default_rng(gate.seed)
    batch = [1] if int(config.get("max_batch_size", 0)) > 0 else []
    found = []
    for _ in range(REQUESTS):
        inputs = []
        for each in config.get("input", ()):
            given_dims = list((gate.shapes or {}).get(each["name"], ()))
            dims = given_dims or [max(1, int(d)) for d in each.get("dims", ())]
            kind, count = str(each["data_type"]), int(np.prod(dims, dtype=np.int64))
            if kind == "TYPE_STRING":
                digits = chance.integers(0, 10, (count, STRING_LENGTH))
                data: list[object] = ["".join(map(str, each)) for each in digits]
            elif kind == "TYPE_BOOL":
                data = chance.integers(0, 2, count).astype(bool).tolist()
            elif kind in _INTEGERS:
                data = chance.integers(0, 10, count).tolist()
            else:
                data = chance.random(count).tolist()
            datatype = "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_")
            shape = batch + dims
            inputs.append({"name": each["name"], "shape": shape, "datatype": datatype, "data": data})
        found.append({"inputs": inputs})
    return found


async def ask(address: str, model: str, requests: Sequence[Mapping[str, Any]]) -> Answers:
    """Return the model's outputs over HTTP from host:port. Raises MeasurementError with its message."""
    host, _, port = address.rpartition(":")

    def request_outputs(request: Mapping[str, Any]) -> dict[str, Array]:
        connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"/v2/models/{model}/infer", body=json.dumps(request).encode())
            response = connection.getresponse()
            body = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise MeasurementError(f"the responses of '{model}' could not be compared: {exc}") from exc
        finally:
            connection.close()
        if response.status != 200:
            raise MeasurementError(f"the responses of '{model}' could not be compared: {body.get('error')}")
        found = {}
        for output in body["outputs"]:
            kind = np.float64 if str(output["datatype"]).startswith(("FP", "BF")) else np.object_
            found[output["name"]] = np.asarray(output["data"], dtype=kind).reshape(output["shape"])
        return found

    return await asyncio.to_thread(lambda: [request_outputs(request) for request in requests])


def difference(reference: Answers, answers: Answers, gate: Gate) -> str:
    """Describe a difference beyond the tolerance; return an empty string if there is none."""
    for actual, expected in zip(answers, reference, strict=True):
        missing = sorted(expected.keys() - actual.keys())
        if missing:
            return f"its answers lack output '{missing[0]}'"
        for name, wanted in expected.items():
            found = actual[name]
            if found.shape != wanted.shape:
                return f"output '{name}' has shape {list(found.shape)}, the default's {list(wanted.shape)}"
            reason = _describe_difference(wanted, found, gate.tolerance)
            if reason:
                return f"output '{name}' {reason}"
    return ""


def _describe_difference(wanted: Array, found: Array, tolerance: float) -> str:
    if not np.issubdtype(wanted.dtype, np.floating):
        differing = int((wanted != found).sum())
        return f"differs from the default's in {differing} of {wanted.size} elements" if differing else ""
    if not wanted.size:
        return ""
    if not (np.isfinite(wanted) == np.isfinite(found)).all():
        return "is not finite where the default's is, or the other way round"
    finite = np.isfinite(wanted)
    # an all-zero output is compared by absolute difference
    scale = float(np.abs(wanted[finite]).max(initial=0.0)) or 1.0
    worst = float(np.abs(wanted[finite] - found[finite]).max(initial=0.0)) / scale
    if worst <= tolerance:
        return ""
    return f"differs from the default's by {worst:.2%} of its greatest value (allowed: {tolerance:.2%})"


Known = Callable[[Trial], Outcome | None]
"""Returns the outcome of a trial, or None if there is none yet."""
Ahead = Callable[[Known], Iterator[tuple[Configuration, Trial]]]
"""Yields the trials without an outcome that the search will probably ask for next."""


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
    """Carries out trials sequentially; a configuration stays loaded until another is requested."""

    def __init__(
        self,
        runner: Runner,
        repository: OutputRepository,
        *,
        monitoring_interval_s: float,
        gate: Gate | None = None,
        gpus: Sequence[str] | None = None,
    ) -> None:
        """`gate` defines how to compare outputs that a variant may change; `gpus` of None monitors all."""
        self._gpus = gpus
        self._runner = runner
        self._gate = gate or Gate()
        self._reference: dict[str, tuple[list[dict[str, Any]], Answers]] = {}
        self._faults: dict[str, str] = {}
        """Why outputs differ from the default's, by name of each compared variant; empty if they do not."""
        self._repository = repository
        self._interval_s = monitoring_interval_s
        self._served = ""
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
            await self._serve(configuration)
            await self._compare_outputs(configuration)
            server = self._runner.server
            host = HostWatch(server.pid if server else None)
            measured_ns = time.perf_counter_ns()
            async with Watch(self._probes, self._interval_s) as watch:
                measurement = await self._runner.measure(load, one_window=trial.round > 0)
            took_ns = time.perf_counter_ns() - measured_ns
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
            memory=watch.usage.memory or measurement.memory,
            gpus=watch.usage.gpus or measurement.gpus,
            cpu_percent=watch.usage.cpu_percent or measurement.cpu_percent,
            energy=watch.usage.energy or measurement.energy,
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
        return ServerOnly(memory=watch.usage.memory, gpus=watch.usage.gpus, energy=watch.usage.energy)

    async def close(self) -> None:
        await self._runner.close()

    async def _serve(self, configuration: Configuration) -> None:
        name = configuration.variant.name
        if self._served == name:
            return
        self._served = ""
        started_ns = time.perf_counter_ns()
        done = await self._runner.prepare(configuration, self._repository.write(configuration))
        self._served = name
        if done is not None:
            self.prepared = VariantPrepared(
                model=configuration.variant.model,
                variant=name,
                how=done.how,
                why=done.why,
                duration_ns=time.perf_counter_ns() - started_ns,
            )

    async def _compare_outputs(self, configuration: Configuration) -> None:
        """Raise MeasurementError if the variant's outputs differ from the default's."""
        variant = configuration.variant
        if not may_answer_otherwise(variant) or not self._http_address:
            return
        fault, models = self._faults.get(variant.name, ""), variant.model.split(",")
        for model in () if variant.name in self._faults else models:
            if model not in self._reference:
                requests = requests_of(await self.default_config(model), self._gate)
                self._reference[model] = requests, await ask(self._http_address, model, requests)
                await self._serve(configuration)
            requests, wanted = self._reference[model]
            fault = fault or difference(wanted, await ask(self._http_address, model, requests), self._gate)
        self._faults[variant.name] = fault
        if fault:
            raise MeasurementError(f"{fault}: it does not return the same results as the default")

    @property
    def _probes(self) -> Sequence[ResourceProbe]:
        server = self._runner.server
        return () if server is None else open_probes(server.pid, server.metrics_url, self._gpus)

    @property
    def _http_address(self) -> str:
        server = self._runner.server
        return server.http_address if server else ""
