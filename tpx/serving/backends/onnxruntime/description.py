"""What ONNX Runtime says of itself: which of its providers really work here."""

import onnxruntime as ort

from tpx.serving.backends.contract import Description
from tpx.serving.backends.onnxruntime.failures import ORT_ERRORS

_IDENTITY = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\r"
)
"""The smallest model: y = x, one FP32."""
_NOT_FOR_MODELS = "AzureExecutionProvider"  # sends requests elsewhere


def describe() -> Description:
    """Every provider that it was built with is tried with a model: one may lack its libraries."""
    there = [provider for provider in ort.get_available_providers() if provider != _NOT_FOR_MODELS]
    return Description(
        version=ort.__version__,
        providers=tuple(name if _works(name) else f"{name} (does not work here)" for name in there),
    )


def _works(provider: str) -> bool:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(_IDENTITY, options, providers=[provider])
    except ORT_ERRORS:
        return False
    return provider in session.get_providers()
