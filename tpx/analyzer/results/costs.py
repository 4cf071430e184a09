"""What an inference costs, in joules and in money, from what a measurement saw."""

from tpx.analyzer.results.measurement import EnergyUse, Measurement

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


def cost_per_million(measurement: Measurement, price_per_hour: float) -> float | None:
    """What a million inferences cost on a machine with this price, kept as busy as it was measured."""
    if measurement.throughput <= 0:
        return None
    return price_per_hour / SECONDS_PER_HOUR / measurement.throughput * MILLION
