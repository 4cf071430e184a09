"""All that `tpx analyze profile` can be told: the groups of options as one."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.models import Flags, ModelToProfile
from tpx.analyzer.options.budget import BudgetOptions
from tpx.analyzer.options.genai_flags import language_model, language_warnings
from tpx.analyzer.options.goals import GoalOptions
from tpx.analyzer.options.idle import idle_warnings
from tpx.analyzer.options.measurement import MeasurementOptions
from tpx.analyzer.options.output import OutputOptions
from tpx.analyzer.options.perf_flags import checked_perf_words, flag_loads, perf_warnings
from tpx.analyzer.options.rules import check_together, member_warnings
from tpx.analyzer.options.search import SearchOptions
from tpx.analyzer.options.server import ServerOptions
from tpx.analyzer.options.target import TargetOptions
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.runners.load import LoadSettings
from tpx.analyzer.search.spec import SearchSpace
from tpx.options import fields_of
from tpx.perf.settings import Shape


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(
    OutputOptions,
    MeasurementOptions,
    GoalOptions,
    BudgetOptions,
    SearchOptions,
    ServerOptions,
    TargetOptions,
):
    """One run of `tpx analyze profile`; raises UsageError where values are out of range or do not go
    together.

    The last base is the first group of the help.
    """

    def __post_init__(self) -> None:
        self.check_server()
        self.check_search()
        self.check_budget()
        self.check_goals()
        self.check_measurement()
        self.check_output()
        check_together(self)
        _ = self.load_settings

    @property
    def goals(self) -> Goals:
        return self.goals_for(self.profile_models)

    def space_of(self, model: ModelToProfile) -> SearchSpace:
        """What to search in this model, under the loads that its flags for the load generator may give."""
        loads = flag_loads(self._perf_flags(model), model.parameters)
        return super().space_of(replace(model, parameters=loads))

    def goals_of(self, model: ModelToProfile) -> Goals:
        """What is asked of one model."""
        return self.goals.of(model.name)

    @property
    def load_settings(self) -> LoadSettings:
        return LoadSettings(
            protocol=self.client_protocol,
            interval_ms=self.measurement_interval,
            stability_percentage=self.stability_percentage,
            max_windows=self.max_trials,
            shapes=self.shape,
            input_data=self.input_data,
            words=self._perf_words(),
            endpoint=language_model(self.genai_perf_flags).endpoint if self.model_type == "LLM" else "",
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """A line for each option that was set and changes nothing."""
        inert = [
            f"{field.flag} changes nothing: {field.option.help}"
            for field in fields_of(ProfileConfig)
            if field.option.inert and getattr(self, field.name) != field.default
        ]
        sets = [self.perf_analyzer_flags]
        sets += [m.perf_analyzer_flags for m in self.profile_models if m.perf_analyzer_flags is not None]
        asked = [self.genai_perf_flags]
        asked += [m.genai_perf_flags for m in self.profile_models if m.genai_perf_flags is not None]
        lines = [line for flags in sets for line in perf_warnings(flags)]
        lines += [line for flags in asked for line in language_warnings(flags, self.model_type)]
        return tuple(dict.fromkeys([*inert, *idle_warnings(self), *lines, *member_warnings(self)]))

    def _perf_words(self) -> dict[str, tuple[str, ...]]:
        """Further options of tpx perf, by model."""
        checked_perf_words(self.perf_analyzer_flags, self.client_protocol)
        return {
            model.name: checked_perf_words(
                self._perf_flags(model),
                self.client_protocol,
            )
            + self._language_words(model)
            for model in self.profile_models
        }

    def _perf_flags(self, model: ModelToProfile) -> Flags:
        return self.perf_analyzer_flags if model.perf_analyzer_flags is None else model.perf_analyzer_flags

    def _language_words(self, model: ModelToProfile) -> tuple[str, ...]:
        own = self.genai_perf_flags if model.genai_perf_flags is None else model.genai_perf_flags
        asked = language_model(own)
        return (*asked.words, f"--endpoint={asked.endpoint}") if self.model_type == "LLM" else ()

    def as_settings(self) -> dict[str, Any]:
        """The options that differ from their defaults, as plain values for the journal."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in fields_of(ProfileConfig)
            if getattr(self, field.name) != field.default
        }


def _changed(value: Any) -> dict[str, Any]:
    """What of a dataclass differs from its defaults, and all that has none; a model without its name."""
    own = {}
    for field in fields(value):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if getattr(value, field.name) != default and field.name != "name":
            own[field.name] = _plain(getattr(value, field.name))
    return own


def _plain(value: Any) -> Any:
    if isinstance(value, Shape):
        return f"{value.name}:{','.join(map(str, value.dims))}"
    if isinstance(value, ModelToProfile):
        own = _changed(value)
        return {value.name: own} if own else value.name
    if isinstance(value, ConfigSweep):
        return {axis.label: _plain(axis.values) for axis in value.axes}
    if is_dataclass(value) and not isinstance(value, type):
        return _changed(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
