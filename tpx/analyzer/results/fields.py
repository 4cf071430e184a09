"""The columns of Model Analyzer's tables that are no metrics, by the tags that its options name them by."""

from collections.abc import Mapping

COLUMNS: Mapping[str, str] = {
    "model_name": "Model",
    "gpu_uuid": "GPU UUID",
    "batch_size": "Batch",
    "concurrency": "Concurrency",
    "request_rate": "Request Rate",
    "model_config_path": "Model Config Path",
    "instance_group": "Instance Group",
    "max_batch_size": "Max Batch Size",
    "satisfies_constraints": "Satisfies Constraints",
    "gpu_total_memory": "GPU Memory Available (MB)",
}
"""Tag -> header."""

BACKEND_PARAMETER = "backend_parameter/"
"""Begins the tag of a parameter in the `parameters` of a configuration."""
