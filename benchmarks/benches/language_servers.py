"""Servers of the same small language model side by side: llama.cpp's own, tpx, Triton, vLLM.

Triton's side is a decoupled Python model with the tensors of its vLLM backend and llama.cpp's library in it;
tpx serves that model, too. Every sample starts its server, so that start and memory are seen in each.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter, sleep

from benchmarks.benches.language import write_tiny
from benchmarks.clients.language import (
    SECONDS,
    TOKENS,
    Endpoint,
    completions,
    generate_stream,
    stream,
    stream_for,
)
from benchmarks.models import Kind
from benchmarks.processes import Process, free_port, last_lines
from benchmarks.results import Cell, Sample, compare
from benchmarks.servers import POLL_S, Launch, get, launch
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "language_servers"
TITLE = "Servers of a small language model"
SHOWN = ("tokens_per_s", "first_token_ms", "between_ms", "token_cpu_us", "ready_s", "pss_mb")
STREAMS = (1, 8)
RUNTIMES = Path(__file__).parent.parent / "runtimes"
VLLM = Path(".cache/vllm/bin/python")
"""What `make test-vllm` makes."""
READY_S = 300.0
EAGER = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8}
LITTLE_MEMORY = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""In GB; by default vLLM takes what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server of the model, and how it is asked."""

    argv: tuple[str, ...]
    port: int
    endpoint: Endpoint
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/v2/models/tiny/ready"


def run(setting: Setting) -> list[Cell]:
    """Every number of streams."""
    contenders: dict[str, Callable[[Setting, int], Contender]] = {
        "tpx, llama.cpp": partial(_tpx, "llamacpp"),
        "llama.cpp's own": _llama_server,
        "tpx, OpenVINO": partial(_tpx, "openvino_genai"),
        "tpx, Python model": partial(_python_model, "tpx"),
        "Triton, Python model": partial(_python_model, "triton"),
        "tpx, vLLM": _tpx_vllm,
        "vLLM's own": _vllm,
    }
    cells = []
    for streams in STREAMS:
        sides: dict[str, Callable[[], Sample]] = {}
        for name, prepare in contenders.items():
            if setting.wants(f"{streams} streams, {name}"):
                try:
                    sides[name] = partial(
                        _start_and_measure, prepare(setting, streams), streams, setting.work
                    )
                except MeasurementError as exc:
                    setting.leave_out(name, exc)
        if sides:
            cells.append(compare(NAME, f"{streams} streams", sides, setting.rounds))
    return cells


def _start_and_measure(contender: Contender, streams: int, work: Path) -> Sample:
    """Start a server, warm it up by one round of streams, measure, end it."""
    start = perf_counter()
    with Process(contender.argv, work / "language_server.log", env=contender.env) as server:
        while get(contender.port, contender.ready) is None:
            if not server.running or perf_counter() - start > READY_S:
                raise MeasurementError(f"it does not answer {contender.ready}: {last_lines(server.output)}")
            sleep(POLL_S)
        ready_s = perf_counter() - start
        stream(contender.port, contender.endpoint, streams)
        before_s = server.cpu_s()
        streamed = stream_for(SECONDS, partial(stream, contender.port, contender.endpoint, streams))
        cpu_s = server.cpu_s() - before_s
        memory = server.memory()
    return {
        "tokens_per_s": streamed.tokens / streamed.seconds,
        "first_token_ms": streamed.first_token_s * 1e3,
        "between_ms": streamed.between_s * 1e3,
        "token_cpu_us": cpu_s / streamed.tokens * 1e6,
        "ready_s": ready_s,
        "pss_mb": memory.pss_mb,
    }


def _contender(command: Launch, endpoint: Endpoint) -> Contender:
    return Contender(argv=command.argv, env=command.env, port=command.http_port, endpoint=endpoint)


def _tpx(engine: str, setting: Setting, streams: int) -> Contender:
    repository = setting.work / f"language_{engine}_{streams}"
    write_tiny(repository, engine, streams)
    return _contender(launch("tpx", repository, setting.peers), completions("tiny", TOKENS))


def _llama_server(setting: Setting, streams: int) -> Contender:
    model = write_tiny(setting.work / f"language_llamacpp_{streams}", "llamacpp", streams)
    port, path = free_port(), model / "1" / "model.gguf"
    argv = (sys.executable, RUNTIMES / "llama_server.py", path, port, streams)
    endpoint = completions("tiny", TOKENS)
    return Contender(argv=tuple(map(str, argv)), port=port, endpoint=endpoint, ready="/health")


def _python_model(kind: Kind, setting: Setting, streams: int) -> Contender:
    """Triton's stub runs the model in the environment of `Peers`, tpx in its own."""
    repository = setting.work / f"language_python_{streams}"
    model = write_tiny(repository, "python", streams)
    shutil.copy(RUNTIMES / "triton_language.py", model / "1" / "model.py")
    tensors = (
        'input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] }\n'
        'input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] }\n'
        'output { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }\n'
        "model_transaction_policy { decoupled: true }\n"
    )
    with (model / "config.pbtxt").open("a", encoding="utf-8") as config:
        config.write(tensors)
    return _contender(launch(kind, repository, setting.peers), generate_stream("tiny", TOKENS))


def _checkpoint(setting: Setting) -> Path:
    """The tiny model in the form that vLLM reads. Raises MeasurementError where vLLM is not installed."""
    if not VLLM.exists():
        raise MeasurementError(f"there is no {VLLM}: make test-vllm installs it")
    directory = setting.work / "tiny_checkpoint"
    shutil.rmtree(directory, ignore_errors=True)
    write = "import sys; from pathlib import Path; from tests.serving.backends.vllm.checkpoint import *; "
    write += "write_checkpoint(Path(sys.argv[1]))"
    subprocess.run([VLLM, "-c", write, directory], check=True)
    return directory


def _tpx_vllm(setting: Setting, streams: int) -> Contender:
    repository = setting.work / f"language_vllm_{streams}"
    model = write_tiny(repository, "vllm", streams)
    (model / "1" / "model.gguf").unlink()
    settings = {"model": str(_checkpoint(setting)), **EAGER}
    (model / "1" / "model.json").write_text(json.dumps(settings), encoding="utf-8")
    (model / "config.pbtxt").write_text('backend: "vllm"\n', encoding="utf-8")
    command = launch("tpx", repository, setting.peers)
    contender = _contender(command, completions("tiny", TOKENS))
    return replace(contender, argv=(str(VLLM), *contender.argv[1:]), env=LITTLE_MEMORY)


def _vllm(setting: Setting, streams: int) -> Contender:  # noqa: ARG001 (it takes any number)
    port = free_port()
    words: list[str | Path] = [VLLM, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", _checkpoint(setting), "--served-model-name", "tiny", "--host", "127.0.0.1"]
    words += ["--port", str(port)]
    for name, value in EAGER.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    endpoint = completions("tiny", TOKENS)
    return Contender(
        argv=tuple(map(str, words)), env=LITTLE_MEMORY, port=port, endpoint=endpoint, ready="/health"
    )
