"""The parts that `tpx doctor` inspects, each in its own process with a deadline, several at a time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import IO

from msgspec.structs import asdict, replace

from tpx.errors import LoadError, TpxError
from tpx.protocol.json_values import JsonObject
from tpx.serving.backends.contract import Describes, Description
from tpx.serving.backends.table import KNOWN, backend
from tpx.serving.extensions import foreign


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature and the modules that it imports."""

    what: str
    package: str
    """Package name as imported."""
    install: str
    distribution: str = ""
    """Distribution that has the version."""
    modules: tuple[str, ...] = ()
    more: Callable[[], Description] = Description
    """Returns details beyond the version."""

    def describe(self) -> Description:
        """Import the feature's modules and describe it; runs in a separate process."""
        for module in (self.package, *self.modules):
            import_module(module)
        return replace(self.more(), version=version(self.distribution)) if self.distribution else self.more()


def _describe_gpu() -> Description:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        return Description(lacks=f"no working NVIDIA driver: {exc}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return Description(
            version=f"driver {_decode_text(pynvml.nvmlSystemGetDriverVersion())}",
            devices=tuple(
                f"{_decode_text(pynvml.nvmlDeviceGetName(handle))}, "
                f"{pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30:.0f} GiB"
                for handle in handles
            ),
            lacks="" if handles else "the NVIDIA driver has no GPU",
        )
    except pynvml.NVMLError as exc:
        return Description(lacks=f"the NVIDIA driver does not tell its GPUs: {exc}")
    finally:
        pynvml.nvmlShutdown()


def _decode_text(value: bytes | str) -> str:
    """Return text; older versions of nvidia-ml-py return bytes."""
    return value.decode() if isinstance(value, bytes) else value


FEATURES = {
    "gpu": Feature(
        what="GPU metrics and memory, by NVML",
        package="pynvml",
        install="pip install 'tpx[gpu]'",
        more=_describe_gpu,
    ),
    "pdf": Feature(
        what="reports as PDF", package="typst", install="pip install 'tpx[report]'", distribution="typst"
    ),
    "stores": Feature(
        what="model repositories in object stores",
        package="obstore",
        install="pip install 'tpx[cloud]'",
        distribution="obstore",
        more=lambda: Description(providers=("s3", "gs", "as")),
    ),
    "decrypt": Feature(
        what="the repository agent that decrypts",
        package="cryptography",
        install="pip install 'tpx[decrypt]'",
        distribution="cryptography",
        modules=("cryptography.fernet",),
    ),
    "otel": Feature(
        what="traces as spans of OpenTelemetry",
        package="opentelemetry",
        install="pip install 'tpx[otel]'",
        distribution="opentelemetry-sdk",
        modules=("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace"),
    ),
    "uvloop": Feature(
        what="the faster event loop",
        package="uvloop",
        install="pip install uvloop",
        distribution="uvloop",
    ),
}
"""Features by the names that --require accepts."""


_RUN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tpx.serving.inspection.isolated import main; main(sys.argv[2:])"
)
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
_TAIL_BYTES = 4096


class ProcessDied(LoadError):
    """The process that inspects a part was killed at its deadline, or crashed."""


class Children:
    """Processes that inspect one part each."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def describe(self, kind: str, name: str) -> Description:
        """Describe a `backend` or `feature`. Raises LoadError with the reason why it cannot be used."""
        if self._stopped:
            raise ProcessDied("interrupted")
        with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
            words = [json.dumps(sys.path), kind, name, str(answer.fileno())]
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _RUN, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(answer.fileno(),),
                env={**os.environ, **_QUIET},
                start_new_session=True,
            )
            self._running.add(process)
            try:
                process.wait(self._timeout_s)
            except subprocess.TimeoutExpired as exc:
                raise ProcessDied(f"it did not come to an end within {self._timeout_s:g} s") from exc
            finally:
                _kill(process)
                self._running.discard(process)
            return _read_answer(answer, errors, process.returncode)

    def stop(self) -> None:
        """Kill the processes that run, and start no others."""
        self._stopped = True
        for process in list(self._running):
            _kill(process)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_answer(answer: IO[bytes], errors: IO[bytes], status: int) -> Description:
    answer.seek(0)
    text = answer.read()
    if not text:
        raise ProcessDied(_describe_end(status, errors))
    told: JsonObject = json.loads(text)
    if "failed" in told:
        raise LoadError(told["failed"])
    providers, devices = tuple(told["providers"]), tuple(told["devices"])
    return Description(**{**told, "providers": providers, "devices": devices})


def _describe_end(status: int, errors: IO[bytes]) -> str:
    """Describe how a process ended that reported nothing, with its last line of output."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _TAIL_BYTES))
    lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    last = f": {lines[-1].strip()}" if lines else ""
    if status < 0:
        return f"it crashed, {signal.Signals(-status).name}{last}"
    return f"it ended the process with status {status}{last}"


def main(words: Sequence[str]) -> None:
    """Describe the part `words` (kind and name) as JSON on the file descriptor given third."""
    kind, name, answer = words
    warnings.simplefilter("ignore")
    try:
        with foreign():
            description = _describe_backend(name) if kind == "backend" else FEATURES[name].describe()
        found: dict[str, object] = asdict(description)
    except TpxError as exc:
        found = {"failed": exc.message}
    with os.fdopen(int(answer), "w", encoding="utf-8") as file:
        json.dump(found, file)
    os._exit(0)  # skip threads and destructors of loaded libraries


def _describe_backend(name: str) -> Description:
    found = backend(name)
    if isinstance(found, Describes):
        return found.describe()
    package = KNOWN[name].package if name in KNOWN else ""
    try:
        told = version(package) if package else ""
    except PackageNotFoundError:
        told = str(getattr(sys.modules.get(package), "__version__", ""))
    return Description(version=told)
