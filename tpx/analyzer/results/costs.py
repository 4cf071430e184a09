"""Costs of an inference, in joules and in money: of a measurement alone, and with what the run knows of the
machine."""

from dataclasses import dataclass

from tpx.analyzer.results.measurement import EnergyUse, Measurement, ServerOnly

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


def joules_per_inference(measurement: Measurement, idle: EnergyUse | None = None) -> float | None:
    """Mean power over inferences a second; None where no power is known.

    It is the whole machine's, with the load generator where that is on it. `idle` is what the machine used
    with a server that did nothing: its power is taken off.
    """
    watts = None if measurement.energy is None else measurement.energy.watts
    if watts is None or measurement.throughput <= 0:
        return None
    if idle is not None and idle.watts is not None:
        watts = max(0.0, watts - idle.watts)
    return watts / measurement.throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Facts beside a measurement that its costs depend on."""

    per_hour: float | None = None
    """Of the machine, in any currency; None is not known."""
    idle: ServerOnly | None = None
    """The server without models: memory and power that are not the model's."""

    def joules_above_idle(self, measurement: Measurement) -> float | None:
        """Return the joules of an inference, without what an idle machine takes."""
        idle = self.idle.energy if self.idle else None
        return None if idle is None or idle.watts is None else joules_per_inference(measurement, idle)

    def cost_per_million(self, measurement: Measurement) -> float | None:
        """Return the cost of a million inferences on a machine with this price that is as busy as it was
        measured."""
        if self.per_hour is None or measurement.throughput <= 0:
            return None
        return self.per_hour / SECONDS_PER_HOUR / measurement.throughput * MILLION

    def gpu_above_idle_mb(self, measurement: Measurement) -> float | None:
        """GPU memory beyond that of the server without models."""
        if not measurement.gpus or self.idle is None or not self.idle.gpus:
            return None
        used = sum(gpu.used_bytes for gpu in measurement.gpus)
        return (used - sum(gpu.used_bytes for gpu in self.idle.gpus)) / 1e6
