"""Options of sessions and of their runs, from a model's configuration."""

import re
from collections.abc import Mapping
from typing import Any

import onnxruntime as ort

from tpx.errors import ConfigError
from tpx.serving.backends.contract import InstanceSpec, ModelFiles
from tpx.serving.backends.onnxruntime.entries import ENTRIES, PREFIXES
from tpx.serving.backends.onnxruntime.failures import ORT_ERRORS
from tpx.serving.backends.onnxruntime.operators import DIRECTORIES, register_operators
from tpx.serving.backends.onnxruntime.parameters import Parameters
from tpx.serving.backends.onnxruntime.providers import CUDA_PARAMETERS
from tpx.serving.backends.onnxruntime.threads import COMMAND_LINE, GLOBAL, INTER, INTRA, Threads

SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_OWN = (INTRA, INTER, "execution_mode", "enable_mem_arena", "enable_mem_pattern", SHRINKAGE)
_SETTINGS = (GLOBAL, INTRA, INTER, DIRECTORIES, "default-max-batch-size")
"""The keys of --backend-config; the last one is read where configurations are completed."""
_DEVICE = re.compile(r"(cpu|gpu):(\d+)")

_GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def warn_of_unknown(config: Any, settings: Mapping[str, str], *, on_gpu: bool) -> None:
    """One line for each parameter and each key of --backend-config that nothing reads, and for each entry
    that ONNX Runtime may not know."""
    Parameters(where=COMMAND_LINE, words=settings).warn_of_others(_SETTINGS, "has no effect")
    given = Parameters.of_model(config)
    for key in given.words:
        if key in _OWN or key in ENTRIES:
            continue
        if key in CUDA_PARAMETERS:
            if not on_gpu:
                given.warn(key, "has no effect: no instance is on a GPU")
        elif key.startswith(PREFIXES):
            given.warn(key, "is passed on to ONNX Runtime, but tpx does not know it", (*ENTRIES, *_OWN))
        else:
            given.warn(key, "has no effect", (*_OWN, *CUDA_PARAMETERS, *ENTRIES))


def session_options(config: Any, threads: Threads, files: ModelFiles) -> ort.SessionOptions:
    """As the configuration and --backend-config say. Raises ConfigError, LoadError."""
    given = Parameters.of_model(config)
    options = ort.SessionOptions()
    threads.apply(options)
    options.graph_optimization_level = _GRAPH_LEVELS.get(
        config.optimization.graph.level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    )
    if given.switch("execution_mode", default=False):
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = given.switch("enable_mem_arena", default=True)
    options.enable_mem_pattern = given.switch("enable_mem_pattern", default=True)
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    for key, word in given.words.items():
        if key.startswith(PREFIXES):
            try:
                options.add_session_config_entry(key, word)
            except ORT_ERRORS as exc:
                raise ConfigError(f"parameter '{key}' of {given.where}: {exc}") from exc
    register_operators(options, config, files.directory, files.settings)
    return options


def run_options(config: Any, spec: InstanceSpec) -> ort.RunOptions:
    """What each run of an instance is told. Raises ConfigError."""
    options = ort.RunOptions()
    options.log_severity_level = 3
    arenas = _arenas(config, spec)
    if arenas:
        options.add_run_config_entry(SHRINKAGE, ";".join(arenas))
    return options


def _arenas(config: Any, spec: InstanceSpec) -> list[str]:
    """Those of this instance whose free memory goes back to the system after each run."""
    given = Parameters.of_model(config)
    text = given.words.get(SHRINKAGE, "")
    out = []
    for item in text.split(";") if text else ():
        found = _DEVICE.fullmatch(item)
        if found is None:
            raise ConfigError(
                f"parameter '{SHRINKAGE}' of {given.where} must be devices such as cpu:0;gpu:0, got '{text}'"
            )
        kind, device = found[1], int(found[2])
        if kind == "cpu" and (device or not given.switch("enable_mem_arena", default=True)):
            raise ConfigError(
                f"parameter '{SHRINKAGE}' of {given.where} names {item}, which has no arena: the one of the "
                "CPU is cpu:0, unless enable_mem_arena is 0"
            )
        if kind == "cpu" or (spec.kind == "KIND_GPU" and spec.device_id == device):
            out.append(item)
    return out
