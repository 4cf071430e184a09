"""From the options of a run to the specs of its searches: which strategy, which space, what goals."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.options import ProfileSpec
from tpx.analyzer.options.models import ModelToProfile
from tpx.analyzer.search.spec import Mode, SearchMember, SearchSpace, SearchSpec
from tpx.analyzer.variants import ModelFacts
from tpx.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    """Subject of one search: a model, or several that are measured together."""

    models: tuple[ModelToProfile, ...]

    @property
    def name(self) -> str:
        """`a`, or `a,b`."""
        return ",".join(model.name for model in self.models)


def groups_of(config: ProfileSpec) -> tuple[ModelGroup, ...]:
    """The searches of a run, in their order."""
    if config.models.run_config_profile_models_concurrently_enable and len(config.models.profile_models) > 1:
        return (ModelGroup(models=config.models.profile_models),)
    return tuple(ModelGroup(models=(model,)) for model in config.models.profile_models)


def members_of(config: ProfileSpec, group: ModelGroup, facts: ModelFacts) -> tuple[str, ...]:
    """The models that are varied in place of the group: of an ensemble or of business logic, or those that
    are measured together."""
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
    config: ProfileSpec, group: ModelGroup, read: Mapping[str, tuple[ModelFacts, Mapping[str, object]]]
) -> tuple[Mode, SearchSpec]:
    """Return the strategy and the spec of a model group.

    `read` has the facts and the effective default of every model concerned, by name. Raises UsageError where
    the options do not fit these models.
    """
    first = group.models[0]
    facts, default = read[first.name]
    together = len(group.models) > 1
    as_it_is = config.server.reload_model_disable and not together
    names = () if as_it_is else members_of(config, group, facts)
    members = tuple(
        replace(_member(config, read[name][0], together=together), default=read[name][1]) for name in names
    )
    searched = members or config.strategy.run_config_search_mode in ("quick", "optuna")
    spec = SearchSpec(
        facts=replace(_placed(config, facts), model=group.name),
        default=default,
        space=_space(config, group),
        goals=config.goals.of(group.name),
        limits=config.budget,
        refine_steps=config.strategy.run_config_search_max_binary_search_steps,
        sweep_best=not config.strategy.concurrency_sweep_disable,
        deltas=() if as_it_is else None if searched else _listed(config, first),
        members=members,
        sweep=ConfigSweep() if together or first.name in names else first.sweep,
        in_ranges=not config.strategy.run_config_search_disable,
        early_exit=config.strategy.early_exit_enable,
        trials=config.optuna,
    )
    return "manual" if as_it_is else _mode(config, spec), spec


def _mode(config: ProfileSpec, spec: SearchSpec) -> Mode:
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
    if spec.members:  # every combination of what is searched in several models would take days
        return "quick" if spec.in_ranges else "manual"
    if spec.deltas is not None:
        return "manual"
    return "budgeted" if spec.space.extras.any else "brute"


def _listed(config: ProfileSpec, model: ModelToProfile) -> tuple[Mapping[str, object], ...] | None:
    """Exactly the configurations to measure, where they are not searched for."""
    if model.sweep:
        return tuple(model.sweep.deltas())
    return () if config.strategy.run_config_search_disable else None


def _space(config: ProfileSpec, group: ModelGroup) -> SearchSpace:
    """Return the space of one model; several have common loads, of which each takes a part."""
    spaces = [config.space_of(model) for model in group.models]
    free = [space for space in spaces if not space.loads.listed]
    chosen = (free or spaces)[0]
    plateau = all(space.loads.until_plateau for space in spaces)
    return replace(chosen, loads=replace(chosen.loads, until_plateau=plateau))


def _member(config: ProfileSpec, facts: ModelFacts, *, together: bool) -> SearchMember:
    own = _settings(config, facts.model)
    return SearchMember(
        facts=_placed(config, facts),
        sweep=own.sweep,
        loads=config.space_of(own).loads if together else None,
    )


def _settings(config: ProfileSpec, name: str) -> ModelToProfile:
    """Return the user's settings of a model, wherever it is named."""
    named = (
        *config.models.profile_models,
        *config.models.bls_composing_models,
        *config.models.ensemble_composing_models,
    )
    return next((model for model in named if model.name == name), ModelToProfile(name=name))


def _placed(config: ProfileSpec, facts: ModelFacts) -> ModelFacts:
    """The facts, with instances on the CPU where the user says so."""
    on_cpu = _settings(config, facts.model).cpu_only or facts.model in config.models.cpu_only_composing_models
    return replace(facts, instance_kind="KIND_CPU") if on_cpu else facts
