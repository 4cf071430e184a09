"""One model to profile, with the settings that are its own: what `profile_models` holds for each."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpx.analyzer.config_sweep import ConfigSweep
from tpx.analyzer.results.goals import Constraint, Objective

Flags = Mapping[str, tuple[str, ...]]
"""Words of another program by the flag's name without dashes; a flag with several words is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParameters:
    """The loads that one model is put under; an empty tuple is what the run says for all models."""

    batch_sizes: tuple[int, ...] = ()
    concurrency: tuple[int, ...] = ()
    request_rate: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelToProfile:
    """A model by its name in the repository. None means: as the run says for all models.

    What is set here replaces the run's own setting, it is not merged with it.
    """

    name: str
    cpu_only: bool = False
    """Instances on the CPU also where there are GPUs."""
    weighting: float = 1.0
    """Of this model among several that are profiled together."""
    parameters: ModelParameters = field(default_factory=ModelParameters)
    objectives: tuple[Objective, ...] | None = None
    constraints: tuple[Constraint, ...] | None = None
    sweep: ConfigSweep = field(default_factory=ConfigSweep)
    """`model_config_parameters`: exactly these configurations instead of a search."""
    perf_analyzer_flags: Flags | None = None
    genai_perf_flags: Flags | None = None
    triton_server_flags: Flags | None = None
    triton_server_environment: Mapping[str, str] | None = None
    triton_docker_args: Mapping[str, object] | None = None
