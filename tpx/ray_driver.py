"""Connection of this process to a Ray cluster, with messages that name what is missing.

Ray has no public way to ask for the resources that are free on each node, for a value that outlives an actor
with the cluster, and for its directory. All private calls of tpx are here; the ceiling on Ray's version in
pyproject.toml is the last release with which they were tested.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tpx.errors import Unsupported, UsageError

NAMESPACE = "tpx"
CONNECT_S = 2.0
ROOM_BYTES = 1 << 20


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the name of its class without a text; of an error that a
    remote call raised, whose text is a traceback, that of its cause.
    """
    error = getattr(error, "cause", None) or error
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def connected(address: str = "") -> Iterator[None]:
    """Connect to a Ray cluster. Raises Unsupported if Ray is not installed, UsageError if no cluster
    answers.
    """
    try:
        import ray
    except ImportError as exc:
        raise Unsupported("several machines need Ray: pip install 'tpx[cluster]'") from exc
    address = address or os.environ.get("RAY_ADDRESS", "")
    if not address:
        raise UsageError(
            "no Ray cluster: give its head node by --ray-address HOST:PORT or RAY_ADDRESS; `ray start "
            "--head` starts one"
        )
    _refuse_unreachable(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as exc:
        raise UsageError(f"Ray at {address}: {' '.join(str(exc).split())[:300]}") from exc
    try:
        _refuse_full()
        yield
    finally:
        ray.shutdown()


def free_resources() -> dict[str, dict[str, float]]:
    """Return the free amount of each resource by the node's ID."""
    from ray._private.state import available_resources_per_node

    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found


def read_value(key: bytes) -> bytes | None:
    """Return a value that is kept by the head node; None without one."""
    from ray.experimental import internal_kv

    value: bytes | None = internal_kv._internal_kv_get(key)
    return value


def keep_value(key: bytes, value: bytes) -> None:
    """Keep a value on the head node, instead of an earlier one."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(key, value, overwrite=True)


def drop_value(key: bytes) -> None:
    """Remove a value from the head node, if there is one."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_del(key)


def _refuse_full() -> None:
    """Raise UsageError if Ray's directory is full: Ray itself would wait for workers that never start."""
    import ray

    folder = ray._private.worker.global_worker.node.get_session_dir_path()
    if shutil.disk_usage(folder).free < ROOM_BYTES:
        raise UsageError(
            f"Ray's directory {folder}: the disk is full; free space, or start Ray with --temp-dir"
        )


def _refuse_unreachable(address: str) -> None:
    """Raise UsageError at once if nothing listens; Ray itself would retry for a minute."""
    if address in ("auto", "local") or address.startswith("ray://"):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as exc:
        raise UsageError(f"Ray at {address}: {exc}") from exc
