"""Model `parameters` of the pytorch backend, Triton's and tpx's own, and the thread counts of the process."""

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tpx.processors import schedulable_processors
from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.parameters import GivenParameters
from tpx.serving.backends.pytorch.program import Format

log = logging.getLogger(__name__)

CLASS = "MODULE_CLASS"
GRAPHS = "CUDA_GRAPH_BATCH_SIZES"
COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_INTRA = ("INTRA_OP_THREAD_COUNT", "NUM_THREADS")
_INTER = ("INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS")
_NOT_OPTIMIZED = "DISABLE_OPTIMIZED_EXECUTION"
_JIT = {
    _NOT_OPTIMIZED: "_set_graph_executor_optimize",
    "ENABLE_JIT_EXECUTOR": "_jit_set_profiling_executor",
    "ENABLE_JIT_PROFILING": "_jit_set_profiling_mode",
    "ENABLE_TENSOR_FUSER": "_jit_set_texpr_fuser_enabled",
}
"""Functions of torch._C that set up TorchScript's executor, by parameter."""
_GPU = ("DISABLE_CUDNN", "ENABLE_CACHE_CLEANING", GRAPHS)
_COMPILED = (Format.EXPORTED, Format.MODULE)
_REFUSED = {
    "MODEL_INIT_LIBRARY": "tpx loads no libraries for models: load it in the model.py of a python model",
    "EXECUTION_ENV_PATH": "PyTorch models run with the server's own Python: the python backend takes others",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PytorchSettings:
    """Settings from a model's parameters; None means PyTorch's default."""

    jit: Mapping[str, bool] = field(default_factory=dict)
    """Given parameters of TorchScript's executor."""
    inference_mode: bool = True
    cudnn: bool = True
    weight_sharing: bool = False
    cache_cleaning: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    compile_options: JsonObject | None = None
    """Options of torch.compile; None if the model is not compiled."""
    class_name: str = ""
    graph_batch_sizes: tuple[int, ...] = ()
    """Batch sizes for which a CUDA graph is recorded."""


def settings_of(config: ModelConfig, kind: Format, *, on_gpu: bool) -> PytorchSettings:
    """Read the parameters, with a warning for each that has no effect on this model. Raises ConfigError."""
    given = GivenParameters.of_model(config)
    for key, reason in _REFUSED.items():
        if key in given.values:
            fault = f"model '{config.name}': parameter {key} is not supported: {reason}"
            raise given.refuse(key, fault)
    most = max(1, config.max_batch_size)
    words = [word.strip() for word in given.values.get(GRAPHS, "").split(",") if word.strip()]
    if not all(word.isdecimal() and 0 < int(word) <= most for word in words):
        raise given.wrong(GRAPHS, f"batch sizes from 1 to max_batch_size ({most}), with commas between")
    settings = PytorchSettings(
        jit={key: given.switch(key, default=False) for key in _JIT if key in given.values},
        inference_mode=given.switch("INFERENCE_MODE", default=True),
        cudnn=not given.switch("DISABLE_CUDNN", default=False),
        weight_sharing=given.switch("ENABLE_WEIGHT_SHARING", default=False),
        cache_cleaning=given.switch("ENABLE_CACHE_CLEANING", default=False),
        intra_op_threads=_read_thread_count(given, *_INTRA),
        inter_op_threads=_read_thread_count(given, *_INTER),
        compile_options=_read_compile_options(given),
        class_name=given.values.get(CLASS, ""),
        graph_batch_sizes=tuple(sorted({int(word) for word in words})),
    )
    file = f"the model's file is: {kind.value}"
    effects = {
        **dict.fromkeys(_JIT, (kind is Format.TORCHSCRIPT, f"it is for TorchScript, and {file}")),
        COMPILE: (kind in _COMPILED, f"torch.compile takes modules and exported programs, and {file}"),
        CLASS: (kind is Format.MODULE, file),
        **dict.fromkeys(_GPU, (on_gpu, "no instance of the model is on a GPU")),
        **dict.fromkeys(("INFERENCE_MODE", "ENABLE_WEIGHT_SHARING", *_INTRA, *_INTER), (True, "")),
    }
    for key in given.values:
        effective, reason = effects.get(key, (False, "the pytorch backend does not know it"))
        if not effective:
            given.warn(key, f"has no effect: {reason}")
    return settings


def _read_thread_count(given: GivenParameters, *keys: str) -> int:
    """Return a thread count from synonymous keys; 0 or less means the default. Raises ConfigError."""
    counts = {}
    for key in keys:
        if key in given.values:
            counts[key] = 0 if re.fullmatch("-[0-9]+", given.values[key]) else given.threads(key)
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{key} {count}" for key, count in counts.items())
        raise given.refuse(
            next(iter(counts)), f"{given.where}: these parameters mean the same: {counts_text}"
        )
    return next(iter(counts.values()), 0)


def _read_compile_options(given: GivenParameters) -> JsonObject | None:
    text = given.values.get(COMPILE)
    if text is None:
        return None
    try:
        options = json.loads(text or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise given.wrong(COMPILE, "a JSON object of keyword arguments of torch.compile")
    if "model" in options:
        fault = f"{given.where}: 'model' is not an optional parameter for 'torch.compile'"
        raise given.refuse(COMPILE, fault)
    return options


Switch = Callable[[bool], Any]


def jit_switches(settings: PytorchSettings, torch_c: Any, model: str) -> list[tuple[Switch, bool]]:
    """Return the TorchScript executor switches that a model sets before each run, as Triton does.

    They apply to the whole process. `torch_c` is torch._C; a switch that this PyTorch lacks is logged.
    """
    switches = []
    for key, value in {_NOT_OPTIMIZED: False, **settings.jit}.items():
        switch = getattr(torch_c, _JIT[key], None)
        if switch is not None:
            switches.append((switch, value is not (key == _NOT_OPTIMIZED)))
        elif key in settings.jit:
            log.warning(
                "parameter '%s' of model '%s' has no effect: this PyTorch has no %s", key, model, _JIT[key]
            )
    return switches


class ThreadCounts:
    """Thread counts requested by the models of a process; used by loader threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._intra = ""
        """Name of the model that set the count; empty if none did."""
        self._most_instances = 0

    def ask(self, model: str, *, intra: int, inter: int, instances: int) -> None:
        """Request thread counts; without any, the cores are divided by the most instances of any model."""
        with self._lock:
            self._most_instances = max(self._most_instances, instances)
            if not self._intra:
                self._intra = model if intra else ""
                torch.set_num_threads(intra or max(1, schedulable_processors() // self._most_instances))
            elif intra and (count := torch.get_num_threads()) != intra:
                log.warning(
                    "model '%s' asks for INTRA_OP_THREAD_COUNT %d, but all models of a process share one "
                    "count: %d, set first by model '%s'",
                    *(model, intra, count, self._intra),
                )
            if inter and torch.get_num_interop_threads() != inter:
                try:
                    torch.set_num_interop_threads(inter)
                except RuntimeError:
                    log.warning(
                        "model '%s' asks for INTER_OP_THREAD_COUNT %d, but PyTorch accepts the count "
                        "only once, before its first computation: it is %d",
                        *(model, inter, torch.get_num_interop_threads()),
                    )


PROCESS = ThreadCounts()
"""The only ThreadCounts, because PyTorch has one thread pool per process."""
