"""What stands for the module tensorrt: the same names and parameters, on the memory of the fake driver.

SIGNATURES was taken from the docstrings of the real bindings (tensorrt-cu13-bindings 11.4). A plan begins as
real ones do, and goes on with a description in JSON of what the engine has and computes.
"""

import ctypes
import json
import math
from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

SIGNATURES: dict[str, dict[str, tuple[str, ...]]] = {
    "Runtime": {"deserialize_cuda_engine": ("serialized_engine",)},
    "ICudaEngine": {
        "get_tensor_name": ("index",),
        "get_tensor_mode": ("name",),
        "get_tensor_dtype": ("name",),
        "get_tensor_shape": ("name",),
        "get_tensor_format": ("name",),
        "is_shape_inference_io": ("name",),
        "get_tensor_profile_shape": ("name", "profile_index"),
        # called so in the bindings, but the first one is the profile and the second one the name
        "get_tensor_profile_values": ("name", "profile_index"),
        "create_execution_context": ("strategy",),
    },
    "IExecutionContext": {
        "set_optimization_profile_async": ("profile_index", "stream_handle"),
        "set_input_shape": ("name", "shape"),
        "infer_shapes": (),
        "get_tensor_shape": ("name",),
        "set_tensor_address": ("name", "memory"),
        "set_output_allocator": ("name", "output_allocator"),
        "execute_async_v3": ("stream_handle",),
    },
    "IPluginRegistry": {"load_library": ("plugin_path",)},
    "IOutputAllocator": {
        "reallocate_output": ("tensor_name", "memory", "size", "alignment"),
        "reallocate_output_async": ("tensor_name", "memory", "size", "alignment", "stream"),
        "notify_shape": ("tensor_name", "shape"),
    },
    "ILogger": {"log": ("severity", "msg")},
}
PROPERTIES: dict[str, set[str]] = {
    "Runtime": {"engine_host_code_allowed"},
    "ICudaEngine": {"num_io_tensors", "num_optimization_profiles"},
    "IExecutionContext": set(),
}
FUNCTIONS = {"init_libnvinfer_plugins", "get_plugin_registry"}

TensorIOMode = Enum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])
TensorFormat = Enum("TensorFormat", ["LINEAR", "CHW32"])
DataType = Enum(
    "DataType", ["FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64", "BOOL", "UINT8", "FP8", "INT4"]
)
ExecutionContextAllocationStrategy = Enum(
    "ExecutionContextAllocationStrategy", ["STATIC", "ON_PROFILE_CHANGE", "USER_MANAGED"]
)
Severity = Enum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"])

_NUMPY = {"FLOAT": np.float32, "INT32": np.int32, "INT64": np.int64, "HALF": np.float16}
__version__ = "11.4.0.106"

Array = npt.NDArray[Any]


def plan(tensors: Sequence[dict[str, Any]], compute: str = "double", version: str = "11.4.0.106") -> bytes:
    """A serialized engine; a tensor has the keys name, mode, dtype, shape, and some of those in `_Tensor`."""
    head = b"ftrt" + bytes(20) + bytes(int(number) for number in version.split("."))
    return head + json.dumps({"tensors": list(tensors), "compute": compute}).encode()


class ILogger:
    def __init__(self) -> None:
        self.made = True

    def log(self, severity: Any, msg: str) -> None:
        raise AssertionError("as of the real one, subclasses say where messages go")


class IOutputAllocator:
    def __init__(self) -> None:
        self.made = True


class IPluginRegistry:
    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load_library(self, plugin_path: str) -> object:
        ctypes.CDLL(plugin_path)
        self.loaded.append(plugin_path)
        return object()


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        assert logger.made
        self.logger = logger
        self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> "ICudaEngine | None":
        if serialized_engine[:4] != b"ftrt":
            self.logger.log(Severity.ERROR, "Magic tag does not match")
            return None
        version = ".".join(map(str, serialized_engine[24:28]))
        if version != __version__ and not self.engine_host_code_allowed:
            self.logger.log(Severity.ERROR, "Version tag does not match")
            return None
        return ICudaEngine(self.logger, json.loads(serialized_engine[28:]))


