"""`backend: "python"`: the model is a class in `model.py`, run in a process for each instance."""

import json
import platform
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import json_format
from msgspec.structs import replace

from tpx.errors import ConfigError, LoadError
from tpx.processors import usable_processors
from tpx.protocol import model_config
from tpx.protocol.json_values import JsonObject
from tpx.protocol.messages import ModelConfig
from tpx.serving.backends.contract import Description, InstanceSpec, ModelFiles, inside
from tpx.serving.backends.parameters import GivenParameters
from tpx.serving.backends.python.instance import PythonInstance
from tpx.serving.backends.python.lifecycle import InstanceSettings
from tpx.serving.backends.python.process import ChildProcess, Interpreter, interpreter_of
from tpx.serving.backends.python.services import write_log
from tpx.serving.backends.python.worker import frames
from tpx.serving.host import Host
from tpx.serving.transport.frame_socket import HEADER

_TIMEOUT_S = 600
"""Seconds to wait for a process that neither answers nor exits. Models may take minutes to import."""


def ask_to_complete(sock: socket.socket, words: JsonObject) -> JsonObject | None:
    """Return the configuration as the model completes it, None if it does not. Blocks. Raises LoadError."""
    sock.settimeout(_TIMEOUT_S)
    try:
        sock.sendall(frames.framed(frames.COMPLETE_CONFIG, [json.dumps(words).encode()]))
        while True:
            size, kind = HEADER.unpack(_read_exactly(sock, HEADER.size))
            body = _read_exactly(sock, size)
            if kind == frames.COMPLETED:
                break
            asked = json.loads(body) if kind == frames.CONTROL else {"verb": "", "number": 0}
            if asked["verb"] == "log":
                write_log(asked)
            elif asked["number"]:
                error = f"'{asked['verb']}' is not available in auto_complete_config"
                refusal = json.dumps({"number": asked["number"], "error": error}).encode()
                sock.sendall(frames.framed(frames.RESULT, [refusal]))
    except TimeoutError as exc:
        raise LoadError(
            f"model '{words['name']}': auto_complete_config took longer than {_TIMEOUT_S} s"
        ) from exc
    except OSError as exc:
        raise LoadError(f"Stub process '{words['name']}' is not healthy.") from exc
    answer = json.loads(body)
    if "error" in answer:
        raise LoadError(answer["error"])
    completed: JsonObject | None = answer.get("config")
    return completed


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        more = sock.recv(size - len(parts))
        if not more:
            raise OSError("the process has ended")
        parts += more
    return parts


def merge(config: ModelConfig, completed: JsonObject) -> None:
    """Merge what a model may complete: batch size, tensors, batching, decoupling. Raises ConfigError."""
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


_SETTINGS = """
shm-default-byte-size shm-growth-byte-size shm-region-prefix-name shm_message_queue_size thread-pool-size
python-runtime stub-timeout-seconds stub-health-check-interval default-max-batch-size spin-microseconds
cmdline
"""
_END_TIMEOUT_S = 30
_SPIN_US = 100


class PythonBackend:
    """The backend. It opens nothing until that is needed, because importing a model may take long."""

    def __init__(self, runtime: Path | None = None) -> None:
        """Use the file `runtime` as the model for all models of this backend: a Python-based backend."""
        self._runtime = runtime
        self.default_filename = "" if runtime is not None else "model.py"

    def open(self, files: ModelFiles, config: ModelConfig) -> "PythonModel":
        # the child has a working directory of its own
        files = replace(files, directory=files.directory.absolute())
        filename = config.default_model_filename or "model.py"
        path = self._runtime and self._runtime.absolute()
        path = path or inside(files.directory, filename, "default_model_filename")
        if not path.is_file():
            raise LoadError(f"Failed to preinitialize Python stub: Python model file not found in '{path}'")
        if files.host is None:
            raise LoadError(f"model '{files.model_name}': Python models run only in a server")
        return PythonModel(files, path, files.host, based=self._runtime is not None)

    def describe(self) -> Description:
        return Description(version=platform.python_version(), devices=(sys.executable,))


class PythonModel:
    """A version of a Python model."""

    inline = False
    makes_responses = True

    def __init__(self, files: ModelFiles, path: Path, host: Host, *, based: bool) -> None:
        self._files = files
        self._path = path
        self._source = {"file": str(path), "directory": str(files.directory), "based": based}
        self._host = host
        self._interpreter: Interpreter | None = None
        self._first: ChildProcess | None = None
        """The process that completed the configuration; it becomes the first instance."""

    def complete(self, config: ModelConfig, *, default_max_batch_size: int) -> None:  # noqa: ARG002
        process = self._start_process(config)
        written = model_config.to_json(config)
        if not config.HasField("model_transaction_policy"):  # `decoupled` was not configured
            written.pop("model_transaction_policy", None)
        version = str(self._files.version)
        words = {**self._source, "name": config.name, "version": version, "config": written}
        try:
            completed = ask_to_complete(process.socket, words)
        except BaseException:
            process.abandon()
            raise
        self._first = process
        if completed is not None:
            merge(config, completed)

    def check(self, config: ModelConfig) -> None:
        known = sorted(_SETTINGS.split())
        for key in self._files.settings:
            if key not in known:
                raise ConfigError(f"--backend-config python has no key '{key}' (has: {', '.join(known)})")
        # only validated: inputs are always in host memory
        GivenParameters.of_model(config).one_of("FORCE_CPU_ONLY_INPUT_TENSORS", {"yes": "", "no": ""})

    def executor(
        self, spec: InstanceSpec, config: ModelConfig, *, arguments: Mapping[str, str] | None = None
    ) -> PythonInstance:
        """Start an instance; `arguments` are added to those that `initialize` gets."""
        # on one core a spinning reader would starve the process it waits for
        given = GivenParameters.of_backend("python", self._files.settings)
        spin_us = given.whole("spin-microseconds", default=_SPIN_US if usable_processors() >= 2 else 0)
        settings = InstanceSettings(
            name=spec.name,
            model=config.name,
            decoupled=config.model_transaction_policy.decoupled,
            end_timeout_s=float(given.whole("stub-timeout-seconds", default=_END_TIMEOUT_S)),
            start=lambda: self._start_process(config),
            arguments={
                **self._source,
                "instance": spec.name,
                "spin_ns": spin_us * 1000,
                "decoupled": config.model_transaction_policy.decoupled,
                "args": {
                    "model_config": json.dumps(model_config.to_json(config)),
                    "model_instance_kind": spec.kind.removeprefix("KIND_"),
                    "model_instance_name": spec.name,
                    "model_instance_device_id": str(spec.device_id),
                    "model_repository": str(self._files.directory.parent),
                    "model_version": str(self._files.version),
                    "model_name": config.name,
                    **(arguments or {}),
                },
            },
        )
        process, self._first = self._first, None
        return PythonInstance(settings, self._host, process)

    def close(self) -> None:
        process, self._first = self._first, None
        if process is not None:
            process.abandon()

    def _start_process(self, config: ModelConfig) -> ChildProcess:
        if self._interpreter is None:
            self._interpreter = interpreter_of(config, self._files.directory.parent)
        return ChildProcess(self._interpreter, self._path.parent)
