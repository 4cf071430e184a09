"""The options of one run of `tpx analyze profile`: the groups, values derived from several of them, and
the search specs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.options.measuring import (
    CONFIGURATIONS,
    GoalSpec,
    MeasurementSpec,
    ProfileOutputSpec,
    WatchSpec,
)
from tpx.analyzer.options.models import ModelsSpec, ModelToProfile
from tpx.analyzer.options.rules import check_together, idle_warnings, member_warnings
from tpx.analyzer.options.server import DockerSpec, LaunchSpec
from tpx.analyzer.results.goals import Goals, WeightedObjective
from tpx.analyzer.results.measurement import Models, group_name
from tpx.analyzer.search.ranges import LoadsSpec, StrategySpec
from tpx.analyzer.search.spec import (
    Extras,
    Limits,
    Mode,
    OptunaTrials,
    SearchMember,
    SearchSpace,
    SearchSpec,
    axes_of,
)
from tpx.analyzer.values import Flags
from tpx.argv import given_in_argv
from tpx.errors import UsageError
from tpx.options import Options, build, fields_of, given, group
from tpx.perf.settings import Shape

if TYPE_CHECKING:
    from tpx.analyzer.variants import ModelFacts
    from tpx.perf.options import SessionSpec


class ProfileSpec(Options):
    """Options of `tpx analyze profile`, in the order of the help. Raises UsageError if inconsistent."""

    models: ModelsSpec = group(ModelsSpec, "Models")
    server: LaunchSpec = group(LaunchSpec, "Server")
    docker: DockerSpec = group(DockerSpec, "Docker")
    strategy: StrategySpec = group(StrategySpec, "Search")
    loads: LoadsSpec = group(LoadsSpec, "Load")
    optuna: OptunaTrials = group(OptunaTrials, "Search with optuna")
    budget: Limits = group(Limits, "Search with a budget")
    axes: Extras = group(Extras, "More search axes")
    goal: GoalSpec = group(GoalSpec, "Goals")
    measurement: MeasurementSpec = group(MeasurementSpec, "Measurement")
    watch: WatchSpec = group(WatchSpec, "Monitoring")
    output: ProfileOutputSpec = group(ProfileOutputSpec, "Output")

    def __post_init__(self) -> None:
        check_together(self)
        _ = self.goals, self.space
        self._build_session(ModelToProfile(name="model"))
        _ = self.sessions

    @property
    def configurations_path(self) -> Path:
        """Directory of the variants."""
        return self.models.output_model_repository_path or self.output.export_path / CONFIGURATIONS

    @property
    def goals(self) -> Goals:
        """Goals of the run; language models are to generate tokens unless it has an objective."""
        goals = self.goal.goals_for(self.models.profile_models)
        if self.measurement.model_type == "LLM" and not self.goal.objectives:
            return replace(goals, objectives=(WeightedObjective(tag="output_token_throughput"),))
        return goals

    @property
    def space(self) -> SearchSpace:
        """Search space of a model without its own settings."""
        return self.space_of(ModelToProfile(name=""))

    def space_of(self, model: ModelToProfile) -> SearchSpace:
        """Return the space of a model with its load generator flags. Raises UsageError for an empty one."""
        # late import: --help must not load the load generator
        from tpx.analyzer.options.perf_flags import flag_loads

        own = flag_loads(self._resolve_flags(model, "perf_analyzer_flags"), model.parameters)
        return SearchSpace(
            loads=self.loads.space(own, self.strategy), strategy=self.strategy, extras=self.axes
        )

    @property
    def most_windows(self) -> int:
        """Maximum number of windows of a measurement of the search, whose best the final rounds repeat: that
        tells more than consecutive windows.
        """
        return self.measurement.max_trials or (1 if self.budget.final_rounds else 2)

    @property
    def sessions(self) -> "dict[str, SessionSpec]":
        """Session settings by model name, without address and load, which each trial supplies."""
        return {model.name: self._build_session(model) for model in self.models.profile_models}

    def _build_session(self, model: ModelToProfile) -> "SessionSpec":
        """Return a model's session settings. Raises UsageError for wrong options of the load generator."""
        from tpx.analyzer.options.perf_flags import language_model, perf_words  # late, as above
        from tpx.perf.options import SessionSpec

        measurement = self.measurement
        language = language_model(self._resolve_flags(model, "genai_perf_flags"))
        values: dict[str, Any] = {
            "model": model.name,
            "protocol": self.server.client_protocol,
            "measurement_interval": measurement.measurement_interval,
            "stability_percentage": measurement.stability_percentage,
            "shape": measurement.shape,
            "assume_shapes": measurement.assume_shapes,
            "input_data": (measurement.input_data,),
        }
        if measurement.max_trials is not None:
            values["max_trials"] = measurement.max_trials
        if measurement.model_type == "LLM":
            values |= {"service_kind": "openai", "protocol": "http", "streaming": True}
            values["endpoint"] = language["endpoint"]
        # validate without the flags first: only errors that they cause get their prefix
        build(SessionSpec, values)
        try:
            words = perf_words(self._resolve_flags(model, "perf_analyzer_flags"))
            values |= given_in_argv(SessionSpec, words)
            if measurement.model_type == "LLM":
                values |= language
            return build(SessionSpec, values)
        except UsageError as exc:
            raise UsageError(f"perf_analyzer_flags: {exc.message}") from exc

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about options that were set and have no effect."""
        from tpx.analyzer.options.perf_flags import language_warnings, perf_warnings  # late, as above

        changed, measurement = given(self), self.measurement
        inert = [
            f"{field.flag} has no effect: {field.option.help}"
            for field in fields_of(ProfileSpec)
            if field.option.inert and field.name in changed
        ]
        settings: Sequence[MeasurementSpec | ModelToProfile] = (measurement, *self.models.profile_models)
        lines = [line for own in settings for line in perf_warnings(own.perf_analyzer_flags or {})]
        for own in settings:
            lines += language_warnings(own.genai_perf_flags or {}, measurement.model_type)
        return tuple(dict.fromkeys([*inert, *idle_warnings(self), *lines, *member_warnings(self)]))

    def _resolve_flags(self, model: ModelToProfile, name: str) -> Flags:
        own: Flags | None = getattr(model, name)
        return getattr(self.measurement, name) if own is None else own

    def as_settings(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as plain values for the journal."""
        return {name: _to_plain(value) for name, value in given(self).items()}


