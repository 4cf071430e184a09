"""ONNX models on ONNX Runtime: one idea a module, the backend itself for whoever looks it up."""

import os

# before the first import: the wheels of 1.32 and newer send usage events to Microsoft unless this is set
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from tpx.serving.backends.onnxruntime.model import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
