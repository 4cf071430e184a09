"""The options of one run of `tpx analyze profile`: groups, and what follows from several of them."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.options.measuring import GoalSpec, MeasurementSpec, WatchSpec
from tpx.analyzer.options.models import ModelsSpec, ModelToProfile
from tpx.analyzer.options.output import ProfileOutputSpec
from tpx.analyzer.options.rules import check_together, idle_warnings, member_warnings
from tpx.analyzer.options.search import LoadsSpec, StrategySpec
from tpx.analyzer.options.server import DockerSpec, LaunchSpec
from tpx.analyzer.results.goals import Goals
from tpx.analyzer.search.spec import Extras, Limits, OptunaTrials, SearchSpace
from tpx.analyzer.values import Flags
from tpx.errors import UsageError
from tpx.options import build, fields_of, given, group
from tpx.perf.settings import Shape

if TYPE_CHECKING:
    from tpx.perf.options import SessionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSpec:
    """One run of `tpx analyze profile`, in the order of the help.

    Raises UsageError where values are out of range or do not go together.
    """

    models: ModelsSpec = group(ModelsSpec, "Models")
    server: LaunchSpec = group(LaunchSpec, "Server")
    docker: DockerSpec = group(DockerSpec, "Docker")
    strategy: StrategySpec = group(StrategySpec, "Search")
    loads: LoadsSpec = group(LoadsSpec, "Load")
    optuna: OptunaTrials = group(OptunaTrials, "Search with optuna")
    budget: Limits = group(Limits, "Search with a budget")
    axes: Extras = group(Extras, "More axes of the search")
    goal: GoalSpec = group(GoalSpec, "Goals")
    measurement: MeasurementSpec = group(MeasurementSpec, "Measurement")
    watch: WatchSpec = group(WatchSpec, "What is watched")
    output: ProfileOutputSpec = group(ProfileOutputSpec, "Output")

    def __post_init__(self) -> None:
        check_together(self)
        _ = self.goals, self.space
        self._session("model", self.measurement.perf_analyzer_flags, self.measurement.genai_perf_flags)
        _ = self.sessions

    @property
    def goals(self) -> Goals:
        return self.goal.goals_for(self.models.profile_models)

    @property
    def space(self) -> SearchSpace:
        """The space of a model without settings of its own."""
        return self.space_of(ModelToProfile(name=""))

    def space_of(self, model: ModelToProfile) -> SearchSpace:
        """Return the space of this model, under the loads that its flags for the load generator may give.

        Raises UsageError for an empty range or a load below 1.
        """
        from tpx.analyzer.options.perf_flags import flag_loads  # late: help does without the load generator

        own = flag_loads(self._perf_flags(model), model.parameters)
        return SearchSpace(
            loads=self.loads.space(own, self.strategy),
            instances=self.strategy.instances,
            max_batch_sizes=self.strategy.max_batch_sizes,
            extras=self.axes,
        )

    @property
    def sessions(self) -> "dict[str, SessionSpec]":
        """How each model is measured, by its name; its address and its load come with a trial."""
        return {
            model.name: self._session(model.name, self._perf_flags(model), self._language_flags(model))
            for model in self.models.profile_models
        }

    def _session(self, name: str, perf_flags: Flags, language_flags: Flags) -> "SessionSpec":
        """Raises UsageError where options of the load generator are not, or do not fit the others."""
        from tpx.analyzer.options.perf_flags import language_model, perf_values  # late, as above
        from tpx.perf.options import SessionSpec

        measurement = self.measurement
        asked = language_model(language_flags)
        values: dict[str, Any] = {
            "model": name,
            "protocol": self.server.client_protocol,
            "measurement_interval": measurement.measurement_interval,
            "stability_percentage": measurement.stability_percentage,
            "max_trials": measurement.max_trials,
            "shape": measurement.shape,
            "input_data": (measurement.input_data,),
        }
        if measurement.model_type == "LLM":
            values |= {"service_kind": "openai", "protocol": "http", "endpoint": asked.endpoint}
            values |= {"streaming": True}
        build(SessionSpec, values)  # what is wrong without the flags is no fault of theirs
        try:
            values |= perf_values(perf_flags)
            if measurement.model_type == "LLM":
                values |= asked.values
            return build(SessionSpec, values)
        except UsageError as exc:
            raise UsageError(f"perf_analyzer_flags: {exc.message}") from exc

    @property
    def warnings(self) -> tuple[str, ...]:
        """A line for each option that was set and changes nothing."""
        from tpx.analyzer.options.perf_flags import language_warnings, perf_warnings  # late, as above

        told = given(self)
        inert = [
            f"{field.flag} changes nothing: {field.option.help}"
            for field in fields_of(ProfileSpec)
            if field.option.inert and field.name in told
        ]
        models = self.models.profile_models
        sets = [self.measurement.perf_analyzer_flags]
        sets += [m.perf_analyzer_flags for m in models if m.perf_analyzer_flags is not None]
        asked = [self.measurement.genai_perf_flags]
        asked += [m.genai_perf_flags for m in models if m.genai_perf_flags is not None]
        lines = [line for flags in sets for line in perf_warnings(flags)]
        lines += [line for flags in asked for line in language_warnings(flags, self.measurement.model_type)]
        return tuple(dict.fromkeys([*inert, *idle_warnings(self), *lines, *member_warnings(self)]))

    def _perf_flags(self, model: ModelToProfile) -> Flags:
        own = model.perf_analyzer_flags
        return self.measurement.perf_analyzer_flags if own is None else own

    def _language_flags(self, model: ModelToProfile) -> Flags:
        own = model.genai_perf_flags
        return self.measurement.genai_perf_flags if own is None else own

    def as_settings(self) -> dict[str, Any]:
        """The options that differ from their defaults, as plain values for the journal."""
        return {name: _plain(value) for name, value in given(self).items()}


def _changed(value: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults, or have none; those of a model without its name."""
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
