"""DLPack capsules read with ctypes: numpy supports neither BF16 nor, in older versions, bool.

The layout is `DLManagedTensor` of dlpack.h, which capsules named `dltensor` hold.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from contextlib import suppress
from typing import Any

import numpy as np

from tpx.serving.backends.python.worker.errors import TritonModelException

_NAME, _USED = b"dltensor", b"used_dltensor"
_TYPES = {
    **{(0, bits): (f"INT{bits}", f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(1, bits): (f"UINT{bits}", f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(2, bits): (f"FP{bits}", f"f{bits // 8}") for bits in (16, 32, 64)},
    (4, 16): ("BF16", "u2"),
    (6, 8): ("BOOL", "?"),
}
"""Datatype and numpy type by DLDataTypeCode and bits."""
_CPU, _CUDA, _CUDA_HOST = 1, 2, 3


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype, _set_name.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class Capsule:
    """A tensor handed over in a DLPack capsule; the consumer frees it."""

    def __init__(self, capsule: Any) -> None:
        """Take the tensor. Raises TritonModelException for another kind of capsule or a consumed one."""
        if not _is_valid(capsule, _NAME):
            raise TritonModelException("the capsule holds no DLPack tensor, or was consumed before")
        self._address = _pointer_of(capsule, _NAME)
        self._managed = _DLManagedTensor.from_address(self._address)
        self._capsule: Any = capsule
        tensor = self._managed.tensor
        self.shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        types = _TYPES.get((tensor.code, tensor.bits))
        if types is None or tensor.lanes != 1:
            words = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
            raise TritonModelException(f"DLPack data type ({words}) is not supported.")
        self.datatype, self._dtype = types
        self.on_host = tensor.device_type in (_CPU, _CUDA_HOST)
        if tensor.device_type not in (_CPU, _CUDA, _CUDA_HOST):
            raise TritonModelException(
                f"DLDevice type {tensor.device_type} is not support by Python backend."
            )
        self.contiguous, stride = True, 1  # contiguous: in C order without gaps
        for axis in range(tensor.ndim - 1, -1, -1) if tensor.strides and 0 not in self.shape else ():
            self.contiguous &= self.shape[axis] == 1 or tensor.strides[axis] == stride
            stride *= self.shape[axis]

    def array(self) -> Any:
        """Consume the capsule; return an array (BF16 is uint16) over its memory, freed with the array."""
        tensor, dtype = self._managed.tensor, np.dtype(self._dtype)
        _set_name(self._capsule, _USED)
        self._capsule = None
        if 0 in self.shape:
            return np.empty(self.shape, dtype)
        size = math.prod(self.shape) * dtype.itemsize
        strides = None
        if not self.contiguous:
            strides = tuple(tensor.strides[axis] * dtype.itemsize for axis in range(tensor.ndim))
            size = dtype.itemsize + sum((dim - 1) * step for dim, step in zip(self.shape, strides))
        memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data + tensor.byte_offset)
        memory.owner = self
        return np.ndarray(self.shape, dtype, memory, 0, strides)

    def on_device(self) -> Any:
        """Consume the capsule of a GPU tensor; return the torch or cupy array made from it."""
        for module in ("torch.utils.dlpack", "cupy"):
            with suppress(ImportError):
                from_dlpack = importlib.import_module(module).from_dlpack
                capsule, self._capsule, self._address = self._capsule, None, 0
                return from_dlpack(capsule)
        raise TritonModelException("a DLPack capsule of a GPU needs torch or cupy in the model's environment")

    def __del__(self) -> None:
        # a capsule that was not consumed frees its tensor itself
        if getattr(self, "_address", 0) and self._capsule is None and self._managed.deleter:
            self._managed.deleter(self._address)
