"""Streams of a language model: over HTTP in one thread, and in llama.cpp's library without a server.

`python -m benchmarks.clients.language FILE STREAMS TOKENS` is the library by itself, in a process of its own.
"""

import json
import selectors
import socket
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic, process_time

from tpx.errors import MeasurementError

TIMEOUT_S = 120
_REQUEST = {"prompt": "And", "stream": True, "ignore_eos": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """Streams that were read side by side."""

    tokens: int
    seconds: float
    first_token_s: float
    """Median of the streams."""


def stream(port: int, model: str, streams: int, tokens: int) -> Streamed:
    """Read streams side by side to their ends. Raises MeasurementError."""
    body = json.dumps({**_REQUEST, "model": model, "max_tokens": tokens}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    began, read, total = monotonic(), 0, 0
    first: list[float] = []
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
            connection.sendall(head + body)
            selector.register(connection, selectors.EVENT_READ, [])
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            for key, _ in ready:
                connection, pieces = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                more = connection.recv(1 << 20)
                if not pieces:
                    first.append(monotonic() - began)
                pieces.append(more)
                if not more or more.endswith(b"0\r\n\r\n"):
                    selector.unregister(connection)
                    connection.close()
                    data = b"".join(pieces)
                    read += data.count(b"data: [DONE]")
                    total += data.count(b'"text":"') - 1  # the last one only has the reason
            if not ready:
                raise MeasurementError(f"no token within {TIMEOUT_S} s")
    if read != streams:
        raise MeasurementError(f"{streams - read} of {streams} streams did not end as they should")
    return Streamed(tokens=total, seconds=monotonic() - began, first_token_s=median(first))


def run_library(path: Path, streams: int, tokens: int) -> dict[str, float]:
    """Generate in threads of this process, with the settings of tpx; return a sample."""
    from tpx.serving.backends.llamacpp.backend import EngineSettings
    from tpx.serving.backends.llamacpp.llama_server import start_server

    settings = EngineSettings(
        path=str(path),
        n_ctx=512 * streams,
        n_parallel=streams,
        n_batch=2048,
        threads=1,
        n_gpu_layers=0,
        max_queue_size=0,
        embeddings=False,
        pooling="",
        chat_template="",
        cache_ram_mib=0,
        kv_cache_type="f16",
    )
    server, _ = start_server(asdict(settings), "tiny")
    body = json.dumps({**_REQUEST, "max_tokens": tokens}).encode()
    made = [0] * streams
    first = [0.0] * streams

    def generate(index: int) -> None:
        def take(_: bytes) -> bool:
            if not made[index]:
                first[index] = monotonic()
            made[index] += 1
            return False

        server.handle_completions(body, take)

    threads = [threading.Thread(target=generate, args=(index,)) for index in range(streams)]
    began, cpu_s = monotonic(), process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(made) - streams
    return {
        "tokens_per_s": total / (monotonic() - began),
        "engine_cpu_us": (process_time() - cpu_s) / total * 1e6,
        "first_token_ms": (median(first) - began) * 1e3,
    }


if __name__ == "__main__":
    print(json.dumps(run_library(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))), flush=True)
