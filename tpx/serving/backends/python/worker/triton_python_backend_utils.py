"""The module `triton_python_backend_utils` of Python models; re-exports all of its names."""

# ruff: noqa: F401 (the names are for models)

from tpx.serving.backends.python.worker.calls import ResponseIterator
from tpx.serving.backends.python.worker.datatypes import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from tpx.serving.backends.python.worker.errors import TritonError, TritonModelException
from tpx.serving.backends.python.worker.metrics import Metric, MetricFamily
from tpx.serving.backends.python.worker.model_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)
from tpx.serving.backends.python.worker.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    PreferredMemory,
)
from tpx.serving.backends.python.worker.response import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    InferenceResponse,
    InferenceResponseSender,
)
from tpx.serving.backends.python.worker.services import (
    Logger,
    get_model_dir,
    is_model_ready,
    load_model,
    shared_memory,
    unload_model,
)
from tpx.serving.backends.python.worker.tensor import (
    Tensor,
    get_input_tensor_by_name,
    get_output_tensor_by_name,
)
