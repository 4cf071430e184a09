"""Exceptions of ONNX Runtime, which have no common base class."""

from onnxruntime.capi import onnxruntime_pybind11_state

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
    RuntimeError,
    TypeError,
    ValueError,
)
