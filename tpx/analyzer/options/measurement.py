"""The options that say how one measurement is made, and what is watched meanwhile."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.analyzer.models import Flags
from tpx.analyzer.options.values import flags, from_yaml_text
from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.settings import Shape, parse_shape

_MEASURE = "Measurement"
_WATCH = "What is watched"
_MAP = "{KEY: VALUE}"


def _no_flags() -> Flags:
    return {}


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """Windows, inputs, monitors."""

    model_type: Literal["generic", "LLM"] = option(
        "generic",
        "LLM: measured through the OpenAI API, token by token",
        section=_MEASURE,
        metavar="generic|LLM",
    )
    measurement_interval: int = option(
        1000, "milliseconds of a measurement window, of which the last three must agree", section=_MEASURE
    )
    stability_percentage: float = option(
        10.0, "spread of three windows that counts as stable, in percent", section=_MEASURE
    )
    max_trials: int = option(10, "windows that one measurement has at most", section=_MEASURE)
    shape: tuple[Shape, ...] = option(
        (),
        "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
        section=_MEASURE,
        metavar="NAME:D,D",
        parse=parse_shape,
    )
    input_data: Literal["zero", "random"] = option(
        "random", "what the inputs hold", section=_MEASURE, metavar="zero|random"
    )
    perf_analyzer_flags: Flags = option(
        {},
        "options of tpx perf by name",
        section=_MEASURE,
        metavar=_MAP,
        parse=from_yaml_text(flags),
        read=flags,
    )
    genai_perf_flags: Flags = option(
        {},
        "options of genai-perf by name, for model_type LLM",
        section=_MEASURE,
        metavar=_MAP,
        parse=from_yaml_text(flags),
        read=flags,
    )
    perf_analyzer_timeout: int = option(
        600, "seconds after which a measurement has failed", section=_MEASURE, metavar="SECONDS"
    )
    perf_analyzer_max_auto_adjusts: int = option(
        10, "an unstable measurement goes on: see --max-trials", section=_MEASURE, inert=True
    )
    perf_analyzer_cpu_util: float | None = option(
        None, "tpx measures without perf_analyzer", section=_MEASURE, inert=True
    )
    perf_analyzer_path: str = option(
        "perf_analyzer", "tpx measures without perf_analyzer", section=_MEASURE, metavar="PROGRAM", inert=True
    )
    perf_output: bool = option(False, "show each measurement as tpx perf would", section=_MEASURE)
    perf_output_path: Path | None = option(None, "the same into a file", section=_MEASURE, metavar="FILE")

    monitoring_interval: float = option(
        1.0, "seconds between two readings of memory and GPUs", "-i", section=_WATCH, metavar="SECONDS"
    )
    price_per_hour: float | None = option(
        None,
        "price of the machine: reports then tell what a million inferences cost",
        section=_WATCH,
        metavar="PRICE",
    )
    duration_seconds: float = option(
        3.0, "seconds that the server is watched without a model", "-d", section=_WATCH, metavar="SECONDS"
    )
    collect_cpu_metrics: bool = option(
        False, "memory of the server as columns of the tables and CSV files too", section=_WATCH
    )
    always_report_gpu_metrics: bool = option(
        False, "show figures of GPUs also of models that are cpu_only", section=_WATCH
    )
    dcgm_disable: bool = option(
        False, "tpx makes no use of DCGM; only with launch mode remote", section=_WATCH, inert=True
    )

    def check_measurement(self) -> None:
        """Raise UsageError for a value out of range."""
        for name in ("measurement_interval", "max_trials", "perf_analyzer_timeout"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        for name in ("monitoring_interval", "stability_percentage"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0, not {getattr(self, name):g}")
        if self.price_per_hour is not None and not self.price_per_hour > 0:
            raise UsageError(f"--price-per-hour must be above 0, not {self.price_per_hour:g}")
        if not self.duration_seconds >= 0:
            raise UsageError(f"--duration-seconds must not be negative: {self.duration_seconds:g}")
