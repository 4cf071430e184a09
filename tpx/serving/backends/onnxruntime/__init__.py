"""ONNX models on ONNX Runtime: one idea a module, the backend itself for whoever looks it up."""

from tpx.serving.backends.onnxruntime.model import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
