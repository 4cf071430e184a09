"""Streams of a small language model over OpenAI's API beside the engine's library without any server.

The library is the upper bound of tokens per second: same file, same settings, one thread. The model is so
small that a token takes about a millisecond; with a larger one everything but the engine weighs less. A
decoupled Python model whose tokens cost nothing shows what the way of a response costs, over both protocols.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import psutil

from benchmarks.clients.language import (
    LIBRARIES,
    SECONDS,
    TIMEOUT_S,
    TOKENS,
    Endpoint,
    Streamed,
    completions,
    stream,
    stream_for,
    stream_infer,
)
from benchmarks.models import RUNTIMES
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting
from tpx import examples
from tpx.errors import MeasurementError
from tpx.protocol import messages

NAME = "language"
TITLE = "A language model: streams over OpenAI's API, and the engine's library by itself"
SHOWN = ("tokens_per_s", "token_cpu_us", "engine_cpu_us", "first_token_ms")
STREAMS = (1, 4, 8, 64)


def run(setting: Setting) -> list[Cell]:
    """Every engine and number of streams."""
    cells = []
    for engine, streams in product(LIBRARIES, STREAMS):
        name = f"{engine}, {streams} streams"
        if not setting.wants(name):
            continue
        with _serving(setting, engine, streams) as (server, path):
            sides = {
                "tpx": partial(
                    _measure,
                    server,
                    partial(stream, server.http_port, completions("tiny", TOKENS), streams),
                ),
                "library": partial(_call, engine, path, streams),
            }
            cells.append(compare(NAME, name, sides, setting.rounds))
    for protocol, streams in product(("gRPC", "generate_stream"), STREAMS):
        name = f"Python model, {protocol}, {streams} streams"
        if setting.wants(name):
            with _serving_python(setting) as server:
                read = partial(_infer if protocol == "gRPC" else _generate, server, streams)
                read()
                cells.append(compare(NAME, name, {"tpx": partial(_measure, server, read)}, setting.rounds))
    return cells


@contextmanager
def _serving_python(setting: Setting) -> Iterator[Server]:
    """A server of a decoupled Python model that sends a token to each stream in turn."""
    model = setting.work / "language_tokens" / "tokens"
    (model / "1").mkdir(parents=True, exist_ok=True)
    shutil.copy(RUNTIMES / "triton_tokens.py", model / "1" / "model.py")
    (model / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input { name: "tokens" data_type: TYPE_INT32 dims: [ 1 ] }\n'
        'output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }\n'
        "model_transaction_policy { decoupled: true }\n",
        encoding="utf-8",
    )
    with Server(launch("tpx", model.parent, setting.peers), setting.work) as server:
        server.wait_until_ready(["tokens"])
        yield server


def _infer(server: Server, streams: int) -> Streamed:
    request = messages.ModelInferRequest(model_name="tokens")
    request.inputs.add(name="tokens", datatype="INT32", shape=[1])
    request.raw_input_contents.append(TOKENS.to_bytes(4, "little"))
    return stream_infer(server.grpc_port, request.SerializeToString(), streams)


def _generate(server: Server, streams: int) -> Streamed:
    path = "/v2/models/tokens/generate_stream"
    endpoint = Endpoint(path=path, body={"tokens": TOKENS}, token=b'"text_output":', ends=0)
    return stream(server.http_port, endpoint, streams)


@contextmanager
def _serving(setting: Setting, engine: str, streams: int) -> Iterator[tuple[Server, Path]]:
    """A server of the tiny model, and the model's file."""
    repository = setting.work / f"language_{engine}_{streams}"
    model = write_tiny(repository, engine, streams)
    with Server(launch("tpx", repository, setting.peers), setting.work) as server:
        server.wait_until_ready(["tiny"])
        stream(server.http_port, completions("tiny", TOKENS), streams)
        yield server, model / "1" / "model.gguf"


def write_tiny(repository: Path, engine: str, streams: int) -> Path:
    """Write the tiny model for so many streams on one thread; return its folder."""
    [model] = examples.write(repository, ["tiny"], overwrite=True)
    parameters = {"n_parallel": streams, "n_ctx": 512 * streams, "threads": 1}
    words = [f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in parameters.items()]
    (model.path / "config.pbtxt").write_text(f'backend: "{engine}"\n' + "".join(words), encoding="utf-8")
    return model.path


def _measure(server: Server, read: Callable[[], Streamed]) -> Sample:
    """Measure streams: CPU times per token are of the server, and of the process of its engine or model."""
    process = psutil.Process(server.process.pid)
    processes = [process, *process.children(recursive=True)]
    before = [_cpu_s(each) for each in processes]
    streamed = stream_for(SECONDS, read)
    used = [_cpu_s(each) - earlier for each, earlier in zip(processes, before, strict=True)]
    return {
        "tokens_per_s": streamed.tokens / streamed.seconds,
        "token_cpu_us": used[0] / streamed.tokens * 1e6,
        "engine_cpu_us": sum(used[1:]) / streamed.tokens * 1e6,
        "first_token_ms": streamed.first_token_s * 1e3,
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _call(engine: str, path: Path, streams: int) -> Sample:
    words = [sys.executable, "-m", "benchmarks.clients.language", engine, str(path), str(streams)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise MeasurementError(f"the library has failed: {done.stderr.strip()}")
    sample: Sample = json.loads(done.stdout)
    return sample
