"""Engines in memory, one per device and shared by all instances there, and the settings for loading
them.

The settings have the names of Triton's backend (tensorrt_backend/README.md).
"""

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

from tpx.cuda_driver import CudaDriver
from tpx.errors import ConfigError, LoadError
from tpx.protocol.messages import ModelConfig
from tpx.protocol.model_config import path_of
from tpx.serving.backends.parameters import GivenParameters

Strategy = Literal["STATIC", "ON_PROFILE_CHANGE"]
Priority = Literal["DEFAULT", "MAX", "MIN"]

_MULTI_DEVICE = "enable_multi_device"
_STRATEGY = "execution_context_allocation_strategy"
_STRATEGIES: Mapping[str, Strategy] = {"STATIC": "STATIC", "ON_PROFILE_CHANGE": "ON_PROFILE_CHANGE"}
_PRIORITIES: Mapping[int, Priority] = {0: "DEFAULT", 1: "MAX", 2: "MIN"}
_POLICIES = ("DEVICE_BLOCKING", "BLOCKING")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRtSettings:
    """Settings for loading engines and creating execution contexts."""

    strategy: Strategy = "STATIC"
    """Memory of a context: STATIC is for the largest shapes, ON_PROFILE_CHANGE for those of its profile."""
    priority: Priority = "DEFAULT"
    """Priority of the streams."""
    plugins: tuple[Path, ...] = ()
    """Libraries with the plugin layers of engines."""
    version_compatible: bool = False
    """True if engines may contain their own runtime, which is executable code."""


def settings_of(config: ModelConfig, backend: Mapping[str, str]) -> TensorRtSettings:
    """Return the settings of a ModelConfig; `backend` holds those of --backend-config. Raises ConfigError."""
    given = GivenParameters.of_model(config)
    strategy = given.one_of(_STRATEGY, _STRATEGIES) or "STATIC"
    if given.switch(_MULTI_DEVICE, default=False):
        fault = f"parameter '{_MULTI_DEVICE}' of {given.where}: tpx runs an engine on one GPU"
        raise given.refuse(_MULTI_DEVICE, fault)
    given.warn_of_others([_STRATEGY, _MULTI_DEVICE], "has no effect")
    for group in config.instance_group:
        if group.secondary_devices:
            raise ConfigError(
                f"instance group {group.name} of model {config.name} names secondary_devices, but tpx runs "
                "engines on GPUs only",
                field=path_of(config, group, "secondary_devices"),
            )
    for name in ("graphs", "busy_wait_events", "output_copy_stream"):
        if getattr(config.optimization.cuda, name):
            log.warning("optimization.cuda.%s of model '%s' has no effect", name, config.name)
    options = GivenParameters.of_backend("tensorrt", backend)
    # only validated: instances always overlap, and the inputs of a batch are always coalesced
    options.one_of("execution-policy", dict.fromkeys(_POLICIES, ""))
    options.switch("coalesce-request-input", default=False)
    plugins = tuple(Path(each) for each in backend.get("plugins", "").split(";") if each)
    for path in plugins:
        if not path.is_file():
            raise LoadError(
                f"unable to find the TensorRT plugin '{path}' of --backend-config tensorrt,plugins"
            )
    return TensorRtSettings(
        strategy=cast("Strategy", strategy),
        priority=_PRIORITIES[config.optimization.priority],
        plugins=plugins,
        version_compatible=options.switch("version-compatible", default=False),
    )


log = logging.getLogger(__name__)

_PLAN_TAG = b"ftrt"
# four bytes, in the only layout that has the tag (TensorRT: samples/common/sampleEngines.cpp)
_VERSION_AT = 24
_one_at_a_time = threading.Lock()
"""Lock for loading: TensorRT deserializes engines in one thread at a time."""


class Engines:
    """The engines of one model, by device."""

    def __init__(self, trt: ModuleType, driver: CudaDriver, model: str, settings: TensorRtSettings) -> None:
        """Load the plugins. `trt` is the tensorrt module. Raises LoadError if a plugin cannot be loaded."""
        self.trt = trt
        self.driver = driver
        self.model = model
        self.settings = settings
        self.logger = _make_logger(trt)
        self._runtimes: dict[int, Any] = {}
        self.loaded: dict[int, Any] = {}
        trt.init_libnvinfer_plugins(self.logger, "")
        for path in settings.plugins:
            try:
                trt.get_plugin_registry().load_library(str(path))
            except (RuntimeError, OSError, TypeError, ValueError) as exc:
                raise LoadError(f"tensorrt cannot load the plugin '{path}': {exc}") from exc

    def engine(self, device: int, path: Path) -> Any:
        """Return the engine on a device, loaded on first use. Raises LoadError with the probable reason."""
        if device in self.loaded:
            return self.loaded[device]
        try:
            plan = path.read_bytes()
        except OSError as exc:
            raise LoadError(f"cannot read '{path}' of model '{self.model}': {exc.strerror}") from exc
        with _one_at_a_time, self.driver.on(device):
            self.logger.last = ""
            runtime = self.trt.Runtime(self.logger)
            if self.settings.version_compatible:
                runtime.engine_host_code_allowed = True
            engine = runtime.deserialize_cuda_engine(plan)
            if engine is None:
                version = self.trt.__version__
                raise LoadError(
                    f"tensorrt {version} cannot load '{path}' of model '{self.model}' on GPU {device}: "
                    f"{self.logger.last or 'no reason given'}{mismatch(plan, version)}"
                )
            self._runtimes[device], self.loaded[device] = runtime, engine
        return engine

    def close(self) -> None:
        """Release the engines, each before the runtime that created it."""
        for device in list(self.loaded):
            with self.driver.on(device):
                del self.loaded[device]
                del self._runtimes[device]


def plan_version(plan: bytes) -> str:
    """Return the TensorRT version that built a plan, or an empty string if the plan does not contain it."""
    if plan[:4] != _PLAN_TAG or plan[4:8] != bytes(4) or len(plan) < _VERSION_AT + 4:
        return ""
    return ".".join(str(number) for number in plan[_VERSION_AT : _VERSION_AT + 4])


def mismatch(plan: bytes, installed: str) -> str:
    """Return the probable reason why a plan cannot be loaded, from its version and the installed one."""
    if plan[:4] != _PLAN_TAG:
        return " (the file is not a TensorRT plan)"
    built = plan_version(plan)
    if not built or built.split(".")[:3] == installed.split(".")[:3]:
        return " (a plan runs on the kind of GPU that it was built on)"
    return (
        f" (it was built with TensorRT {built}, here is {installed}: build it with the version that is here, "
        "or build it version-compatible and allow that with --backend-config "
        "tensorrt,version-compatible=true)"
    )


def _make_logger(trt: Any) -> Any:
    """Return a TensorRT logger that forwards to `logging` and keeps the last error, for failed calls."""
    levels = {"INTERNAL_ERROR": logging.ERROR, "ERROR": logging.ERROR, "WARNING": logging.WARNING}

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, msg: str) -> None:
            level = levels.get(severity.name, logging.DEBUG)
            if level == logging.ERROR:
                self.last = msg
            log.log(level, "tensorrt: %s", msg)

    return Log()
