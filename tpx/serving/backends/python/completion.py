"""`auto_complete_config`: asked of the model's process before anything else is, and put into the
configuration."""

import json
import socket
from typing import Any

from google.protobuf import json_format

from tpx.errors import ConfigError, LoadError
from tpx.serving.backends.python.services import write_log
from tpx.serving.backends.python.worker import frames
from tpx.serving.backends.python.worker.frames import HEADER

_TIMEOUT_S = 600
"""Of a process that neither answers nor ends: a model may import what takes minutes."""


def ask_to_complete(sock: socket.socket, words: dict[str, Any]) -> dict[str, Any] | None:
    """What the model makes of its configuration; None where it has no say. Blocks.

    Raises LoadError with what the model raised.
    """
    sock.settimeout(_TIMEOUT_S)
    try:
        sock.sendall(frames.framed(frames.COMPLETE_CONFIG, [json.dumps(words).encode()]))
        while True:
            size, kind = HEADER.unpack(_exactly(sock, HEADER.size))
            body = _exactly(sock, size)
            if kind == frames.COMPLETED:
                break
            if kind == frames.CONTROL:
                _refuse_or_log(sock, json.loads(body))
    except TimeoutError as exc:
        raise LoadError(f"model '{words['name']}': auto_complete_config took over {_TIMEOUT_S} s") from exc
    except OSError as exc:
        raise LoadError(f"Stub process '{words['name']}' is not healthy.") from exc
    answer = json.loads(body)
    if "error" in answer:
        raise LoadError(answer["error"])
    config: dict[str, Any] | None = answer.get("config")
    return config


def _refuse_or_log(sock: socket.socket, asked: dict[str, Any]) -> None:
    if asked["verb"] == "log":
        write_log(asked)
    elif asked["number"]:
        error = f"'{asked['verb']}' is not available in auto_complete_config"
        answer = json.dumps({"number": asked["number"], "error": error}).encode()
        sock.sendall(frames.framed(frames.RESULT, [answer]))


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        more = sock.recv(size - len(parts))
        if not more:
            raise OSError("the process has ended")
        parts += more
    return parts


def merge(config: Any, completed: dict[str, Any]) -> None:
    """Take what a model may complete: batch size, tensors, dynamic batching, decoupling. Raises
    ConfigError."""
    given = type(config)()
    names = ("max_batch_size", "input", "output", "dynamic_batching", "model_transaction_policy")
    try:
        json_format.ParseDict({name: completed[name] for name in names if name in completed}, given)
    except (json_format.ParseError, ValueError, TypeError) as exc:
        raise ConfigError(f"auto_complete_config of model '{config.name}': {exc}") from exc
    config.max_batch_size = given.max_batch_size
    for kind in ("input", "output"):
        config.ClearField(kind)
        getattr(config, kind).extend(getattr(given, kind))
    if given.HasField("dynamic_batching") and config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.CopyFrom(given.dynamic_batching)
    if given.HasField("model_transaction_policy"):
        config.model_transaction_policy.CopyFrom(given.model_transaction_policy)
