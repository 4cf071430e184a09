"""--metrics-config: which latencies are recorded, and how."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from tpx.errors import UsageError
from tpx.options import FALSE_WORDS, TRUE_WORDS, nearest
from tpx.serving.distributions.latencies import HISTOGRAMS, are_buckets


class Quantile(NamedTuple):
    """A quantile of a summary and its permitted rank error."""

    q: float
    error: float


class LatencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of --metrics-config, with Triton's names."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    summary_quantiles: tuple[Quantile, ...] = (
        Quantile(0.5, 0.05),
        Quantile(0.9, 0.01),
        Quantile(0.95, 0.001),
        Quantile(0.99, 0.001),
        Quantile(0.999, 0.001),
    )
    histogram_buckets: Mapping[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """Bounds by family, for models that do not set their own."""

    @property
    def quantile_error(self) -> float:
        """Return the error of the sketch: one sketch serves all quantiles, so the strictest decides."""
        return min(quantile.error for quantile in self.summary_quantiles)


_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")
_NAMES = (*_SWITCHES, "summary_quantiles", "histogram_buckets")


def parse_latency_settings(flags: Sequence[str]) -> LatencySettings:
    """Parse values of --metrics-config, each `<setting>=<value>`; the last one wins. Raises UsageError."""
    settings = LatencySettings()
    for flag in flags:
        name, equals, value = (part.strip() for part in flag.partition("="))
        if not equals or not name or not value:
            raise UsageError(f"--metrics-config option format is '<setting>=<value>'. Got {flag}")
        if name not in _NAMES:
            known = nearest(name, _NAMES) or f" (there are: {', '.join(_NAMES)})"
            raise UsageError(f"--metrics-config: unknown setting '{name}'{known}")
        if name in _SWITCHES:
            word = value.lower()
            if word not in TRUE_WORDS | FALSE_WORDS:
                raise UsageError(f"--metrics-config {name} must be true or false, got '{value}'")
            settings = replace(settings, **{name: word in TRUE_WORDS})
        elif name == "summary_quantiles":
            # `0.5:0.05,0.9:0.01`
            found = tuple(_parse_quantile(pair) for pair in value.split(","))
            if len({quantile.q for quantile in found}) < len(found):
                raise UsageError(f"--metrics-config summary_quantiles names a quantile twice: '{value}'")
            settings = replace(settings, summary_quantiles=found)
        else:
            settings = replace(
                settings, histogram_buckets={**settings.histogram_buckets, **_parse_buckets(value)}
            )
    return settings


def _parse_buckets(text: str) -> Mapping[str, tuple[float, ...]]:
    """Parse `FAMILY:1,2.5,10`."""
    family, _, listed = text.partition(":")
    names = [each.name for each in HISTOGRAMS]
    if family not in names:
        known = nearest(family, names) or f" (there are: {', '.join(names)})"
        raise UsageError(f"--metrics-config histogram_buckets: no histogram '{family}'{known}")
    try:
        bounds = tuple(map(float, listed.split(",")))
    except ValueError:
        bounds = ()
    if not are_buckets(bounds):
        raise UsageError(
            "--metrics-config histogram_buckets must be <histogram>:<bound>,..., finite bounds, each larger "
            f"than the one before, got '{text}'"
        )
    return {family: bounds}


def _parse_quantile(pair: str) -> Quantile:
    share, colon, error = pair.partition(":")
    try:
        quantile = Quantile(float(share), float(error))
    except ValueError:
        quantile = Quantile(math.nan, math.nan)
    if not colon or not (0 < quantile.q < 1 and _SMALLEST_ERROR <= quantile.error < 1):
        raise UsageError(
            "--metrics-config summary_quantiles must be <quantile>:<error>,..., quantiles between 0 and 1 "
            f"and errors between {_SMALLEST_ERROR} and 1, got '{pair}'"
        )
    return quantile


_SMALLEST_ERROR = 1e-5
"""Memory grows as the error shrinks: about 1 / error entries per sketch."""
