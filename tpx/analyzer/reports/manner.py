"""How a run is shown: in which mode, with which plots, and whether with the GPUs of models that use none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpx.analyzer.reports.plots import Mode, Plot
from tpx.analyzer.results.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """What is chosen of a report without changing its figures."""

    mode: Mode = "online"
    """Model Analyzer's: online looks at latency, offline at throughput and batches."""
    gpus_of_all: bool = False
    """Whether figures of GPUs are shown also of models that run on the CPU alone."""
    plots: tuple[Plot, ...] | None = None
    """Of single configurations; None is those of the mode."""

    @classmethod
    def of(cls, run: Run) -> "Manner":
        """As the run's own options say."""
        settings = run.started.settings
        return cls(
            mode="offline" if settings.get("mode") == "offline" else "online",
            gpus_of_all=bool(settings.get("always_report_gpu_metrics", False)),
        )

    def shows_gpus(self, run: Run, model: str) -> bool:
        """Whether figures of GPUs say something about a model, or about one of several (`a,b`)."""
        if self.gpus_of_all:
            return True
        on_cpu = _on_cpu_alone(run.started.settings.get("profile_models", ()))
        return not set(model.split(",")) <= on_cpu


def _on_cpu_alone(models: object) -> set[str]:
    """The models that the options of a run keep on the CPU."""
    settings: list[Mapping[str, Any]] = [m for m in _listed(models) if isinstance(m, Mapping)]
    return {name for each in settings for name, own in each.items() if own.get("cpu_only")}


def _listed(models: object) -> list[object]:
    return list(models) if isinstance(models, list | tuple) else []
