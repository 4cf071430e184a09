"""A model's `parameters`: Triton's for the pytorch backend, and ours."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpx.errors import ConfigError
from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.pytorch.archive import Format

log = logging.getLogger(__name__)

GRAPHS = "CUDA_GRAPH_BATCH_SIZES"
COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_JIT = ("DISABLE_OPTIMIZED_EXECUTION", "ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER")
_GPU = ("DISABLE_CUDNN", "ENABLE_CACHE_CLEANING", GRAPHS)
_COMPILED = (Format.EXPORTED, Format.MODULE)
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_REFUSED = {
    "MODEL_INIT_LIBRARY": "tpx loads no libraries for models: load it in the model.py of a python model",
    "EXECUTION_ENV_PATH": "PyTorch models run with the server's own Python: the python backend takes others",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What a model's parameters say; None is PyTorch's own default."""

    optimized_execution: bool = True
    jit_executor: bool | None = None
    jit_profiling: bool | None = None
    tensor_fuser: bool | None = None
    inference_mode: bool = True
    cudnn: bool = True
    weight_sharing: bool = False
    cache_cleaning: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    compile_options: JsonObject | None = None
    """Of torch.compile; None: the model is not compiled."""
    class_name: str = ""
    graph_batch_sizes: tuple[int, ...] = ()
    """The sizes of batches for which a CUDA graph is recorded."""


def parameters_of(config: ModelConfig, kind: Format, *, on_gpu: bool) -> Parameters:
    """Raises ConfigError; what cannot have an effect on this model is warned of."""
    given = _Given(config)
    for key, reason in _REFUSED.items():
        if key in given.texts:
            raise ConfigError(f"model '{config.name}': parameter {key} is not supported: {reason}")
    out = Parameters(
        optimized_execution=not given.switch("DISABLE_OPTIMIZED_EXECUTION", default=False),
        jit_executor=given.maybe("ENABLE_JIT_EXECUTOR"),
        jit_profiling=given.maybe("ENABLE_JIT_PROFILING"),
        tensor_fuser=given.maybe("ENABLE_TENSOR_FUSER"),
        inference_mode=given.switch("INFERENCE_MODE", default=True),
        cudnn=not given.switch("DISABLE_CUDNN", default=False),
        weight_sharing=given.switch("ENABLE_WEIGHT_SHARING", default=False),
        cache_cleaning=given.switch("ENABLE_CACHE_CLEANING", default=False),
        intra_op_threads=given.count("INTRA_OP_THREAD_COUNT", "NUM_THREADS"),
        inter_op_threads=given.count("INTER_OP_THREAD_COUNT", "NUM_INTEROP_THREADS"),
        compile_options=given.compile_options(),
        class_name=given.text("MODULE_CLASS"),
        graph_batch_sizes=given.sizes(),
    )
    file = f"the model's file is: {kind.value}"
    given.warn(_JIT, kind is Format.TORCHSCRIPT, f"it is for TorchScript, and {file}")
    given.warn(
        (COMPILE,), kind in _COMPILED, f"torch.compile takes modules and exported programs, and {file}"
    )
    given.warn(("MODULE_CLASS",), kind is Format.MODULE, file)
    given.warn(_GPU, on_gpu, "no instance of the model is on a GPU")
    given.warn_unknown()
    return out


class _Given:
    """The parameters as they are written."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self.texts: dict[str, str] = {key: value.string_value for key, value in config.parameters.items()}
        self._known: set[str] = set()

    def text(self, key: str) -> str:
        self._known.add(key)
        return self.texts.get(key, "")

    def maybe(self, key: str) -> bool | None:
        text = self.text(key)
        if key not in self.texts:
            return None
        if text.lower() not in _WORDS:
            raise self.wrong(key, "true or false")
        return _WORDS[text.lower()]

    def switch(self, key: str, *, default: bool) -> bool:
        value = self.maybe(key)
        return default if value is None else value

    def count(self, *keys: str) -> int:
        """Of keys that mean the same; 0 and less are the default."""
        counts = {}
        for key in keys:
            text = self.text(key)
            if key in self.texts:
                if not text.removeprefix("-").isdecimal():
                    raise self.wrong(key, "a whole number")
                if len(text) > 10 or int(text) >= 2**31:  # what PyTorch takes
                    raise self.wrong(key, "less than 2^31")
                counts[key] = max(0, int(text))
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{key} {count}" for key, count in counts.items())
            raise ConfigError(f"model '{self._config.name}': these parameters mean the same: {said}")
        return next(iter(counts.values()), 0)

    def compile_options(self) -> JsonObject | None:
        text = self.text(COMPILE)
        if COMPILE not in self.texts:
            return None
        try:
            options = json.loads(text or "{}")
        except ValueError:
            options = None
        if not isinstance(options, dict):
            raise self.wrong(COMPILE, "a JSON object of keyword arguments of torch.compile")
        if "model" in options:
            raise ConfigError(
                f"model '{self._config.name}': 'model' is not an optional parameter for 'torch.compile'"
            )
        return options

    def sizes(self) -> tuple[int, ...]:
        text = self.text(GRAPHS)
        words = [word.strip() for word in text.split(",") if word.strip()]
        most = max(1, self._config.max_batch_size)
        if not all(word.isdecimal() and 0 < int(word) <= most for word in words):
            raise self.wrong(GRAPHS, f"batch sizes from 1 to max_batch_size ({most}), with commas between")
        return tuple(sorted({int(word) for word in words}))

    def warn(self, keys: tuple[str, ...], effective: bool, reason: str) -> None:
        for key in keys:
            if key in self.texts and not effective:
                log.warning("parameter '%s' of model '%s' has no effect: %s", key, self._config.name, reason)

    def warn_unknown(self) -> None:
        for key in self.texts:
            if key not in self._known:
                log.warning(
                    "parameter '%s' of model '%s' has no effect: the pytorch backend does not know it",
                    key,
                    self._config.name,
                )

    def wrong(self, key: str, expected: str) -> ConfigError:
        return ConfigError(
            f"parameter '{key}' of model '{self._config.name}' must be {expected}, got '{self.texts[key]}'"
        )


Switch = Callable[[bool], Any]


def jit_switches(parameters: Parameters, torch_c: Any, model: str) -> list[tuple[Switch, bool]]:
    """The switches of TorchScript's executor that a model sets before each run, as Triton does: they are of
    the
    whole process.

    `torch_c` is torch._C; what a PyTorch no longer has is warned of.
    """
    wanted = [
        ("_set_graph_executor_optimize", parameters.optimized_execution, "DISABLE_OPTIMIZED_EXECUTION"),
        ("_jit_set_profiling_executor", parameters.jit_executor, "ENABLE_JIT_EXECUTOR"),
        ("_jit_set_profiling_mode", parameters.jit_profiling, "ENABLE_JIT_PROFILING"),
        ("_jit_set_texpr_fuser_enabled", parameters.tensor_fuser, "ENABLE_TENSOR_FUSER"),
    ]
    switches = []
    for name, value, key in wanted:
        if value is None:
            continue
        switch = getattr(torch_c, name, None)
        if switch is not None:
            switches.append((switch, value))
        elif key != "DISABLE_OPTIMIZED_EXECUTION" or not value:
            log.warning(
                "parameter '%s' of model '%s' has no effect: this PyTorch has no %s", key, model, name
            )
    return switches