def _to_plain(value: Any) -> Any:
    """Return a value as in a file; of a dataclass, the fields that differ from their defaults."""
    if isinstance(value, Shape):
        return f"{value.name}:{','.join(map(str, value.dims))}"
    if isinstance(value, ConfigSweep):
        return {axis.label: _to_plain(axis.values) for axis in value.axes}
    if is_dataclass(value) and not isinstance(value, type):
        own = {}
        for field in fields(value):
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if getattr(value, field.name) != default and field.name != "name":
                own[field.name] = _to_plain(getattr(value, field.name))
        if isinstance(value, ModelToProfile):
            return {value.name: own} if own else value.name
        return own
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    """The subject of one search: a model, or several that are measured together."""

    models: tuple[ModelToProfile, ...]

    @property
    def names(self) -> Models:
        return tuple(model.name for model in self.models)

    @property
    def name(self) -> str:
        return group_name(self.names)


def groups_of(config: ProfileSpec) -> tuple[ModelGroup, ...]:
    """Return the searches of a run, in order."""
    if config.models.run_config_profile_models_concurrently_enable and len(config.models.profile_models) > 1:
        return (ModelGroup(models=config.models.profile_models),)
    return tuple(ModelGroup(models=(model,)) for model in config.models.profile_models)


def members_of(config: ProfileSpec, group: ModelGroup, facts: "ModelFacts") -> tuple[str, ...]:
    """Return the models varied instead of the group: those that compose it, or are measured together."""
    if len(group.models) > 1:
        return tuple(model.name for model in group.models)
    if config.models.bls_composing_models:
        return (facts.model, *(model.name for model in config.models.bls_composing_models))
    if facts.steps and config.models.ensemble_composing_models:
        chosen = tuple(model.name for model in config.models.ensemble_composing_models)
        strangers = [name for name in chosen if name not in facts.steps]
        if strangers:
            raise UsageError(
                f"--ensemble-composing-models: '{strangers[0]}' is not a step of ensemble '{facts.model}' "
                f"(its steps are: {', '.join(facts.steps)})"
            )
        return chosen
    return facts.steps


