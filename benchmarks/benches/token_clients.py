"""The cost of `tpx perf` and aiperf where the service costs nothing: the same tokens at the same times.

A short run is mostly the start and the report; the rest of a long one is what its tokens cost.
"""

import json
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import sleep

from benchmarks.peers import Peers
from benchmarks.processes import Process, free_port, last_lines
from benchmarks.results import Cell, Sample, compare
from benchmarks.setting import Setting
from tpx.errors import MeasurementError

NAME = "token_clients"
TITLE = "tpx perf and aiperf against the same service that costs nothing"
SHOWN = ("client_token_us", "start_cpu_s", "run_cpu_s", "first_ms", "between_ms", "failed")
STREAMS = (1, 8, 64)
TOKENS, GAP_MS = 200, 5.0
SHORT = 8
"""Requests of the short run, or one for each stream."""
TIMEOUT_S = 300.0
Command = Callable[[int, int, Path], Sequence[str | Path]]
"""Returns the command line for streams and requests, and writes its report into a folder."""


def run(setting: Setting) -> list[Cell]:
    """Every number of streams."""
    cells = []
    for streams in STREAMS:
        name = f"{streams} streams"
        if setting.wants(name):
            with _serving(setting.work) as url:
                sides = {
                    "tpx perf": partial(_measure, partial(_tpx, url), _read_tpx, streams, setting.work),
                    "aiperf": partial(
                        _measure, partial(_aiperf, setting.peers, url), _read_aiperf, streams, setting.work
                    ),
                }
                cells.append(compare(NAME, name, sides, setting.rounds))
    return cells


@contextmanager
def _serving(work: Path) -> Iterator[str]:
    program = Path(__file__).parent.parent / "runtimes" / "token_server.py"
    port = free_port()
    with Process([sys.executable, program, str(port), str(TOKENS), str(GAP_MS)], work / "tokens.log"):
        sleep(1.0)
        yield f"127.0.0.1:{port}"


def _measure(command: Command, read: Callable[[Path], Sample], streams: int, work: Path) -> Sample:
    """Run a tool for few requests and for many."""
    requests = max(SHORT, streams) + 8 * streams
    short_s = _run(command(streams, max(SHORT, streams), work), work)
    long_s = _run(command(streams, requests, work), work)
    tokens = 8 * streams * TOKENS
    return {
        "client_token_us": (long_s - short_s) / tokens * 1e6,
        "start_cpu_s": short_s,
        "run_cpu_s": long_s,
        **read(work),
    }


def _run(argv: Sequence[str | Path], work: Path) -> float:
    """Run a program and return its processor time, with that of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with Process(argv, work / "client.log", cwd=work) as process:
        if process.wait(TIMEOUT_S):
            raise MeasurementError(f"{process.name} failed: {last_lines(process.output)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _tpx(url: str, streams: int, requests: int, work: Path) -> Sequence[str | Path]:
    words = f"perf --endpoint-type chat -m null -u {url} --streaming --input-tokens 32 --word-tokens 1"
    load = f"--concurrency-range {streams} --request-count {requests} --output-tokens {TOKENS}"
    return [sys.executable, "-m", "tpx", *words.split(), *load.split(), "--json", work / "tpx.json"]


def _read_tpx(work: Path) -> Sample:
    level = json.loads((work / "tpx.json").read_text(encoding="utf-8"))["levels"][0]
    figures = level["streaming"]["figures"]
    return {
        "first_ms": figures["ttft"]["p50"] / 1000,
        "between_ms": figures["icl"]["p50"] / 1000,
        "failed": level["failed"],
    }


def _aiperf(peers: Peers, url: str, streams: int, requests: int, work: Path) -> Sequence[str | Path]:
    """Return its command line; the service counts the tokens, so that no tokenizer is asked for them."""
    words = (
        "profile --endpoint-type chat --model null --streaming --isl 32 --use-server-token-count --ui none"
    )
    load = f"--url http://{url} --concurrency {streams} --request-count {requests} --osl {TOKENS}"
    tokenizer = _write_tokenizer(peers, work)
    paths: list[str | Path] = ["--tokenizer", tokenizer, "--artifact-dir", work / "aiperf"]
    return [peers.aiperf() / "aiperf", *words.split(), *load.split(), *paths]


def _write_tokenizer(peers: Peers, work: Path) -> Path:
    """A small tokenizer in a folder: aiperf makes its prompts with one, and would download any other."""
    folder = work / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        code = (
            "import sys; from tokenizers import Tokenizer, models, pre_tokenizers, trainers, decoders\n"
            "from transformers import PreTrainedTokenizerFast as Fast\n"
            "made = Tokenizer(models.BPE()); made.decoder = decoders.ByteLevel()\n"
            "made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)\n"
            "made.train_from_iterator(['to be or not to be'], trainers.BpeTrainer(vocab_size=300))\n"
            "Fast(tokenizer_object=made, eos_token='</s>').save_pretrained(sys.argv[1])\n"
        )
        _run([peers.aiperf() / "python", "-c", code, folder], work)
    return folder


def _read_aiperf(work: Path) -> Sample:
    (report,) = (work / "aiperf").rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text(encoding="utf-8"))
    return {
        "first_ms": found["time_to_first_token"]["p50"],
        "between_ms": found["inter_chunk_latency"]["p50"],
        "failed": (found.get("error_request_count") or {}).get("avg", 0),
    }
