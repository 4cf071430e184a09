"""What inferences cost: joules each, and money by the price of an hour of the machine."""

from dataclasses import dataclass

from tpx.analyzer.results.costs import cost_per_million, joules_per_inference
from tpx.analyzer.results.measurement import Measurement, ServerOnly
from tpx.analyzer.results.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What is needed beside a measurement to say what it costs."""

    per_hour: float | None = None
    """Of the machine, in any currency; None is not known."""
    idle: ServerOnly | None = None
    """The server without models: memory and power that are not the model's."""

    @classmethod
    def of(cls, run: Run) -> "Prices":
        """As the run's options and its measurement of the bare server say."""
        price = run.started.settings.get("price_per_hour")
        return cls(per_hour=float(price) if price else None, idle=run.server_only)

    def joules_per_inference(self, measurement: Measurement) -> float | None:
        """Mean power over throughput; None where no power was read."""
        return joules_per_inference(measurement)

    def joules_above_idle(self, measurement: Measurement) -> float | None:
        """The same, without what the machine takes while it has nothing to do."""
        idle = self.idle.energy if self.idle else None
        return None if idle is None or idle.watts is None else joules_per_inference(measurement, idle)

    def cost_per_million(self, measurement: Measurement) -> float | None:
        """Of inferences, at the measured throughput."""
        if self.per_hour is None:
            return None
        return cost_per_million(measurement, self.per_hour)

    def gpu_above_idle_mb(self, measurement: Measurement) -> float | None:
        """GPU memory beyond that of the server without models."""
        if not measurement.gpus or self.idle is None or not self.idle.gpus:
            return None
        used = sum(gpu.used_bytes for gpu in measurement.gpus)
        return (used - sum(gpu.used_bytes for gpu in self.idle.gpus)) / 1e6