class ICudaEngine:
    def __init__(self, logger: ILogger, described: dict[str, Any]) -> None:
        self.logger = logger
        self.compute = described["compute"]
        self.tensors = {each["name"]: each for each in described["tensors"]}
        self.contexts: list[IExecutionContext] = []

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return max(len(each.get("profiles", [0])) for each in self.tensors.values())

    def get_tensor_name(self, index: int) -> str:
        return str(list(self.tensors)[index])

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode[self.tensors[name]["mode"]]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self.tensors[name]["dtype"]]

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        return tuple(self.tensors[name]["shape"])

    def get_tensor_format(self, name: str) -> TensorFormat:
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def is_shape_inference_io(self, name: str) -> bool:
        return bool(self.tensors[name].get("is_shape"))

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Any]:
        shape = self.tensors[name]["shape"]
        profiles: list[list[Any]] = self.tensors[name].get("profiles", [[shape] * 3])
        return profiles[profile_index]

    def get_tensor_profile_values(self, name: int, profile_index: str) -> list[list[int]]:
        values: list[list[list[int]]] = self.tensors[profile_index].get("values", [[]])
        return values[name]

    def create_execution_context(self, strategy: Any) -> "IExecutionContext":
        self.contexts.append(IExecutionContext(self, strategy))
        return self.contexts[-1]


class IExecutionContext:
    def __init__(self, engine: ICudaEngine, strategy: Any) -> None:
        self.engine = engine
        self.strategy = strategy
        self.profile = 0
        self.shapes: dict[str, Sequence[int]] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self.profile = profile_index
        return bool(stream_handle) and profile_index < self.engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self.engine.get_tensor_profile_shape(name, self.profile)
        fits = len(shape) == len(most) and all(
            a <= b <= c for a, b, c in zip(least, shape, most, strict=True)
        )
        if not fits:
            self.engine.logger.log(Severity.ERROR, "the shape does not fit")
        self.shapes[name] = shape
        return fits

    def infer_shapes(self) -> list[str]:
        missing = []
        for name, each in self.engine.tensors.items():
            if each["mode"] == "INPUT":
                unshaped = -1 in each["shape"] and name not in self.shapes
                if unshaped or (each.get("is_shape") and name not in self.addresses):
                    missing.append(name)
        return missing

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        each = self.engine.tensors[name]
        if each["mode"] == "INPUT":
            return self.shapes.get(name, tuple(each["shape"]))
        if self.engine.compute == "double":
            return self.get_tensor_shape("x")
        if self.engine.compute == "fill" and not each.get("is_shape"):
            return tuple(self._read("s").tolist())
        return tuple(each["shape"])

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return memory != 0

    def set_output_allocator(self, name: str, output_allocator: Any) -> bool:
        self.allocators[name] = output_allocator
        return bool(output_allocator.made)

    def execute_async_v3(self, stream_handle: int) -> bool:
        if not stream_handle or self.infer_shapes():
            return False
        compute = self.engine.compute
        if compute == "fail":
            self.engine.logger.log(Severity.ERROR, "the kernel has failed")
            return False
        if compute == "double":
            self._write("y", self._read("x") * 2)
        elif compute == "positive":
            values = self._read("x")
            return self._allocate("y", values[values > 0])
        else:
            self._write("y", np.full(self.get_tensor_shape("y"), 7, np.float32))
            self._write("t", self._read("s"))
        return True

    def _read(self, name: str) -> Array:
        shape = self.get_tensor_shape(name)
        dtype = np.dtype(_NUMPY[self.engine.tensors[name]["dtype"]])
        data = ctypes.string_at(self.addresses[name], math.prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype).reshape(shape)

    def _write(self, name: str, array: Array) -> None:
        ctypes.memmove(self.addresses[name], array.tobytes(), array.nbytes)

    def _allocate(self, name: str, array: Array) -> bool:
        allocator = self.allocators[name]
        address = allocator.reallocate_output_async(name, 0, max(array.nbytes, 1), 256, 1)
        if not address:
            self.engine.logger.log(Severity.ERROR, "no memory for an output")
            return False
        ctypes.memmove(address, array.tobytes(), array.nbytes)
        allocator.notify_shape(name, array.shape)
        return True


def module() -> Any:
    """A module of its own, as `import tensorrt` gives it; `registry` tells what was loaded."""
    registry = IPluginRegistry()
    return SimpleNamespace(
        __version__=__version__,
        ILogger=ILogger,
        IOutputAllocator=IOutputAllocator,
        Runtime=Runtime,
        ExecutionContextAllocationStrategy=ExecutionContextAllocationStrategy,
        init_libnvinfer_plugins=lambda logger, namespace: logger.made and namespace == "",
        get_plugin_registry=lambda: registry,
        registry=registry,
    )
