"""Options of `tpx serve` about models: repositories, loading, completion of configurations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.options import option
from tpx.serving.repository.stores.places import StorePlace, place_of


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
class CompatibilitySpec:
    """Options of tritonserver that have no effect in tpx: each is accepted with one warning."""

    cache_directory: Path = option(Path("/opt/tritonserver/caches"), "caches are built in", inert=True)
    http_thread_count: int = option(8, "one event loop serves all connections", minimum=1, inert=True)
    grpc_infer_thread_count: int = option(
        2, "one event loop serves all connections", minimum=2, maximum=128, inert=True
    )
    grpc_infer_allocation_pool_size: int = option(8, "messages are not pooled", minimum=0, inert=True)
    grpc_max_response_pool_size: int = option(
        2**31 - 1, "flow control bounds what waits for a client", minimum=1, inert=True
    )
    buffer_manager_thread_count: int = option(0, "instances gather their own tensors", minimum=0, inert=True)
    pinned_memory_pool_byte_size: int = option(
        268_435_456, "there is no pool of pinned memory", minimum=0, inert=True
    )
    cuda_memory_pool_byte_size: tuple[str, ...] = option(
        (), "there is no pool of GPU memory", metavar="DEVICE:BYTES", parse=_bytes_of_device, inert=True
    )
    cuda_virtual_address_size: tuple[str, ...] = option(
        (),
        "growable states are kept in host memory",
        metavar="DEVICE:BYTES",
        parse=_bytes_of_device,
        inert=True,
    )
    min_supported_compute_capability: float = option(
        6.0, "backends check their GPUs themselves", minimum=0, inert=True
    )
    enable_peer_access: bool = option(True, "GPUs do not exchange tensors", inert=True)
    model_load_gpu_limit: tuple[str, ...] = option(
        (), "loading does not check GPU memory", metavar="DEVICE:FRACTION", parse=_share_of_device, inert=True
    )
    host_policy: tuple[str, ...] = option(
        (), "threads may run on any core", metavar="POLICY,SETTING=VALUE", parse=_setting, inert=True
    )
    allow_sagemaker: bool = option(False, "there is no SageMaker endpoint", inert=True)
    sagemaker_port: int = option(8080, "there is no SageMaker endpoint", minimum=0, maximum=65535, inert=True)
    sagemaker_safe_port_range: str = option(
        "", "there is no SageMaker endpoint", metavar="LOW-HIGH", parse=_port_range, inert=True
    )
    sagemaker_thread_count: int = option(8, "there is no SageMaker endpoint", minimum=1, inert=True)
    allow_vertex_ai: bool = option(False, "there is no Vertex AI endpoint", inert=True)
    vertex_ai_port: int = option(8080, "there is no Vertex AI endpoint", minimum=0, maximum=65535, inert=True)
    vertex_ai_thread_count: int = option(8, "there is no Vertex AI endpoint", minimum=1, inert=True)
    vertex_ai_default_model: str = option("", "there is no Vertex AI endpoint", inert=True)


def _config_name(text: str) -> str:
    """Validate a file name given without `.pbtxt`."""
    if not text.strip():
        raise ValueError("empty argument for --model-config-name")
    if text.startswith(".") or any(not part.isprintable() or part in " /" for part in text):
        raise ValueError("expected the name of a file without its ending, with no spaces and no slashes")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Options about the models of a server."""

    models: tuple[Path | StorePlace, ...] = option(
        (),
        "model files or model repositories to serve",
        positional=True,
        metavar="MODEL",
        parse=place_of,
        common=True,
        completes="files",
    )
    model_repository: tuple[Path | StorePlace, ...] = option(
        (),
        "directory of models, or an object store: s3://, gs:// or as:// and a path; repeatable",
        "--model-store",
        metavar="DIR",
        parse=place_of,
        common=True,
        completes="files",
    )
    exit_on_error: bool = option(True, "exit if a model fails to load at startup", common=True)
    disable_auto_complete_config: bool = option(False, "do not complete config.pbtxt: it must be complete")
    strict_model_config: bool | None = option(None, "deprecated: use --disable-auto-complete-config")
    strict_readiness: bool = option(True, "report ready only when all models are ready")
    model_control_mode: Literal["none", "poll", "explicit", "lazy"] = option(
        "none",
        "when models are loaded: at startup (none), also when their files change (poll), on request of a "
        "client (explicit), or on their first request (lazy)",
        common=True,
    )
    repository_poll_secs: int = option(
        15, "seconds between checks of the repositories in poll mode; 0 = only at startup", minimum=0
    )
    load_model: tuple[str, ...] = option(
        (),
        "model to load at startup in explicit and lazy mode; * = all; repeatable",
        metavar="NAME",
        common=True,
        completes="models",
    )
    model_config_name: str = option(
        "",
        "use configs/<NAME>.pbtxt of a model, if it exists, instead of config.pbtxt",
        metavar="NAME",
        parse=_config_name,
    )
    model_load_thread_count: int = option(4, "model versions loaded at the same time", minimum=1)
    model_load_retry_count: int = option(0, "retries after a version fails to load", minimum=0)
    lazy_load_timeout_secs: int = option(
        60, "seconds that a request waits for its model in lazy mode", minimum=1
    )
    model_memory_limit: int = option(
        0,
        "memory limit for models in bytes: the least recently used models are unloaded to stay below it, "
        "in explicit and lazy mode; 0 = unlimited",
        metavar="BYTES",
        minimum=0,
        common=True,
    )
    model_namespacing: bool = option(
        False,
        "allow models of the same name in different repositories: requests for an ambiguous name are "
        "refused, and ensembles use models of their own repository",
    )
    cache_config: tuple[str, ...] = option(
        (),
        "response cache for models that enable it: local,size=BYTES",
        metavar="CACHE,KEY=VALUE",
        common=True,
    )
    response_cache_byte_size: int = option(0, "deprecated: use --cache-config local,size=BYTES", minimum=0)
    rate_limit: Literal["off", "execution_count"] = option(
        "off", "schedule instances by execution count, priority, and the resources they need"
    )
    rate_limit_resource: tuple[str, ...] = option(
        (),
        "available units of a resource, on one device or on each; repeatable",
        metavar="NAME:COUNT[:DEVICE]",
    )
    backend_directory: Path = option(
        Path("/opt/tritonserver/backends"),
        "directory of Python-based backends: `<name>/model.py` serves the models that name it",
    )
    repoagent_directory: Path = option(
        Path("/opt/tritonserver/repoagents"), "directory of repository agents: `<name>/agent.py`"
    )
    backend_config: tuple[str, ...] = option(
        (), "backend setting; repeatable", metavar="BACKEND,KEY=VALUE", common=True
    )

    @property
    def auto_complete(self) -> bool:
        """True if configurations are completed from the model files."""
        return not (self.disable_auto_complete_config or self.strict_model_config)
