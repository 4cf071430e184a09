"""The options that say how one measurement is made, and what is watched meanwhile."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tpx.analyzer.models import Flags
from tpx.analyzer.options.values import flags, from_yaml_text
from tpx.errors import UsageError
from tpx.options import Option
from tpx.perf.settings import Shape, parse_shape

_MEASURE = "Measurement"
_WATCH = "What is watched"
_MAP = "{KEY: VALUE}"


def _no_flags() -> Flags:
    return {}


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """Windows, inputs, monitors."""

    model_type: Annotated[
        Literal["generic", "LLM"],
        Option("LLM: measured through the OpenAI API, token by token", (), _MEASURE, "generic|LLM"),
    ] = "generic"
    measurement_interval: Annotated[
        int, Option("milliseconds of a measurement window, of which the last three must agree", (), _MEASURE)
    ] = 1000
    stability_percentage: Annotated[
        float, Option("spread of three windows that counts as stable, in percent", (), _MEASURE)
    ] = 10.0
    max_trials: Annotated[int, Option("windows that one measurement has at most", (), _MEASURE)] = 10
    shape: Annotated[
        tuple[Shape, ...],
        Option(
            "shape of an input with dynamic dimensions, without the batch dimension (repeatable)",
            (),
            _MEASURE,
            "NAME:D,D",
            parse=parse_shape,
        ),
    ] = ()
    input_data: Annotated[
        Literal["zero", "random"], Option("what the inputs hold", (), _MEASURE, "zero|random")
    ] = "random"
    perf_analyzer_flags: Annotated[
        Flags,
        Option("options of tpx perf by name", (), _MEASURE, _MAP, parse=from_yaml_text(flags), read=flags),
    ] = field(default_factory=_no_flags)
    genai_perf_flags: Annotated[
        Flags,
        Option(
            "options of genai-perf by name, for model_type LLM",
            (),
            _MEASURE,
            _MAP,
            parse=from_yaml_text(flags),
            read=flags,
        ),
    ] = field(default_factory=_no_flags)
    perf_analyzer_timeout: Annotated[
        int, Option("seconds after which a measurement has failed", (), _MEASURE, "SECONDS")
    ] = 600
    perf_analyzer_max_auto_adjusts: Annotated[
        int,
        Option("an unstable measurement goes on: see --max-trials", (), _MEASURE, inert=True),
    ] = 10
    perf_analyzer_cpu_util: Annotated[
        float | None, Option("tpx measures without perf_analyzer", (), _MEASURE, inert=True)
    ] = None
    perf_analyzer_path: Annotated[
        str, Option("tpx measures without perf_analyzer", (), _MEASURE, "PROGRAM", inert=True)
    ] = "perf_analyzer"
    perf_output: Annotated[bool, Option("show each measurement as tpx perf would", (), _MEASURE)] = False
    perf_output_path: Annotated[Path | None, Option("the same into a file", (), _MEASURE, "FILE")] = None

    monitoring_interval: Annotated[
        float, Option("seconds between two readings of memory and GPUs", ("-i",), _WATCH, "SECONDS")
    ] = 1.0
    price_per_hour: Annotated[
        float | None,
        Option("price of the machine: reports then tell what a million inferences cost", (), _WATCH, "PRICE"),
    ] = None
    duration_seconds: Annotated[
        float, Option("seconds that the server is watched without a model", ("-d",), _WATCH, "SECONDS")
    ] = 3.0
    collect_cpu_metrics: Annotated[
        bool, Option("memory of the server as columns of the tables and CSV files too", (), _WATCH)
    ] = False
    always_report_gpu_metrics: Annotated[
        bool, Option("show figures of GPUs also of models that are cpu_only", (), _WATCH)
    ] = False
    dcgm_disable: Annotated[
        bool,
        Option("tpx makes no use of DCGM; only with launch mode remote", (), _WATCH, inert=True),
    ] = False

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
