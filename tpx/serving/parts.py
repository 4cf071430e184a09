"""What a ServeConfig means to the parts of a server: its flags, put together as each part wants them."""

import logging
from pathlib import Path

from tpx.errors import UsageError
from tpx.options import nearest
from tpx.serving.backends.table import KNOWN, backend_names
from tpx.serving.options import ServeConfig
from tpx.serving.repository.coordinator import ControlSettings
from tpx.serving.repository.stores.store import open_repository
from tpx.serving.scheduling.limiter import Limiter, NoLimiter, RateLimiter, parse_resources
from tpx.serving.shared_memory.regions import SharedMemoryLimits
from tpx.serving.shared_memory.system import region_limit

log = logging.getLogger(__name__)


def control_settings(config: ServeConfig) -> ControlSettings:
    """Where models come from, and when they are loaded. Raises UsageError."""
    return ControlSettings(
        paths=[
            place if isinstance(place, Path) else open_repository(place)
            for place in (*config.model_repository, *config.models)
        ],
        mode=config.model_control_mode,
        startup=config.load_model,
        exit_on_error=config.exit_on_error,
        poll_s=config.repository_poll_secs,
        load_threads=config.model_load_thread_count,
        load_retries=config.model_load_retry_count,
        config_name=config.model_config_name,
        lazy_wait_s=config.lazy_load_timeout_secs,
        memory_limit_bytes=_memory_limit(config),
    )


def _memory_limit(config: ServeConfig) -> int:
    if config.model_memory_limit and config.model_control_mode not in ("explicit", "lazy"):
        raise UsageError(
            "--model-memory-limit needs --model-control-mode=lazy or explicit: in the mode "
            f"'{config.model_control_mode}' a model that made room for another would not come back"
        )
    return config.model_memory_limit


def limiter(config: ServeConfig) -> Limiter:
    """Return the rate limiter, which does nothing if it is off. Raises UsageError."""
    resources = parse_resources(config.rate_limit_resource)
    if config.rate_limit != "off":
        return RateLimiter(resources)
    if resources:
        log.warning("--rate-limit-resource has no effect without --rate-limit execution_count")
    return NoLimiter()


def backend_settings(config: ServeConfig) -> dict[str, dict[str, str]]:
    """`[backend,]key=value` by backend; a backend that there is not is warned of. Raises UsageError."""
    out: dict[str, dict[str, str]] = {}
    for flag in config.backend_config:
        backend, comma, pair = flag.rpartition(",")
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--backend-config must be [<backend>,]<key>=<value>, got '{flag}'")
        out.setdefault(backend if comma else "", {})[key] = value
    if others := out.keys() - KNOWN.keys() - {""}:
        there = backend_names(config.backend_directory)
        for name in sorted(others.difference(there)):
            log.warning("--backend-config names '%s', which is no backend%s", name, nearest(name, there))
    return out


def shared_memory_limits(config: ServeConfig) -> SharedMemoryLimits:
    """What clients may register."""
    return SharedMemoryLimits(
        allowed=_shared_memory_allowed(config),
        max_regions=region_limit(),
        max_input_bytes=config.client_shm_max_input_size,
    )


def _shared_memory_allowed(config: ServeConfig) -> bool:
    """Unless told: where every client is on this machine, as shared memory needs it to be."""
    if config.allow_client_shm is not None:
        return config.allow_client_shm
    addresses = [
        address
        for address, allowed in (
            (config.http_address, config.allow_http),
            (config.grpc_address, config.allow_grpc),
        )
        if allowed
    ]
    return all(address in ("localhost", "::1") or address.startswith("127.") for address in addresses)
