"""The server under attack: a child process, so that its death shows, and what it holds of the system."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil

from tests.e2e.child import FRONTENDS, Child, serve
from tests.hostile import vocabulary, wire
from tests.serving import onnx_files
from tests.serving.counted_models import COSTLY
from tests.serving.onnx_files import graph, node, value, write_model
from tests.waiting import eventually
from tpx.protocol import messages

SERVICE = "/inference.GRPCInferenceService/"
INPUT_LIMIT = 8 << 20
"""Bytes of a body or message, so that what goes beyond them is quickly sent."""
LIMITS = (
    f"--http-max-input-size={INPUT_LIMIT}",
    f"--grpc-max-message-size={INPUT_LIMIT}",
    f"--max-buffered-bytes={(2 << 30) * (1 + FRONTENDS)}",  # what clients of these tests announce
)
BROKEN_MODELS = ("--exit-on-error=false", "--strict-readiness=false")
EXPLICIT = ("--model-control-mode=explicit", "--load-model=*")

GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
LOOP = 64
SPARSE_BYTES = 512 << 20
"""Of a file that takes no memory until somebody reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a process holds."""

    descriptors: int
    threads: int
    resident_bytes: int


class Siege:
    """A running server: its ports, whether it still serves, what it holds."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.http = child.port("HTTPService")
        self.grpc = child.port("GRPCInferenceService")
        self.metrics = child.port("Metrics Service")
        self.shm = f"tpx_hostile_{child.pid}"
        """Begins the names of files in shared memory."""
        self._sampled: list[int] = []
        self._watching: threading.Event | None = None

    def alive(self) -> None:
        """Fails unless a good request on a fresh connection is answered well."""
        answer = wire.post(self.http, "/v2/models/double/infer", GOOD)
        assert (answer.status, b"[2.0,4.0]" in answer.body) == (200, True), answer
        assert self.call("ServerReady", b"") == messages.ServerReadyResponse(ready=True).SerializeToString()

    @contextmanager
    def bystander(self) -> "Iterator[Bystander]":
        """Another client, who asks small things all the time; at the end it knows the longest wait."""
        client = Bystander(self.http)
        client.start()
        try:
            yield client
        finally:
            client.end()

    def call(self, verb: str, message: bytes, **options: Any) -> bytes:
        """One gRPC call on a fresh connection; raises grpc.RpcError."""
        settings = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_metadata_size", 1 << 20)]
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc}", options=settings) as channel:
            method = channel.unary_unary(SERVICE + verb, lambda data: data, lambda data: data)
            answer: bytes = method(message, timeout=wire.PATIENCE_S, **options)
            return answer

    def footprint(self) -> Footprint:
        """The sum over its processes."""
        processes = self.child.processes
        return Footprint(
            descriptors=sum(each.num_fds() for each in processes),
            threads=sum(each.num_threads() for each in processes),
            resident_bytes=(
                processes[0].memory_info().rss if len(processes) == 1 else proportional_bytes(processes)
            ),
        )

    def descriptors(self) -> list[str]:
        """What each descriptor leads to."""
        folders = [Path(f"/proc/{each.pid}/fd") for each in self.child.processes]
        return sorted(str(path.readlink()) for folder in folders for path in folder.iterdir())

    def forget_peak(self) -> int:
        """Begin to watch the largest memory again; returns what is held now, in bytes."""
        processes = self.child.processes
        if len(processes) == 1:
            Path(f"/proc/{self.child.pid}/clear_refs").write_text("5", encoding="ascii")
            return self._memory("VmRSS")
        if self._watching is not None:
            self._watching.set()
        sampled = self._sampled = [proportional_bytes(processes)]
        over = self._watching = threading.Event()

        def watch() -> None:
            with suppress(OSError):  # the processes have ended
                while not over.wait(0.02):
                    sampled.append(proportional_bytes(processes))

        threading.Thread(target=watch, daemon=True).start()
        return self._sampled[0]

    def peak(self) -> int:
        """The most memory that was held since `forget_peak`, in bytes."""
        if self._watching is None:
            return self._memory("VmHWM")
        self._watching.set()
        return max(self._sampled)

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.child.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    def settles(self, holds: Callable[[Footprint], bool], timeout_s: float = 30) -> Footprint:
        """What is held once `holds` says that it is right, or when the time is over: connections linger for
        seconds."""
        now = [self.footprint()]

        def settled() -> bool:
            now[0] = self.footprint()
            return holds(now[0])

        with suppress(AssertionError):
            eventually(settled, timeout_s)
        return now[0]


def proportional_bytes(processes: Sequence[psutil.Process]) -> int:
    """Memory of processes; what they share counts once."""
    texts = [Path(f"/proc/{each.pid}/smaps_rollup").read_text(encoding="ascii") for each in processes]
    return sum(int(text.split("\nPss:")[1].split()[0]) * 1024 for text in texts)


