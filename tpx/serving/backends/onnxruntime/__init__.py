"""ONNX models on ONNX Runtime."""

import os

# set before the first import: wheels of 1.32 and newer send usage events to Microsoft otherwise
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from tpx.serving.backends.onnxruntime.model import OnnxRuntimeBackend

__all__ = ["OnnxRuntimeBackend"]
