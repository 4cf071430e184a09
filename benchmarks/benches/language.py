"""Streams of a small language model over OpenAI's API beside llama.cpp's library without any server.

The library is the upper bound of tokens per second: same file, same settings, one thread. The model is so
small that a token takes about a millisecond; with a larger one everything but the engine weighs less.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from benchmarks.clients.language import TIMEOUT_S, stream
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import Server, launch
from benchmarks.setting import Setting
from tpx import examples
from tpx.errors import MeasurementError

NAME = "language"
TITLE = "A language model: streams over OpenAI's API, and llama.cpp's library by itself"
SHOWN = ("tokens_per_s", "token_cpu_us")
STREAMS = (1, 4, 8, 64)
TOKENS = 200


def run(setting: Setting) -> list[Cell]:
    """Every number of streams."""
    cells = []
    for streams in STREAMS:
        name = f"tiny, {streams} streams"
        if not setting.wants(name):
            continue
        with _serving(setting, streams) as server:
            path = setting.work / f"language_{streams}" / "tiny" / "1" / "model.gguf"
            sides = {"tpx": partial(_serve, server, streams), "library": partial(_call, path, streams)}
            cells.append(compare(NAME, name, sides, setting.rounds))
    return cells


@contextmanager
def _serving(setting: Setting, streams: int) -> Iterator[Server]:
    repository = setting.work / f"language_{streams}"
    [model] = examples.write(repository, ["tiny"], overwrite=True)
    parameters = {"n_parallel": streams, "n_ctx": 512 * streams, "threads": 1}
    words = [f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in parameters.items()]
    (model.path / "config.pbtxt").write_text('backend: "llamacpp"\n' + "".join(words), encoding="utf-8")
    with Server(launch("tpx", repository, setting.peers), setting.work) as server:
        server.wait_until_ready(["tiny"])
        stream(server.http_port, "tiny", streams, TOKENS)
        yield server


def _serve(server: Server, streams: int) -> Sample:
    """Tokens per second, and the CPU time per token of the server without the process of its engine."""
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    rate = stream(server.http_port, "tiny", streams, TOKENS)
    after = process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return {"tokens_per_s": rate, "token_cpu_us": cpu_s / (streams * TOKENS) * 1e6}


def _call(path: Path, streams: int) -> Sample:
    words = [sys.executable, "-m", "benchmarks.clients.language", str(path), str(streams), str(TOKENS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise MeasurementError(f"the library has failed: {done.stderr.strip()}")
    return {"tokens_per_s": float(done.stdout)}
