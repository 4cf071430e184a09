"""wrk and h2load: C programs that cost so little that the server has most of the machine."""

import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from benchmarks.payloads import Payload, Protocol
from benchmarks.peers import Peers
from benchmarks.processes import Process, last_lines
from benchmarks.results import Sample
from benchmarks.servers import Server
from tpx.errors import MeasurementError

GRACE_S = 30.0
_UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6, "m": 60e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request, the server it goes to, and what a right answer weighs."""

    server: Server
    protocol: Protocol
    payload: Payload
    answer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    throughput: float
    done: int
    failed: int
    p50_us: float | None = None
    p99_us: float | None = None


class LightClients:
    """Sends an exchange's request again and again: wrk over HTTP, h2load over gRPC.

    Scripts and logs are written into `directory`.
    """

    def __init__(self, peers: Peers, directory: Path, connections: int = 1, threads: int = 1) -> None:
        """Send over at most `connections` gRPC connections, which share what is in flight, from `threads`."""
        self._peers = peers
        self._connections = connections
        self._threads = threads
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def measure(self, exchange: Exchange, concurrency: int, seconds: int) -> Sample:
        """One run. Raises MeasurementError where the client fails or nothing succeeds."""
        run: Callable[[Exchange, int, int], _Run] = self._h2load if exchange.protocol == "grpc" else self._wrk
        process = exchange.server.process
        before, client_before = process.cpu_s(), _ended_children_cpu_s()
        result = run(exchange, concurrency, seconds)
        used, client_used = process.cpu_s() - before, _ended_children_cpu_s() - client_before
        if not result.done:
            raise MeasurementError(f"no request of {result.failed} succeeded")
        sample = {
            "throughput": result.throughput,
            "server_cpu_us": used / result.done * 1e6,
            "client_cpu_us": client_used / result.done * 1e6,
            "failed": result.failed,
        }
        if result.p50_us is not None and result.p99_us is not None:
            sample |= {"p50_us": result.p50_us, "p99_us": result.p99_us}
        return sample

    def _wrk(self, exchange: Exchange, concurrency: int, seconds: int) -> _Run:
        request, port = exchange.payload, exchange.server.http_port
        body, script = self._directory / "wrk.body", self._directory / "wrk.lua"
        body.write_bytes(request.body)
        lines = [
            f'local f = io.open("{body}", "rb"); wrk.body = f:read("*a"); f:close()',
            'wrk.method = "POST"',
        ]
        lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in request.headers.items()]
        script.write_text("\n".join(lines), encoding="utf-8")
        argv = [
            self._peers.tool("wrk"),
            f"-t{min(self._threads, concurrency)}",
            f"-c{concurrency}",
            f"-d{seconds}s",
            "--latency",
            "-s",
            str(script),
        ]
        text = self._output([*argv, f"http://127.0.0.1:{port}{request.path}"], seconds)
        bad = _number(r"Non-2xx or 3xx responses: (\d+)", text, 0)
        bad += sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", text)))
        done = int(_number(r"(\d+) requests in", text)) - int(bad)
        share = done / max(1, done + int(bad))
        return _Run(
            throughput=_number(r"Requests/sec:\s+([\d.]+)", text) * share,
            done=done,
            failed=int(bad),
            p50_us=_wrk_time_us("50%", text),
            p99_us=_wrk_time_us("99%", text),
        )

    def _h2load(self, exchange: Exchange, concurrency: int, seconds: int) -> _Run:
        request, port = exchange.payload, exchange.server.grpc_port
        body, log = self._directory / "h2load.body", self._directory / "h2load.log"
        body.write_bytes(request.body)
        log.unlink(missing_ok=True)
        connections = min(self._connections, concurrency)
        argv = [self._peers.tool("h2load"), f"-D{seconds}", f"-d{body}", f"-c{connections}"]
        argv += [f"-m{concurrency // connections}", f"-t{min(self._threads, connections)}"]
        argv += [word for name, value in request.headers.items() for word in ("-H", f"{name}: {value}")]
        # a line for each request costs the client; with one in flight there is time for it
        argv += [f"--log-file={log}"] if concurrency == 1 else []
        text = self._output([*argv, f"http://127.0.0.1:{port}{request.path}"], seconds)
        done = int(_number(r"(\d+) succeeded", text))
        failed = int(_number(r"succeeded, (\d+) failed", text))
        # an error is HTTP 200 without data: what is missing of the data was errors,
        # but for requests that the end of the run cut off
        empty = done - int(_number(r"\((\d+)\) data", text)) // exchange.answer_bytes
        if empty > concurrency:
            done, failed = done - empty, failed + empty
        times = sorted(_logged_times_us(log)) if concurrency == 1 else []
        return _Run(
            throughput=done / seconds,
            done=done,
            failed=failed,
            p50_us=median(times) if times else None,
            p99_us=quantiles(times, n=100)[98] if len(times) > 1 else None,
        )

    def _output(self, argv: list[str], seconds: int) -> str:
        with Process(argv, self._directory / "client.log") as process:
            status = process.wait(seconds + GRACE_S)
            if status:
                raise MeasurementError(f"{process.name} failed: {last_lines(process.output)}")
            return process.output


def _ended_children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _number(pattern: str, text: str, default: float | None = None) -> float:
    match = re.search(pattern, text)
    if match:
        return float(match[1])
    if default is None:
        raise MeasurementError(f"no '{pattern}' in the client's output: {last_lines(text)}")
    return default


def _wrk_time_us(percentile: str, text: str) -> float | None:
    match = re.search(rf"{percentile}\s+([\d.]+)(us|ms|s|m)\b", text)
    return float(match[1]) * _UNITS_US[match[2]] if match else None


def _logged_times_us(log: Path) -> list[int]:
    """Third column of h2load's log: microseconds until the end of the response."""
    lines = log.read_text(encoding="ascii").splitlines() if log.is_file() else []
    return [int(columns[2]) for columns in (line.split("\t") for line in lines) if columns[1] == "200"]
