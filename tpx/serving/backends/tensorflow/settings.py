"""Settings of TensorFlow sessions, read without TensorFlow; their names are those of Triton's backend
(tensorflow_backend/README.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tpx.errors import ConfigError
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import path_of
from tpx.serving.backends.parameters import GivenParameters

JitLevel = Literal["OFF", "DEFAULT", "ON_1", "ON_2"]
_JIT: Mapping[int, JitLevel] = {-1: "OFF", 1: "ON_1"}
"""By the level of graph optimization; 2 and more is ON_2."""

_KNOWN = (
    *("TF_NUM_INTRA_THREADS", "TF_NUM_INTER_THREADS", "TF_USE_PER_SESSION_THREADS", "TF_SIGNATURE_DEF"),
    *("TF_GRAPH_TAG", "TF_INIT_OPS_FILE", "MAX_SESSION_SHARE_COUNT"),
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
    given = parameters.values
    level = config.optimization.graph.level
    version = backend.get("version", "2")
    if version != "2":
        raise ConfigError(f"--backend-config tensorflow,version={version}: tpx serves with TensorFlow 2 only")
    accelerators = config.optimization.execution_accelerators
    if accelerators.cpu_execution_accelerator:
        raise ConfigError(
            f"model '{config.name}': CPU Execution Accelerator is not supported in TensorFlow backend",
            field="optimization.execution_accelerators.cpu_execution_accelerator",
        )
    for accelerator in accelerators.gpu_execution_accelerator:
        if accelerator.name in ("tensorrt", "gpu_io"):
            raise ConfigError(
                f"model '{config.name}' asks for execution accelerator '{accelerator.name}', which tpx "
                "does not support for TensorFlow: serve TensorRT engines with backend 'tensorrt'",
                field=path_of(config, accelerator),
            )
        if accelerator.name != "auto_mixed_precision":
            raise ConfigError(
                f"model '{config.name}': unknown Execution Accelerator '{accelerator.name}' is requested",
                field=path_of(config, accelerator),
            )
    return TensorFlowSettings(
        intra_threads=parameters.threads("TF_NUM_INTRA_THREADS"),
        inter_threads=parameters.threads("TF_NUM_INTER_THREADS") if "TF_NUM_INTER_THREADS" in given else None,
        per_session_threads=parameters.switch("TF_USE_PER_SESSION_THREADS", default=False),
        signature=given.get("TF_SIGNATURE_DEF", ""),
        tag=given.get("TF_GRAPH_TAG", "") or "serve",
        init_ops_file=given.get("TF_INIT_OPS_FILE", ""),
        sharing=parameters.whole("MAX_SESSION_SHARE_COUNT", least=1, default=1),
        jit="ON_2" if level > 1 else _JIT.get(level, "DEFAULT"),
        mixed_precision=bool(accelerators.gpu_execution_accelerator),
        soft_placement=options.switch("allow-soft-placement", default=True),
        gpu_memory_fraction=options.number("gpu-memory-fraction", "between 0 and 1", most=1),
    )
