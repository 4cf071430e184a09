"""Tensors as models see them: numpy arrays over the bytes that came, or whatever speaks DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpx.serving.backends.python.worker.datatypes import NUMPY_OF, name_of
from tpx.serving.backends.python.worker.errors import TritonModelException
from tpx.serving.backends.python.worker.frames import Buffer, TensorHead
from tpx.serving.backends.python.worker.strings import decode_strings, encode_strings

_CPU = (1, 0)
"""DLPack's device of host memory."""


class Tensor:
    """A named tensor. One that came is read from its bytes when it is asked for."""

    __slots__ = ("_array", "_data", "_datatype", "_foreign", "_name", "_shape")

    def __init__(self, name: str, numpy_array: Any) -> None:
        """Raises TritonModelException for a numpy type that no tensor can have."""
        array = numpy_array if isinstance(numpy_array, np.ndarray) else np.asarray(numpy_array)
        datatype = name_of(array.dtype)
        if datatype is None:
            raise TritonModelException(f"Tensor '{name}' has the unsupported numpy type '{array.dtype}'.")
        self._name = str(name)
        self._datatype = datatype
        self._array: Any = array
        self._data: Buffer | None = None
        self._shape: tuple[int, ...] = array.shape
        self._foreign: Any = None

    @classmethod
    def _received(cls, head: TensorHead, data: Buffer) -> Tensor:
        self = cls.__new__(cls)
        self._name, self._datatype, self._shape = head
        self._array = self._foreign = None
        self._data = data
        return self

    @staticmethod
    def from_dlpack(name: str, dlpack: Any) -> Tensor:
        """A tensor over the memory of whatever speaks DLPack. Raises TritonModelException."""
        self = Tensor.__new__(Tensor)
        self._name = str(name)
        self._array = self._data = self._foreign = None
        if type(dlpack).__name__ == "PyCapsule":
            dlpack = _Capsule(dlpack)
        device = dlpack.__dlpack_device__()
        if str(getattr(dlpack, "dtype", "")) == "torch.bfloat16":
            import torch

            self._datatype, self._shape = "BF16", tuple(dlpack.shape)
            self._foreign = dlpack
            if device[0] == _CPU[0]:
                self._array = dlpack.contiguous().view(torch.int16).numpy().view(np.uint16)
            return self
        if device[0] != _CPU[0]:
            self._foreign = dlpack
            self._shape = tuple(dlpack.shape)
            self._datatype = str(name_of(str(dlpack.dtype).removeprefix("torch.")))
            return self
        try:
            self._array = np.from_dlpack(dlpack)
        except (BufferError, RuntimeError, TypeError) as exc:
            raise TritonModelException(f"Tensor '{name}' cannot be made from DLPack: {exc}") from exc
        self._shape = self._array.shape
        self._datatype = str(name_of(self._array.dtype))
        return self

    def name(self) -> str:
        """Of the input or output."""
        return self._name

    def shape(self) -> list[int]:
        """With the batch dimension, where there is one."""
        return list(self._shape)

    def triton_dtype(self) -> str:
        """As configurations write it: TYPE_FP32."""
        return "TYPE_STRING" if self._datatype == "BYTES" else f"TYPE_{self._datatype}"

    def is_cpu(self) -> bool:
        """Whether it lies in host memory."""
        return self._array is not None or self._data is not None

    def as_numpy(self) -> Any:
        """The array; of what came it is a view, of BYTES an array of objects. Raises TritonModelException."""
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
        """A DLPack capsule over the same memory. Raises TritonModelException for BYTES."""
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

    def _head(self) -> TensorHead:
        return TensorHead(self._name, self._datatype, self._shape)

    def _raw(self) -> Buffer:
        """The bytes in wire form; without a copy where the array is contiguous."""
        if self._data is not None and self._datatype == "BYTES":
            return self._data
        array = self._host_array()
        if array is None:
            array = self._fetched()
        if self._datatype == "BYTES":
            return encode_strings(array)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return memoryview(array.reshape(-1).view(np.uint8))

    def _fetched(self) -> Any:
        """A copy in host memory of what lies on a device."""
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


class _Capsule:
    """A bare DLPack capsule of host memory, as an object that has one."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def get_input_tensor_by_name(inference_request: Any, name: str) -> Tensor | None:
    """The input of this name, None if the request has not got it."""
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: Any, name: str) -> Tensor | None:
    """The output of this name, None if the response has not got it. Raises TritonModelException for an
    error."""
    if inference_response.has_error():
        raise TritonModelException(
            "This 'InferenceResponse' object has an error: " + inference_response.error().message()
        )
    return _named(inference_response.output_tensors(), name)


def _named(tensors: list[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None
