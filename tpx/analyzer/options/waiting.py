"""Options whose feature tpx does not have yet: they are refused by name, never ignored.

A feature that arrives takes its line out of here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tpx.errors import UsageError
from tpx.options import fields_of

if TYPE_CHECKING:
    from tpx.analyzer.options.config import ProfileConfig

FIELDS: Mapping[str, str] = {
    "request_rate": "loads are requests in flight",
    "request_rate_search_enable": "loads are requests in flight",
    "run_config_search_min_request_rate": "loads are requests in flight",
    "run_config_search_max_request_rate": "loads are requests in flight",
    "model_type": "language models are not measured yet",
    "genai_perf_flags": "language models are not measured yet",
    "perf_output": "measurements are shown in one line each",
    "perf_output_path": "measurements are shown in one line each",
    "always_report_gpu_metrics": "GPU columns are shown wherever there is a GPU",
    "num_top_model_configs": "models are reported one by one",
    "inference_output_fields": "the tables have their default columns",
    "gpu_output_fields": "the tables have their default columns",
    "server_output_fields": "the tables have their default columns",
    "skip_summary_reports": "the report is one page",
    "skip_detailed_reports": "the report is one page",
}
"""Field of ProfileConfig -> what tpx does instead."""

CHOICES: Mapping[str, frozenset[str]] = {}
"""Field of ProfileConfig -> its values that nothing carries out yet."""

MODEL_SETTINGS: frozenset[str] = frozenset(
    {
        "genai_perf_flags",
    }
)
"""Fields of ModelToProfile that nothing reads yet."""


def refuse_waiting(config: "ProfileConfig") -> None:
    """Raise UsageError for the first option that is set and has no effect yet."""
    defaults = {field.name: field for field in fields_of(type(config))}
    for name, field in defaults.items():
        value = getattr(config, name)
        if name in FIELDS and value != field.default:
            raise _refusal(field.flag, FIELDS[name])
        if value in CHOICES.get(name, ()):
            raise _refusal(f"{field.flag} {value}", f"it has {field.default}")
    for model in config.profile_models:
        for name in sorted(MODEL_SETTINGS):
            fresh = type(model)(name=model.name)
            if getattr(model, name) != getattr(fresh, name):
                shown = "model_config_parameters" if name == "sweep" else name
                raise _refusal(f"model '{model.name}': {shown}", "every model has the settings of the run")


def _refusal(what: str, instead: str) -> UsageError:
    return UsageError(f"{what} is not supported by this version of tpx: {instead}")
