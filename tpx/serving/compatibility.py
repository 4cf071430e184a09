"""Options of tritonserver that change nothing in tpx.

They are taken with one warning each, so that command lines can be kept.
"""

from dataclasses import dataclass
from pathlib import Path

from tpx.options import option

_INERT = "Accepted for compatibility"


def _setting(text: str) -> str:
    """`<policy>,<setting>=<value>`"""
    policy, comma, setting = text.partition(",")
    name, equals, value = setting.partition("=")
    if not (policy and comma and name and equals and value):
        raise ValueError("expected <policy>,<setting>=<value>")
    return text


def _bytes_of_device(text: str) -> str:
    """`<device>:<bytes>`"""
    device, _, size = text.partition(":")
    if not (device.isdecimal() and size.isdecimal()):
        raise ValueError("expected <device>:<bytes>")
    return text


def _share_of_device(text: str) -> str:
    """`<device>:<fraction>`"""
    device, _, fraction = text.partition(":")
    if not (device.isdecimal() and 0 <= float(fraction) <= 1):
        raise ValueError("expected <device>:<fraction between 0 and 1>")
    return text


def _port_range(text: str) -> str:
    """`<low>-<high>`"""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high) <= 65535):
        raise ValueError("expected <low port>-<high port>")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibilityOptions:
    """The options that tpx knows only by name."""

    cache_directory: Path = option(
        Path("/opt/tritonserver/caches"), "caches are part of tpx", section=_INERT, inert=True
    )
    http_thread_count: int = option(
        8, "one event loop serves all connections", section=_INERT, minimum=1, inert=True
    )
    grpc_infer_thread_count: int = option(
        2, "one event loop serves all connections", section=_INERT, minimum=2, maximum=128, inert=True
    )
    grpc_infer_allocation_pool_size: int = option(
        8, "messages are not pooled", section=_INERT, minimum=0, inert=True
    )
    grpc_max_response_pool_size: int = option(
        2**31 - 1, "flow control bounds what waits for a client", section=_INERT, minimum=1, inert=True
    )
    buffer_manager_thread_count: int = option(
        0, "tensors are gathered by the instances", section=_INERT, minimum=0, inert=True
    )
    pinned_memory_pool_byte_size: int = option(
        268_435_456, "there is no pool of pinned memory", section=_INERT, minimum=0, inert=True
    )
    cuda_memory_pool_byte_size: tuple[str, ...] = option(
        (),
        "there is no pool of GPU memory",
        section=_INERT,
        metavar="DEVICE:BYTES",
        parse=_bytes_of_device,
        inert=True,
    )
    cuda_virtual_address_size: tuple[str, ...] = option(
        (),
        "growable states are kept in the host's memory",
        section=_INERT,
        metavar="DEVICE:BYTES",
        parse=_bytes_of_device,
        inert=True,
    )
    min_supported_compute_capability: float = option(
        6.0, "the backends know their GPUs", section=_INERT, minimum=0, inert=True
    )
    enable_peer_access: bool = option(True, "GPUs exchange no tensors", section=_INERT, inert=True)
    model_load_gpu_limit: tuple[str, ...] = option(
        (),
        "loading does not look at GPU memory",
        section=_INERT,
        metavar="DEVICE:FRACTION",
        parse=_share_of_device,
        inert=True,
    )
    host_policy: tuple[str, ...] = option(
        (),
        "threads run on any core",
        section=_INERT,
        metavar="POLICY,SETTING=VALUE",
        parse=_setting,
        inert=True,
    )
    allow_sagemaker: bool = option(False, "there is no SageMaker endpoint", section=_INERT, inert=True)
    sagemaker_port: int = option(
        8080, "there is no SageMaker endpoint", section=_INERT, minimum=0, maximum=65535, inert=True
    )
    sagemaker_safe_port_range: str = option(
        "",
        "there is no SageMaker endpoint",
        section=_INERT,
        metavar="LOW-HIGH",
        parse=_port_range,
        inert=True,
    )
    sagemaker_thread_count: int = option(
        8, "there is no SageMaker endpoint", section=_INERT, minimum=1, inert=True
    )
    allow_vertex_ai: bool = option(False, "there is no Vertex AI endpoint", section=_INERT, inert=True)
    vertex_ai_port: int = option(
        8080, "there is no Vertex AI endpoint", section=_INERT, minimum=0, maximum=65535, inert=True
    )
    vertex_ai_thread_count: int = option(
        8, "there is no Vertex AI endpoint", section=_INERT, minimum=1, inert=True
    )
    vertex_ai_default_model: str = option("", "there is no Vertex AI endpoint", section=_INERT, inert=True)
