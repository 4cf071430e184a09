"""The servers that are compared: each started on free ports, waited for, asked what it has counted."""

import http.client
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from benchmarks.models import Kind
from benchmarks.peers import Peers
from benchmarks.processes import Process, free_port, last_lines
from tpx.errors import MeasurementError

READY_S = 120.0
POLL_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started, and where it will listen."""

    kind: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    http_port: int
    grpc_port: int
    metrics_port: int


def launch(kind: Kind, repository: Path, peers: Peers, *flags: str) -> Launch:
    """The command of a server of this kind; what a peer lacks is said by `Peers`, as MeasurementError.

    `flags` are added to those of tpx and Triton.
    """
    ports = (free_port(), free_port(), free_port())
    argv: Sequence[str | Path]
    env: Mapping[str, str] = {}
    if kind == "tpx":
        command: tuple[str | Path, ...] = (sys.executable, "-m", "tpx", "serve")
        argv = (*command, "--model-repository", repository, *_port_flags(ports), *flags)
    elif kind == "triton":
        # two servers with one prefix end each other's model processes
        prefix = f"shm-region-prefix-name=bench_{uuid.uuid4().hex[:8]}_"
        argv = (*peers.tritonserver(), f"--model-repository={repository}", *_port_flags(ports))
        argv = (*argv, f"--backend-config=python,{prefix}", "--log-info=false", *flags)
        env = peers.triton_env()
    else:
        settings = {
            "debug": False,
            "parallel_workers": 0,
            "host": "127.0.0.1",
            "http_port": ports[0],
            "grpc_port": ports[1],
            "metrics_port": ports[2],
        }
        (repository / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        argv = (peers.mlserver(), "start", repository)
        env = {"PYTHONPATH": str(repository), "MLSERVER_PARALLEL_WORKERS": "0"}
    return Launch(
        kind=kind,
        argv=tuple(map(str, argv)),
        env=env,
        http_port=ports[0],
        grpc_port=ports[1],
        metrics_port=ports[2],
    )


def _port_flags(ports: tuple[int, int, int]) -> tuple[str, ...]:
    return tuple(f"--{n}-port={p}" for n, p in zip(("http", "grpc", "metrics"), ports, strict=True))


class Server:
    """One running server. A context manager that ends it."""

    def __init__(self, command: Launch, logs: Path) -> None:
        self.kind = command.kind
        self.http_port = command.http_port
        self.grpc_port = command.grpc_port
        self.metrics_port = command.metrics_port
        log = logs / f"{command.kind}-{command.http_port}.log"
        self.process = Process(command.argv, log, env=command.env)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def port(self, protocol: str) -> int:
        return self.grpc_port if protocol == "grpc" else self.http_port

    def wait_until_ready(self, models: Sequence[str] = ()) -> None:
        """Wait for the server, then for each of these models, which MLServer loads after it is ready.

        Raises MeasurementError with the end of its log where it ends, or is not ready in READY_S.
        """
        end = monotonic() + READY_S
        for path in ("/v2/health/ready", *(f"/v2/models/{model}/ready" for model in models)):
            while get(self.http_port, path) is None:
                if not self.process.running or monotonic() > end:
                    log = last_lines(self.process.output)
                    raise MeasurementError(f"{self.kind} does not answer {path}: {log}")
                sleep(POLL_S)

    def inference_count(self, model: str) -> int:
        """Inferences of a model that the server says succeeded; not of MLServer, which does not count."""
        body = get(self.http_port, f"/v2/models/{model}/stats")
        if body is None:
            raise MeasurementError(f"{self.kind} does not tell the statistics of '{model}'")
        stats = json.loads(body)["model_stats"]
        return sum(int(version["inference_count"]) for version in stats)


def get(port: int, path: str, timeout_s: float = 10.0) -> bytes | None:
    """The body of a GET that answers 200; None where nothing listens yet, or with another status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if response.status == 200 else None