def spec_of(
    config: ProfileSpec, group: ModelGroup, read: Mapping[str, tuple["ModelFacts", Mapping[str, object]]]
) -> tuple[Mode, SearchSpec]:
    """Return the strategy and the search spec of a group, from its models' facts and defaults.

    Raises UsageError if the options do not fit these models.
    """
    first = group.models[0]
    facts, default = read[first.name]
    together = len(group.models) > 1
    as_it_is = config.server.reload_model_disable and not together
    names = () if as_it_is else members_of(config, group, facts)
    members = tuple(
        SearchMember(
            facts=_place_instances(config, read[name][0]),
            sweep=_find_settings(config, name).sweep,
            loads=config.space_of(_find_settings(config, name)).loads if together else None,
            default=read[name][1],
        )
        for name in names
    )
    searched = members or config.strategy.run_config_search_mode in ("quick", "optuna")
    deltas: tuple[Mapping[str, object], ...] | None = ()
    if not as_it_is:  # the user's list instead of a search
        listed = config.strategy.run_config_search_disable or first.sweep
        deltas = None if searched or not listed else tuple(first.sweep.deltas()) if first.sweep else ()
    spaces = [config.space_of(model) for model in group.models]
    # several models share the loads, each with its part
    space = next((space for space in spaces if not space.loads.listed), spaces[0])
    plateau = all(space.loads.until_plateau for space in spaces)
    spec = SearchSpec(
        facts=replace(_place_instances(config, facts), model=group.name),
        default=default,
        space=replace(space, loads=replace(space.loads, until_plateau=plateau)),
        goals=config.goals.of(*group.names),
        limits=config.budget,
        deltas=deltas,
        members=members,
        sweep=ConfigSweep() if together or first.name in names else first.sweep,
        trials=config.optuna,
    )
    return "manual" if as_it_is else _choose_mode(config, spec), spec


def _choose_mode(config: ProfileSpec, spec: SearchSpec) -> Mode:
    chosen = config.strategy.run_config_search_mode
    if chosen == "brute":
        if spec.facts.steps:
            raise UsageError(
                f"model '{spec.facts.model}' is an ensemble: brute search does not vary several models; "
                "leave --run-config-search-mode out, or choose quick or optuna"
            )
        return "brute" if spec.deltas is None else "manual"
    if chosen is not None:
        return chosen
    if config.budget.pareto:
        return "pareto"
    if config.budget.budget is not None or config.budget.max_measurements is not None:
        return "budgeted"
    if spec.members:  # all combinations over several models would take days
        return "manual" if config.strategy.run_config_search_disable else "quick"
    if spec.deltas is not None:
        return "manual"
    axes = axes_of(spec.facts.backend, by_tpx=spec.facts.by_tpx)
    return "budgeted" if axes or spec.space.extras.any else "brute"


def _find_settings(config: ProfileSpec, name: str) -> ModelToProfile:
    """Return the user's settings of a model, from whichever list names it."""
    models = config.models
    named = (*models.profile_models, *models.bls_composing_models, *models.ensemble_composing_models)
    return next((model for model in named if model.name == name), ModelToProfile(name=name))


def _place_instances(config: ProfileSpec, facts: "ModelFacts") -> "ModelFacts":
    """Return the facts, with instances on the CPU if the user requires that."""
    cpu_only = facts.model in config.models.cpu_only_composing_models
    on_cpu = cpu_only or _find_settings(config, facts.model).cpu_only
    return replace(facts, instance_kind="KIND_CPU") if on_cpu else facts
