"""Options of tritonserver that change nothing in tpx.

They are taken with one warning each, so that command lines can be kept.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tpx.options import Option

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

    cache_directory: Annotated[Path, Option("caches are part of tpx", section=_INERT, inert=True)] = Path(
        "/opt/tritonserver/caches"
    )
    http_thread_count: Annotated[
        int, Option("one event loop serves all connections", section=_INERT, minimum=1, inert=True)
    ] = 8
    grpc_infer_thread_count: Annotated[
        int,
        Option("one event loop serves all connections", section=_INERT, minimum=2, maximum=128, inert=True),
    ] = 2
    grpc_infer_allocation_pool_size: Annotated[
        int, Option("messages are not pooled", section=_INERT, minimum=0, inert=True)
    ] = 8
    grpc_max_response_pool_size: Annotated[
        int, Option("flow control bounds what waits for a client", section=_INERT, minimum=1, inert=True)
    ] = 2**31 - 1
    buffer_manager_thread_count: Annotated[
        int, Option("tensors are gathered by the instances", section=_INERT, minimum=0, inert=True)
    ] = 0
    pinned_memory_pool_byte_size: Annotated[
        int, Option("there is no pool of pinned memory", section=_INERT, minimum=0, inert=True)
    ] = 268_435_456
    cuda_memory_pool_byte_size: Annotated[
        tuple[str, ...],
        Option(
            "there is no pool of GPU memory",
            section=_INERT,
            metavar="DEVICE:BYTES",
            parse=_bytes_of_device,
            inert=True,
        ),
    ] = ()
    cuda_virtual_address_size: Annotated[
        tuple[str, ...],
        Option(
            "growable states are kept in the host's memory",
            section=_INERT,
            metavar="DEVICE:BYTES",
            parse=_bytes_of_device,
            inert=True,
        ),
    ] = ()
    min_supported_compute_capability: Annotated[
        float, Option("the backends know their GPUs", section=_INERT, minimum=0, inert=True)
    ] = 6.0
    enable_peer_access: Annotated[bool, Option("GPUs exchange no tensors", section=_INERT, inert=True)] = True
    model_load_gpu_limit: Annotated[
        tuple[str, ...],
        Option(
            "loading does not look at GPU memory",
            section=_INERT,
            metavar="DEVICE:FRACTION",
            parse=_share_of_device,
            inert=True,
        ),
    ] = ()
    host_policy: Annotated[
        tuple[str, ...],
        Option(
            "threads run on any core",
            section=_INERT,
            metavar="POLICY,SETTING=VALUE",
            parse=_setting,
            inert=True,
        ),
    ] = ()
    allow_sagemaker: Annotated[bool, Option("there is no SageMaker endpoint", section=_INERT, inert=True)] = (
        False
    )
    sagemaker_port: Annotated[
        int, Option("there is no SageMaker endpoint", section=_INERT, minimum=0, maximum=65535, inert=True)
    ] = 8080
    sagemaker_safe_port_range: Annotated[
        str,
        Option(
            "there is no SageMaker endpoint",
            section=_INERT,
            metavar="LOW-HIGH",
            parse=_port_range,
            inert=True,
        ),
    ] = ""
    sagemaker_thread_count: Annotated[
        int, Option("there is no SageMaker endpoint", section=_INERT, minimum=1, inert=True)
    ] = 8
    allow_vertex_ai: Annotated[bool, Option("there is no Vertex AI endpoint", section=_INERT, inert=True)] = (
        False
    )
    vertex_ai_port: Annotated[
        int, Option("there is no Vertex AI endpoint", section=_INERT, minimum=0, maximum=65535, inert=True)
    ] = 8080
    vertex_ai_thread_count: Annotated[
        int, Option("there is no Vertex AI endpoint", section=_INERT, minimum=1, inert=True)
    ] = 8
    vertex_ai_default_model: Annotated[
        str, Option("there is no Vertex AI endpoint", section=_INERT, inert=True)
    ] = ""
