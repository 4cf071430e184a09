"""`tpx analyze apply` and `rollback`: write the winning configuration into the repository, and undo it."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpx.analyzer.application import ConfigChange, applied, carry_out, changes_back, changes_to
from tpx.analyzer.results.journal import ModelRead, read_last_run
from tpx.analyzer.results.measurement import Configuration
from tpx.analyzer.results.run import Run
from tpx.analyzer.verdict import Finding, judge
from tpx.argv import from_argv
from tpx.cli.analyze_options import ApplyConfig, RollbackConfig, journal_of
from tpx.errors import UsageError
from tpx.options import nearest


def apply(argv: Sequence[str]) -> int:
    """`tpx analyze apply`: return 0 if it was written or nothing had to change, 1 if it was not confirmed."""
    config = from_argv(ApplyConfig, argv)
    records = read_last_run(journal_of(config.export_path))
    run = Run.from_records(records)
    configuration = choose(run, config)
    repository = _find_repository(config.model_repository, run)
    measured = {record.model: record.fingerprint for record in records if isinstance(record, ModelRead)}
    changes = changes_to(configuration, repository, {} if config.force else measured)
    name = configuration.variant.name
    if not changes:
        print(f"{repository} has the configuration {name} already: nothing to do")
        return 0
    if not _confirm_changes(changes, f"Apply {name}?", yes=config.yes, dry_run=config.dry_run):
        return 0 if config.dry_run else 1
    carry_out(changes)
    for change in changes:
        print(f"applied {name} to {change.path}")
    models = " ".join(change.model for change in changes)
    print(f"Undo with: tpx analyze rollback {models} --model-repository {repository}")
    return 0


def rollback(argv: Sequence[str]) -> int:
    """`tpx analyze rollback`: return 0 if the former configuration was restored, 1 if not confirmed."""
    config = from_argv(RollbackConfig, argv)
    run = None
    if config.export_path is not None:
        run = Run.from_records(read_last_run(journal_of(config.export_path)))
    repository = _find_repository(config.model_repository, run)
    models = config.models
    if not models:
        applied_models = applied(repository)
        if run is None:
            return _list_applied(applied_models, repository)
        names = {variant.variant.name for model in run.models for variant in model.variants}
        models = tuple(model for model, variant in applied_models.items() if variant in names)
        if not models:
            raise UsageError(
                f"{repository} has no model with a configuration of this run: nothing to roll back"
            )
    changes = changes_back(models, repository, force=config.force)
    if not _confirm_changes(changes, "Roll back?", yes=config.yes, dry_run=config.dry_run):
        return 0 if config.dry_run else 1
    carry_out(changes)
    for change in changes:
        print(f"rolled back {change.path}")
    return 0


def _list_applied(models: Mapping[str, str], repository: Path) -> int:
    """Show what can be rolled back, and how."""
    if not models:
        print(f"Nothing to roll back in {repository}.")
        return 0
    print("Can be rolled back:")
    for model, variant in models.items():
        print(f"  {model}: {variant} is applied")
    print(f"Roll back with: tpx analyze rollback {' '.join(models)} --model-repository {repository}")
    return 0


def _confirm_changes(changes: Sequence[ConfigChange], question: str, *, yes: bool, dry_run: bool) -> bool:
    """Show the changes and ask for confirmation; without a terminal only --yes confirms."""
    for change in changes:
        print(change.diff)
    if dry_run or yes:
        return yes and not dry_run
    if not sys.stdin.isatty():
        raise UsageError("nothing was written: confirm with --yes")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def choose(run: Run, config: ApplyConfig) -> Configuration:
    """Return the configuration that is named, or that the run is sure to recommend. Raises UsageError."""
    models = [model for model in run.models if config.model in (None, model.model)]
    if not models:
        names = [model.model for model in run.models]
        raise UsageError(
            f"--model: the run has no '{config.model}'{nearest(config.model or '', names)} "
            f"(has: {', '.join(names)})"
        )
    if config.configuration is not None:
        known = {v.variant.name: v.configuration for model in models for v in model.variants}
        if config.configuration not in known:
            near = nearest(config.configuration, known)
            raise UsageError(f"the run has no configuration '{config.configuration}'{near}")
        return known[config.configuration]
    if len(models) > 1:
        names_ = ", ".join(model.model for model in models)
        raise UsageError(f"the run has several models: choose one with --model ({names_})")
    verdict = judge(models[0], run.started.goals)
    if verdict.best is None or not verdict.best.satisfies:
        raise UsageError(f"the run recommends nothing: {verdict.sentence}")
    if verdict.finding is Finding.UNDECIDED:
        named = verdict.candidate.name if verdict.candidate else "CONFIGURATION"
        raise UsageError(
            f"the run is undecided: {verdict.sentence}; to apply one anyway, name it: "
            f"tpx analyze apply {named}"
        )
    return verdict.best.run.configuration


def _find_repository(given: Path | None, run: Run | None) -> Path:
    """Return the model repository that is given, or else that of the run. Raises UsageError."""
    if given is None and run is None:
        raise UsageError("missing: --model-repository, the directory of the models, or -e, the run")
    named = given or (run.started.settings.get("model_repository") if run else None)
    if named is None:
        raise UsageError("missing: --model-repository, as the run does not say where its models are")
    repository = Path(named)
    if not repository.is_dir():
        raise UsageError(f"--model-repository {repository}: no such directory")
    return repository
