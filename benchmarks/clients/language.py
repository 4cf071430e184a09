"""Streams of a language model: over HTTP or gRPC in one thread, and in an engine's library without a server.

`python -m benchmarks.clients.language ENGINE FILE STREAMS` is the library by itself, in a process of
its own; the engine is `llamacpp` or `openvino_genai`.
"""

import asyncio
import json
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import monotonic, process_time

from benchmarks.results import Sample
from tpx.errors import MeasurementError
from tpx.protocol.grpc.client import connect

TIMEOUT_S = 120
TOKENS = 200
"""Of each stream."""
SECONDS = 3.0
"""Of each sample."""
PROMPT = "And"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """Streams that were read side by side."""

    tokens: int
    seconds: float
    first_token_s: float
    """Median of the streams."""
    between_s: float
    """Median of the streams: from the first token to the last, over the number of tokens between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One of the two protocols of language models."""

    path: str
    body: Mapping[str, object]
    token: bytes
    """What each event with a token has."""
    ends: int
    """Events at the end of a stream that have it, too, without a token."""


def completions(model: str, tokens: int) -> Endpoint:
    """OpenAI's API."""
    body = {"prompt": PROMPT, "stream": True, "ignore_eos": True, "model": model, "max_tokens": tokens}
    return Endpoint(path="/v1/completions", body=body, token=b'"text":', ends=1)


def generate_stream(model: str, tokens: int) -> Endpoint:
    """Triton's extension, with the tensors of its vLLM backend."""
    sampling = json.dumps({"ignore_eos": True, "max_tokens": tokens})
    body = {"text_input": PROMPT, "stream": True, "sampling_parameters": sampling}
    return Endpoint(path=f"/v2/models/{model}/generate_stream", body=body, token=b'"text_output":', ends=0)


def stream_for(seconds: float, read: Callable[[], Streamed]) -> Streamed:
    """Read streams side by side to their ends, again and again for so long. Raises as `read`."""
    end, rounds = monotonic() + seconds, []
    while monotonic() < end:
        rounds.append(read())
    return Streamed(
        tokens=sum(each.tokens for each in rounds),
        seconds=sum(each.seconds for each in rounds),
        first_token_s=median(each.first_token_s for each in rounds),
        between_s=median(each.between_s for each in rounds),
    )


