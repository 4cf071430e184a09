"""The cost of an inference in joules and in money, from a measurement and from what the run knows of
the machine.
"""

from dataclasses import dataclass

from tpx.analyzer.results.measurement import EnergyUse, Measurement, ServerOnly

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


def joules_per_inference(measurement: Measurement, idle: EnergyUse | None = None) -> float | None:
    """Return mean power divided by inferences per second; None if the power is unknown.

    The power is the whole machine's, including the load generator if it runs there. `idle` is the
    energy use with an idle server, whose power is subtracted.
    """
    watts = None if measurement.energy is None else measurement.energy.watts
    if watts is None or measurement.throughput <= 0:
        return None
    if idle is not None and idle.watts is not None:
        watts = max(0.0, watts - idle.watts)
    return watts / measurement.throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Values besides a measurement that its costs depend on."""

    per_hour: float | None = None
    """Price of the machine per hour, in any currency; None if unknown."""
    idle: ServerOnly | None = None
    """The server without models: memory and power to subtract."""

    def joules_above_idle(self, measurement: Measurement) -> float | None:
        """Return the joules per inference above the idle machine's."""
        idle = self.idle.energy if self.idle else None
        return None if idle is None or idle.watts is None else joules_per_inference(measurement, idle)

    def cost_per_million(self, measurement: Measurement) -> float | None:
        """Return the cost of a million inferences on a machine with this price under the measured load."""
        if self.per_hour is None or measurement.throughput <= 0:
            return None
        return self.per_hour / SECONDS_PER_HOUR / measurement.throughput * MILLION

    def gpu_above_idle_mb(self, measurement: Measurement) -> float | None:
        """Return the GPU memory above that of the server without models, in MB."""
        if not measurement.gpus or self.idle is None or not self.idle.gpus:
            return None
        used = sum(gpu.used_bytes for gpu in measurement.gpus)
        return (used - sum(gpu.used_bytes for gpu in self.idle.gpus)) / 1e6
