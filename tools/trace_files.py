"""Prints the files of tpx that a repeated request, a level and a search run through.

`python tools/trace_files.py [request|level|search ...]`; the profiler sees every function that Python calls,
in all threads of this process. Imports do not count.
"""

import asyncio
import http.client
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import orjson

import tpx
from tpx.api.analyzing import analyze
from tpx.api.serving import serve
from tpx.examples import repository
from tpx.options import build
from tpx.perf.levels import Level
from tpx.perf.options import SessionSpec
from tpx.perf.session import Session

PACKAGE = str(Path(tpx.__file__).parent) + "/"
TENSORS = 2
HEAD = orjson.dumps(
    {
        "inputs": [
            {
                "name": f"INPUT{i}",
                "shape": [1, 16],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 64},
            }
            for i in range(TENSORS)
        ],
        "parameters": {"binary_data_output": True},
    }
)


class Tracer:
    """Collects the files whose functions are called while it records."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.recording = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note the file of a call; the interpreter calls this."""
        code = frame.f_code
        if self.recording and event == "call" and code.co_name != "<module>":
            self.files.add(code.co_filename)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record what all threads call until the block ends."""
        self.files.clear()
        self.recording = True
        yield
        self.recording = False

    @property
    def ours(self) -> list[str]:
        """The files of the package, without its path."""
        ours = (Path(name.removeprefix(PACKAGE)) for name in self.files if name.startswith(PACKAGE))
        return sorted(str(path) for path in ours if path.suffix == ".py")


def trace_request(tracer: Tracer, models: Path) -> None:
    """Send the same request over one connection, and keep the files that each of the last ten ran through.

    The profiler makes the model ten times as slow, so the limit for models computed on the loop is raised.
    """
    with serve(models, model_control_mode="explicit", load_model="add_sub", inline_below_us=10_000) as server:
        connection = http.client.HTTPConnection(server.http)

        def send() -> None:
            size = {"Inference-Header-Content-Length": str(len(HEAD))}
            connection.request("POST", "/v2/models/add_sub/infer", HEAD + bytes(64 * TENSORS), size)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            response.read()

        for _ in range(20):
            send()
        runs: list[set[str]] = []
        for _ in range(10):
            with tracer.record():
                send()
            runs.append(set(tracer.files))
        tracer.files = set.intersection(*runs)
        connection.close()


def trace_level(tracer: Tracer, models: Path) -> None:
    """Measure one level of a server in a process of its own, and record it without the connecting before."""

    async def measure(address: str) -> None:
        level, spec = Level("concurrency", 4), build(SessionSpec, {"model": "mnist", "url": address})
        async with Session(spec) as session:
            with tracer.record():
                await session.measure(level)

    with serve(models, process=True, model_control_mode="explicit", load_model="mnist") as server:
        asyncio.run(measure(server.http))


def trace_search(tracer: Tracer, models: Path) -> None:
    """Record a search of two configurations and its final rounds, from its options to its verdict."""
    with tempfile.TemporaryDirectory() as directory, tracer.record():
        run = analyze(
            "mnist",
            repository=models,
            directory=directory,
            run_config_search_max_instance_count=1,
            run_config_search_max_model_batch_size=1,
            run_config_search_max_concurrency=2,
            measurement_interval=100,
        )
        run.to_html()


TRACED: dict[str, Callable[[Tracer, Path], None]] = {
    "request": trace_request,
    "level": trace_level,
    "search": trace_search,
}


def main() -> None:
    """Trace what the arguments name, by default all three."""
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    with tempfile.TemporaryDirectory() as directory:
        models = Path(directory) / "models"
        repository.write(models, ["mnist", "add_sub"])
        for name in sys.argv[1:] or TRACED:
            TRACED[name](tracer, models)
            rooms = Counter("/".join(Path(file).parts[:2][:-1]) or "." for file in tracer.ours)
            print(
                f"{name}: {len(tracer.ours)} files ({', '.join(f'{room} {n}' for room, n in rooms.items())})"
            )
            print("".join(f"  {file}\n" for file in tracer.ours), end="")


if __name__ == "__main__":
    main()