def stream(port: int, endpoint: Endpoint, streams: int) -> Streamed:
    """Read streams side by side to their ends. Raises MeasurementError."""
    body = json.dumps(endpoint.body).encode()
    head = (
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    request = head % (endpoint.path.encode(), len(body)) + body
    began = monotonic()
    readers = [_Reader() for _ in range(streams)]
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
            connection.sendall(request)
            selector.register(connection, selectors.EVENT_READ, reader)
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise MeasurementError(f"no token within {TIMEOUT_S} s")
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                if key.data.take(key.fileobj.recv(1 << 20), endpoint.token):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    seconds = monotonic() - began
    made = [reader.data.count(endpoint.token) - endpoint.ends for reader in readers]
    if min(made) < 2 or any(b" 200 " not in reader.data[:20] for reader in readers):
        raise MeasurementError(f"a stream ended early: {bytes(readers[made.index(min(made))].data[:500])!r}")
    between = [
        (reader.last_s - reader.first_s) / (count - 1) for reader, count in zip(readers, made, strict=True)
    ]
    return Streamed(
        tokens=sum(made),
        seconds=seconds,
        first_token_s=median(reader.first_s for reader in readers) - began,
        between_s=median(between),
    )


def stream_infer(port: int, message: bytes, streams: int) -> Streamed:
    """Read streams of ModelStreamInfer on one connection to their ends; each sends one request. Raises
    MeasurementError.
    """
    return asyncio.run(_stream_infer(port, message, streams))


def _note_time(times: list[float], _: object) -> None:
    times.append(monotonic())


async def _stream_infer(port: int, message: bytes, streams: int) -> Streamed:
    connection = await connect("127.0.0.1", port)
    times: list[list[float]] = [[] for _ in range(streams)]
    statuses: asyncio.Queue[int] = asyncio.Queue()
    began = monotonic()
    for came in times:
        call = connection.open(
            STREAM_INFER,
            partial(_note_time, came),
            lambda response: statuses.put_nowait(response.status),
        )
        call.send(message)
        call.half_close()
    async with asyncio.timeout(TIMEOUT_S):
        ended = [await statuses.get() for _ in times]
    seconds = monotonic() - began
    connection.close()
    if any(ended) or min(map(len, times)) < 2:
        raise MeasurementError(f"a stream ended early, with one of the statuses {set(ended)}")
    return Streamed(
        tokens=sum(map(len, times)),
        seconds=seconds,
        first_token_s=median(came[0] for came in times) - began,
        between_s=median((came[-1] - came[0]) / (len(came) - 1) for came in times),
    )


class _Reader:
    """One connection's answer, and when its first and last token came."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.first_s = self.last_s = 0.0

    def take(self, more: bytes, token: bytes) -> bool:
        """Keep what came; return whether the answer has ended."""
        self.data += more
        if token in more:
            self.last_s = monotonic()
            self.first_s = self.first_s or self.last_s
        return not more or self.data.endswith(b"\r\n0\r\n\r\n")


Generate = Callable[[], tuple[int, float]]
"""Generates in all streams to their ends; returns the number of tokens, and when half had their first one."""


def measure_library(prepare: Callable[[Path, int, int], Generate], path: Path, streams: int) -> Sample:
    """Generate in this process, with the settings of tpx, for as long as the servers are measured."""
    generate = prepare(path, streams, TOKENS)
    generate()  # what it takes for its first is not measured
    began, cpu_s = monotonic(), process_time()
    total, first = 0, list[float]()
    while monotonic() < began + SECONDS:
        start = monotonic()
        made, first_s = generate()
        total += made
        first.append(first_s - start)
    return {
        "tokens_per_s": total / (monotonic() - began),
        "engine_cpu_us": (process_time() - cpu_s) / total * 1e6,
        "first_token_ms": median(first) * 1e3,
    }


def prepare_llamacpp(path: Path, streams: int, tokens: int) -> Generate:
    """A thread for each stream."""
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
        mmproj="",
        cache_ram_mib=0,
        kv_cache_type="f16",
    )
    server, _ = start_server(asdict(settings), "tiny")
    body = json.dumps(completions("tiny", tokens).body).encode()

    def generate() -> tuple[int, float]:
        made, first = [0] * streams, [0.0] * streams

        def run(index: int) -> None:
            def take(_: bytes) -> bool:
                first[index] = first[index] or monotonic()
                made[index] += 1
                return False

            server.handle_completions(body, take)

        threads = [threading.Thread(target=run, args=(index,)) for index in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(made) - streams, median(first)

    return generate


def prepare_openvino_genai(path: Path, streams: int, tokens: int) -> Generate:
    """A pipeline whose tokens are read and not decoded."""
    import tpx.serving.backends.openvino  # noqa: F401 (before OpenVINO: then it reports nothing)

    # isort: split
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = streams
    scheduler.max_num_batched_tokens = 2048
    scheduler.cache_size = 0
    scheduler.num_kv_blocks = 512 * streams // 32 + 1
    scheduler.enable_prefix_caching = True
    threads = {"INFERENCE_NUM_THREADS": 1}
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", threads)
    encoded = pipeline.get_tokenizer().encode(PROMPT).input_ids.data
    config = pipeline.get_config()
    config.ignore_eos, config.max_new_tokens, config.do_sample = True, tokens, True
    numbers = count()

    def generate() -> tuple[int, float]:
        handles = [
            pipeline.add_request(next(numbers), openvino.Tensor(encoded), config) for _ in range(streams)
        ]
        made, first = [0] * streams, [0.0] * streams
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for index, handle in enumerate(handles):
                while handle.can_read():
                    first[index] = first[index] or monotonic()
                    made[index] += sum(len(output.generated_ids) for output in handle.read().values())
        return sum(made), median(first)

    return generate


LIBRARIES = {"llamacpp": prepare_llamacpp, "openvino_genai": prepare_openvino_genai}

if __name__ == "__main__":
    engine, path, streams = sys.argv[1:]
    print(json.dumps(measure_library(LIBRARIES[engine], Path(path), int(streams))), flush=True)
