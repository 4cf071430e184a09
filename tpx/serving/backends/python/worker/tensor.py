"""Tensors as models see them: numpy arrays over received bytes, or any object that supports DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpx.serving.backends.python.worker import arguments
from tpx.serving.backends.python.worker.datatypes import (
    NUMPY_OF,
    Array,
    decode_strings,
    encode_strings,
    name_of,
)
from tpx.serving.backends.python.worker.dlpack import Capsule
from tpx.serving.backends.python.worker.errors import TritonModelException
from tpx.serving.backends.python.worker.frames import INLINE_BELOW_BYTES, TensorHead
from tpx.serving.transport.memory import Buffer

_CPU = (1, 0)
"""DLPack's device for host memory."""


class Tensor:
    """A named tensor. A received tensor is decoded on first use."""

    __slots__ = ("_array", "_data", "_datatype", "_foreign", "_name", "_shape")

    def __init__(self, name: str, numpy_array: Array) -> None:
        """Create a tensor. Raises TypeError; TritonModelException for an empty name, an unsupported type."""
        if type(name) is not str:
            name = arguments.text(name, "Tensor(): name")
        if not isinstance(numpy_array, np.ndarray):
            raise arguments.wrong(numpy_array, "Tensor(): the array", "a numpy.ndarray")
        self._name = name or _check_name(name, "Tensor(): name")
        datatype = name_of(numpy_array.dtype)
        if datatype is None:
            raise TritonModelException(
                f"NumPy dtype is not supported. Tensor '{name}' has '{numpy_array.dtype}'."
            )
        self._datatype = datatype
        self._array: Array | None = numpy_array
        self._data: Buffer | None = None
        self._shape: tuple[int, ...] = numpy_array.shape
        self._foreign: Any = None

    @classmethod
    def _from_frame(cls, head: TensorHead, data: Buffer) -> Tensor:
        self = cls.__new__(cls)
        self._name, self._datatype, self._shape = head
        self._array = self._foreign = None
        self._data = data
        return self

    @staticmethod
    def from_dlpack(name: str, dlpack: object) -> Tensor:
        """Return a tensor over the memory of a DLPack capsule, or of an object that exports one.

        Raises TypeError, and TritonModelException for anything else and for a capsule with gaps.
        """
        name = _check_name(name, "Tensor.from_dlpack(): name")
        if isinstance(dlpack, np.ndarray) and dlpack.flags.c_contiguous:
            return Tensor(name, dlpack)  # numpy does not export read-only arrays
        self = Tensor.__new__(Tensor)
        self._name = name
        self._array = self._data = self._foreign = None
        if type(dlpack).__name__ == "PyCapsule":  # it has no class that could be imported
            capsule = Capsule(dlpack)
            if not capsule.contiguous:
                raise TritonModelException(
                    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
                    "C-Order are supported."
                )
            if not capsule.on_host:
                dlpack = capsule.on_device()
        elif not (hasattr(dlpack, "__dlpack__") and hasattr(dlpack, "__dlpack_device__")):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes"
            )
        else:
            try:
                capsule = Capsule(dlpack.__dlpack__())
            except (BufferError, RuntimeError, TypeError) as exc:
                raise TritonModelException(f"Tensor '{name}' cannot be made from DLPack: {exc}") from exc
        self._shape, self._datatype = capsule.shape, capsule.datatype
        if capsule.on_host:
            self._array = capsule.array()
        else:
            self._foreign = dlpack
        return self

    def name(self) -> str:
        """Return the name of the input or output."""
        return self._name

    def shape(self) -> list[int]:
        """Return the shape, with the batch dimension if there is one."""
        return list(self._shape)

    def triton_dtype(self) -> str:
        """Return the datatype as configurations write it: TYPE_FP32."""
        return "TYPE_STRING" if self._datatype == "BYTES" else f"TYPE_{self._datatype}"

    def is_cpu(self) -> bool:
        """Return whether the tensor is in host memory."""
        return self._array is not None or self._data is not None

    def as_numpy(self) -> Any:
        """Return the array, a view if received; of objects for BYTES. Raises TritonModelException."""
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use DLPack instead: "
                "torch.from_dlpack(tensor), for example."
            )
        array = self._host_array()
        if array is None:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        return array

    def _host_array(self) -> Any:
        if self._array is None and self._data is not None:
            if self._datatype == "BYTES":
                self._array = decode_strings(self._data, self._shape)
            else:
                dtype = np.uint16 if self._datatype == "BF16" else NUMPY_OF[self._datatype]
                self._array = np.ndarray(self._shape, dtype, self._data)
        return self._array

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule over the same memory. Raises TritonModelException for BYTES."""
        return self.__dlpack__()

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        if self._foreign is not None:
            return self._foreign.__dlpack__() if stream is None else self._foreign.__dlpack__(stream=stream)
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        array = self._host_array()
        if self._datatype == "BF16":
            import torch

            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).__dlpack__()
        if not array.flags.writeable:
            array = array.copy()  # DLPack cannot say that memory must not be written
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        if self._foreign is not None:
            kind, number = self._foreign.__dlpack_device__()
            return int(kind), int(number)
        return _CPU

    # for the server

    def _make_head(self) -> TensorHead:
        return TensorHead(self._name, self._datatype, self._shape)

    def _encode(self) -> Buffer:
        """Return the bytes in wire form, without a copy if the array is large and contiguous."""
        if self._datatype == "BYTES":
            if self._data is not None:
                return self._data
            assert self._array is not None  # no device has strings
            return encode_strings(self._array)
        array = self._host_array()
        if array is None:
            array = self._copy_to_host()
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        if array.nbytes < INLINE_BELOW_BYTES:
            data: bytes = array.tobytes()  # a third of the cost of a view
            return data
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return memoryview(array.reshape(-1).view(np.uint8))

    def _copy_to_host(self) -> Any:
        """Return a host copy of a tensor on a device."""
        foreign: Any = self._foreign
        if hasattr(foreign, "cpu"):
            host = foreign.detach().cpu()
            if self._datatype == "BF16":
                import torch

                host = host.contiguous().view(torch.int16)
            return host.numpy()
        if hasattr(foreign, "get"):
            return foreign.get()
        raise TritonModelException(
            f"Tensor '{self._name}' lies on a device, and its type {type(foreign).__name__} has neither "
            "cpu() nor get() to bring it to the host."
        )

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self.triton_dtype()}, {list(self._shape)})"


def _check_name(name: object, argument: str) -> str:
    """Return the name of a tensor. Raises TypeError, and TritonModelException for an empty one."""
    name = arguments.text(name, argument)
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return str(name)


def get_input_tensor_by_name(inference_request: Any, name: str) -> Tensor | None:
    """Return the input of this name, None if the request does not have it."""
    return _find_by_name(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Tensor | None:
    """Return the output of this name, None if the response does not have it or is an error."""
    return _find_by_name(inference_response.output_tensors(), name)


def _find_by_name(tensors: list[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor._name == name), None)