class Bystander(threading.Thread):
    """A client with one connection and small requests, one after the other. A server that is kept from
    answering shows in the last of them, too."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._over = threading.Event()
        self.worst_s = 0.0
        self.faults: list[str] = []

    def run(self) -> None:
        request = wire.post_request("/v2/models/double/infer", GOOD)
        with wire.connect(self._port) as sock:
            sock.settimeout(60)
            while not self._over.wait(0.005):
                began = time.perf_counter()
                sock.sendall(request)
                answer = wire.read_answer(sock)
                self.worst_s = max(self.worst_s, time.perf_counter() - began)
                if answer.status != 200:
                    self.faults.append(answer.error)

    def end(self) -> None:
        """Ask no more; fails where a request was not answered well."""
        self._over.set()
        self.join()
        assert not self.faults, self.faults[0]


@contextmanager
def segments(siege: Siege) -> Iterator[None]:
    """Files in /dev/shm as cases speak of them, and the region that they call taken."""
    folder = Path("/dev/shm")
    file, link, directory, pipe = (
        folder / f"{siege.shm}-{what}" for what in ("file", "link", "directory", "pipe")
    )
    file.write_bytes(bytes(4096))
    sparse = folder / f"{siege.shm}-sparse"
    sparse.touch()
    os.truncate(sparse, SPARSE_BYTES)
    link.symlink_to(file)
    directory.mkdir()
    os.mkfifo(pipe)
    region = {"key": file.name, "byte_size": 4096}
    try:
        assert wire.post(siege.http, "/v2/systemsharedmemory/region/taken/register", region).status == 200
        region = {"key": sparse.name, "byte_size": SPARSE_BYTES}
        assert wire.post(siege.http, "/v2/systemsharedmemory/region/sparse/register", region).status == 200
        yield
        assert wire.post(siege.http, "/v2/systemsharedmemory/unregister", b"").status == 200
        places = (folder, folder.parent, Path("/tmp"), Path.cwd())
        left = {path.name for place in places for path in place.glob(f"{siege.shm}*")}
        assert left == {path.name for path in (file, sparse, link, directory, pipe)}
    finally:
        for path in (file, sparse, link, pipe):
            path.unlink(missing_ok=True)
        directory.rmdir()


@contextmanager
def besieged(repository: Path, *words: str) -> Iterator[Siege]:
    """A server over a repository; at the end it must leave as it should and have had no error of its own."""
    with serve("--model-repository", repository, *LIMITS, *words) as child:
        child.ready()
        yield Siege(child)
        assert child.stop() == 0
        assert complaints(child) == [], child.text[-3000:]


def complaints(child: Child) -> list[str]:
    """Lines of the log that tell of an error of our own."""
    return [
        line
        for line in child.text.splitlines()
        if any(word in line for word in ("Traceback", "defect", "Error:", "internal error", "Exception"))
    ]


def write_repository(repository: Path) -> Path:
    """The models that cases ask for, those that cases are, and a loop of ensembles."""
    write_good_models(repository)
    for case in vocabulary.cases():
        if case.sort == "repository":
            _write_case(repository, case)
    for number in range(LOOP):
        _write_ensemble(repository, f"loop_{number}", f"loop_{(number + 1) % LOOP}")
    return repository


def write_good_models(repository: Path) -> None:
    """Those that answer."""
    write_model(repository, "double", onnx_files.doubling("batch", "n"), "max_batch_size: 8")
    write_model(repository, "cube", onnx_files.doubling(1, "b", "c", "d"), "max_batch_size: 0")
    write_model(repository, "words", onnx_files.identity("BYTES", "batch", "n"), "max_batch_size: 8")
    write_model(repository, "fp16", onnx_files.identity("FP16", "batch", "n"), "max_batch_size: 8")
    filling = graph(
        [node("ConstantOfShape", ["x"], ["y"])], [value("x", "INT64", 1)], [value("y", "FP32", "n")]
    )
    write_model(repository, "fill", filling, "max_batch_size: 0")
    for name in ("ending", "branching"):
        write_model(repository, name, COSTLY[name].model, "max_batch_size: 0")
    names = ("a", "b")
    adding = graph(
        [node("Add", names, ["sum"])],
        [value(name, "FP32", "batch", 2) for name in names],
        [value("sum", "FP32", "batch", 2)],
    )
    write_model(repository, "two", adding, "max_batch_size: 8")
    delay = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 800000 }"
    write_model(repository, "patient", onnx_files.doubling("batch", "n"), delay)
    queue = "max_queue_delay_microseconds: 2000000 default_queue_policy { max_queue_size: 2 }"
    narrow = f"max_batch_size: 8 dynamic_batching {{ {queue} }}"
    write_model(repository, "narrow", onnx_files.doubling("batch", "n"), narrow)
    (repository / "repeat" / "1").mkdir(parents=True)
    (repository / "repeat" / "config.pbtxt").write_text('backend: "repeat"', encoding="utf-8")


def _write_case(repository: Path, case: vocabulary.Case) -> None:
    directory = repository / case.said["repository"]
    for name, content in case.said.get("files", {}).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict) and "copy" in content:
            path.write_bytes((repository / content["copy"] / "1" / "model.onnx").read_bytes())
        elif isinstance(content, dict) and "hole" in content:
            path.touch()
            os.truncate(path, content["hole"])
        else:
            path.write_bytes(vocabulary.joined(content))
    for name, target in case.said.get("links", {}).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).symlink_to(target)


def _write_ensemble(repository: Path, name: str, step: str) -> None:
    tensors = " ".join(
        f"{kind} [{{ name: '{tensor}' data_type: TYPE_FP32 dims: [ -1 ] }}]"
        for kind, tensor in (("input", "x"), ("output", "y"))
    )
    maps = " ".join(
        f"{kind}_map {{ key: '{t}' value: '{t}' }}" for kind, t in (("input", "x"), ("output", "y"))
    )
    step_text = f"ensemble_scheduling {{ step [{{ model_name: '{step}' model_version: -1 {maps} }}] }}"
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    text = f"platform: 'ensemble' max_batch_size: 8 {tensors} {step_text}"
    (directory / "config.pbtxt").write_text(text, encoding="utf-8")
