"""TensorFlow settings in a configuration and in --backend-config, with the names of Triton's backend
(tensorflow_backend/README.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tpx.errors import ConfigError
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.parameters import GivenParameters

JitLevel = Literal["OFF", "DEFAULT", "ON_1", "ON_2"]

_KNOWN = frozenset(
    {
        "TF_NUM_INTRA_THREADS",
        "TF_NUM_INTER_THREADS",
        "TF_USE_PER_SESSION_THREADS",
        "TF_SIGNATURE_DEF",
        "TF_GRAPH_TAG",
        "TF_INIT_OPS_FILE",
        "MAX_SESSION_SHARE_COUNT",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFlowSettings:
    """Settings of a model's sessions."""

    intra_threads: int = 0
    """Threads of one operation, for the whole process; 0 leaves the choice to TensorFlow."""
    inter_threads: int | None = None
    """Concurrent operations; 0 leaves the choice to TensorFlow, None uses the instance's own thread."""
    per_session_threads: bool = False
    signature: str = ""
    """Name of the signature; empty for serving_default, or the only one."""
    tag: str = "serve"
    init_ops_file: str = ""
    sharing: int = 1
    """Maximum number of instances that share a session."""
    jit: JitLevel = "DEFAULT"
    mixed_precision: bool = False
    soft_placement: bool = True
    gpu_memory_fraction: float = 0.0
    """Fraction of GPU memory to reserve; 0 allocates on demand."""


def settings_of(config: ModelConfig, backend: Mapping[str, str]) -> TensorFlowSettings:
    """Return the settings of a ModelConfig; `backend` holds those of --backend-config. Raises ConfigError."""
    parameters, options = GivenParameters.of_model(config), GivenParameters.of_backend("tensorflow", backend)
    parameters.warn_of_others(_KNOWN, "has no effect")
    given = parameters.words
    inter = given.get("TF_NUM_INTER_THREADS")
    return TensorFlowSettings(
        intra_threads=_whole(config.name, given, "TF_NUM_INTRA_THREADS"),
        inter_threads=None if inter is None else _whole(config.name, given, "TF_NUM_INTER_THREADS"),
        per_session_threads=parameters.switch("TF_USE_PER_SESSION_THREADS", default=False),
        signature=given.get("TF_SIGNATURE_DEF", ""),
        tag=given.get("TF_GRAPH_TAG", "") or "serve",
        init_ops_file=given.get("TF_INIT_OPS_FILE", ""),
        sharing=_whole(config.name, given, "MAX_SESSION_SHARE_COUNT", 1),
        jit=_jit(config.optimization.graph.level),
        mixed_precision=_mixed_precision(config),
        soft_placement=options.switch("allow-soft-placement", default=True),
        gpu_memory_fraction=_fraction(backend),
    )


def _whole(model: str, given: Mapping[str, str], key: str, least: int = 0) -> int:
    text = given.get(key, str(least))
    expected = "positive number" if least else "non-negative number"
    if text.isascii() and text.isdigit():
        if len(text) > 10 or int(text) >= 2**31:  # TensorFlow takes 32-bit signed integers
            expected = "less than 2^31"
        elif int(text) >= least:
            return int(text)
    raise ConfigError(f"parameter '{key}' must be {expected} for TensorFlow model '{model}', got '{text}'")


def _fraction(backend: Mapping[str, str]) -> float:
    version = backend.get("version", "2")
    if version != "2":
        raise ConfigError(f"--backend-config tensorflow,version={version}: tpx serves with TensorFlow 2 only")
    text = backend.get("gpu-memory-fraction", "0")
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise ConfigError(
            f"--backend-config tensorflow,gpu-memory-fraction must be between 0 and 1, got '{text}'"
        )
    return fraction


def _jit(level: int) -> JitLevel:
    if level == -1:
        return "OFF"
    if level >= 1:
        return "ON_1" if level == 1 else "ON_2"
    return "DEFAULT"


def _mixed_precision(config: ModelConfig) -> bool:
    accelerators = config.optimization.execution_accelerators
    if accelerators.cpu_execution_accelerator:
        raise ConfigError(
            f"model '{config.name}': CPU Execution Accelerator is not supported in TensorFlow backend"
        )
    for accelerator in accelerators.gpu_execution_accelerator:
        if accelerator.name in ("tensorrt", "gpu_io"):
            raise ConfigError(
                f"model '{config.name}' asks for execution accelerator '{accelerator.name}', which tpx does "
                "not have for TensorFlow: TensorRT serves engines by itself (backend 'tensorrt')"
            )
        if accelerator.name != "auto_mixed_precision":
            raise ConfigError(
                f"model '{config.name}': unknown Execution Accelerator '{accelerator.name}' is requested"
            )
    return bool(accelerators.gpu_execution_accelerator)
