"""The connection of this process to a Ray cluster, with messages that say what is missing."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tpx.errors import Unsupported, UsageError

NAMESPACE = "tpx"
CONNECT_S = 2.0


@contextmanager
def connected(address: str = "") -> Iterator[None]:
    """Connect to a Ray cluster. Raises Unsupported without Ray installed, UsageError where none answers."""
    try:
        import ray
    except ImportError as exc:
        raise Unsupported("several machines need Ray: pip install 'tpx[cluster]'") from exc
    address = address or os.environ.get("RAY_ADDRESS", "")
    if not address:
        raise UsageError(
            "no Ray: --ray-address HOST:PORT or RAY_ADDRESS names its head; `ray start --head` starts one"
        )
    _refuse_unreachable(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as exc:
        raise UsageError(f"Ray at {address}: {' '.join(str(exc).split())[:300]}") from exc
    try:
        yield
    finally:
        ray.shutdown()


def _refuse_unreachable(address: str) -> None:
    """Raise UsageError soon where nothing listens; Ray itself tries for a minute."""
    if address in ("auto", "local") or address.startswith("ray://"):
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as exc:
        raise UsageError(f"Ray at {address}: {exc}") from exc
