"""Options of `tpx analyze apply` and `rollback`, apart from the code, so that help imports only them."""

from dataclasses import dataclass
from pathlib import Path

from tpx.options import option

_RUN = "Run"
_REPOSITORY = "Repository"
_CONFIRM = "Confirmation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyConfig:
    """Configuration to apply, and its repository."""

    configuration: str | None = option(
        None,
        "configuration to apply (default: the recommended one)",
        section=_RUN,
        metavar="CONFIGURATION",
        positional=True,
    )
    export_path: Path = option(
        Path(), "export path of the run, its results, or its run.jsonl", "-e", section=_RUN, metavar="PATH"
    )
    model: str | None = option(None, "model to apply, if the run has several", section=_RUN, metavar="NAME")
    model_repository: Path | None = option(
        None, "repository to write to; that of the run without it", "-m", section=_REPOSITORY, metavar="DIR"
    )
    force: bool = option(
        False, "apply also where the model has changed since it was measured", section=_REPOSITORY
    )
    yes: bool = option(False, "write without asking", "-y", section=_CONFIRM)
    dry_run: bool = option(False, "show the difference, write nothing", section=_CONFIRM)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackConfig:
    """Models whose previous configuration is restored."""

    models: tuple[str, ...] = option(
        (),
        "models to roll back; with -e those of the run, else what can be rolled back is listed",
        section="Arguments",
        metavar="MODEL",
        positional=True,
        completes="models",
    )
    export_path: Path | None = option(
        None,
        "run that was applied: its export path, results, or run.jsonl",
        "-e",
        section=_RUN,
        metavar="PATH",
    )
    model_repository: Path | None = option(
        None,
        "repository that holds them; that of the run without it",
        "-m",
        section=_REPOSITORY,
        metavar="DIR",
    )
    force: bool = option(
        False, "also where the configuration was changed after it was applied", section=_REPOSITORY
    )
    yes: bool = option(False, "write without asking", "-y", section=_CONFIRM)
    dry_run: bool = option(False, "show the difference, write nothing", section=_CONFIRM)
