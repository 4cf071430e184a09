"""The tools that one has at hand: curl, h2load, wrk, and the perf_analyzer that there was before ours."""

import csv
import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.child import Child
from tests.protocol.v2_requests import encode_infer_request
from tests.serving.live import infer_message, outputs_of
from tpx.protocol import messages
from tpx.protocol.tensors import Tensor

pytestmark = pytest.mark.e2e

INFER = "inference.GRPCInferenceService/ModelInfer"
ROW = np.arange(16, dtype=np.float32).reshape(1, 16)
PACKAGES = {"curl": "curl", "h2load": "nghttp2-client", "wrk": "wrk"}


def tool(name: str) -> str:
    """The path of a program; skips where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} not found: install the Debian package {PACKAGES[name]}")
    return found


def run(*words: str | Path, timeout_s: float = 30) -> "subprocess.CompletedProcess[bytes]":
    """Run a program to its end, which must be a good one."""
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def curl(*words: str | Path) -> "subprocess.CompletedProcess[bytes]":
    return run(tool("curl"), "--silent", "--show-error", "--max-time", "20", *words)


def success_count(http_address: str, model: str) -> int:
    """Requests that the server says it answered well."""
    with urllib.request.urlopen(f"http://{http_address}/v2/models/{model}/stats", timeout=10) as response:
        statistics = json.loads(response.read())
    return int(statistics["model_stats"][0]["inference_stats"]["success"]["count"])


def written(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def binary_request(
    name: str, array: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"
) -> tuple[int, bytes]:
    """The length of the JSON head, and head and tensor."""
    head, tail = encode_infer_request([Tensor.from_numpy(name, array)])
    return len(head), b"".join((head, *map(bytes, tail)))


def framed(model: str, name: str) -> bytes:
    """A ModelInferRequest as gRPC puts it on the wire."""
    message = infer_message(model, {name: ROW})
    return b"\0" + len(message).to_bytes(4, "big") + message


# curl over HTTP/1.1


def test_curl_health_and_keep_alive(http_address: str) -> None:
    pages = [f"http://{http_address}/v2/health/{state}" for state in ("live", "ready")]
    done = curl("--write-out", "%{http_code} %{http_version} %{num_connects}\n", *pages)
    assert done.stdout == b"200 1.1 1\n200 1.1 0\n"


def test_curl_two_inferences_on_one_connection(http_address: str) -> None:
    body = json.dumps(
        {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": ROW.tolist()}]}
    )
    page = f"http://{http_address}/v2/models/identity/infer"
    done = curl("--write-out", "\n%{num_connects}\n", "--data", body, page, page)
    first, connects, second, again = done.stdout.decode().splitlines()
    assert (connects, again) == ("1", "0")
    for answer in (first, second):
        assert json.loads(answer)["outputs"][0]["data"] == ROW.ravel().tolist()


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "with a length"])
def test_curl_uploads_over_a_megabyte_once_it_is_told_to_continue(
    http_address: str, tmp_path: Path, chunked: bool
) -> None:
    array = np.random.default_rng(7).random((1, 400_000), dtype=np.float32)
    head_size, body = binary_request("x", array)
    done = curl(
        "--verbose",
        *("--header", f"Inference-Header-Content-Length: {head_size}"),
        *("--header", "Transfer-Encoding: chunked" if chunked else "Content-Type: application/octet-stream"),
        *("--header", "Expect: 100-continue"),
        *("--data-binary", f"@{written(tmp_path / 'body', body)}"),
        f"http://{http_address}/v2/models/large/infer",
    )
    dialogue = done.stderr.decode()
    assert "< HTTP/1.1 100 Continue" in dialogue
    assert "< HTTP/1.1 200 OK" in dialogue
    assert ("> Transfer-Encoding: chunked" in dialogue) is chunked
    size = re.search(r"< Inference-Header-Content-Length: (\d+)", dialogue)
    assert size is not None
    assert done.stdout[int(size[1]) :] == array.tobytes()


def test_curl_head_has_the_length_and_no_body(http_address: str) -> None:
    page = f"http://{http_address}/v2"
    body = curl(page).stdout
    head = curl("--head", page).stdout.decode()
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert f"\r\nContent-Length: {len(body)}\r\n" in head
    assert head.endswith("\r\n\r\n")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_curl_gets_a_compressed_answer_where_it_asks_for_one(
    http_address: str, tmp_path: Path, encoding: str
) -> None:
    head_size, body = binary_request("x", np.zeros((1, 50_000), dtype=np.float32))
    words: list[str | Path] = [
        *("--header", f"Inference-Header-Content-Length: {head_size}"),
        *("--data-binary", f"@{written(tmp_path / 'body', body)}"),
        f"http://{http_address}/v2/models/large/infer",
    ]
    asked: list[str | Path] = ["--header", f"Accept-Encoding: {encoding}", "--dump-header", tmp_path / "head"]
    squeezed = curl(*asked, *words).stdout
    assert f"content-encoding: {encoding}" in (tmp_path / "head").read_text("latin-1").lower()
    assert len(squeezed) < 10_000
    assert curl("--compressed", *asked, *words).stdout == curl(*words).stdout


# curl over HTTP/2


def curl_http2(*words: str | Path) -> "subprocess.CompletedProcess[bytes]":
    if b"HTTP2" not in run(tool("curl"), "--version").stdout:
        pytest.skip("this curl has no HTTP/2: install the Debian package curl")
    return curl("--http2-prior-knowledge", *words)


def test_curl_makes_a_grpc_call_over_http2(grpc_address: str, tmp_path: Path) -> None:
    done = curl_http2(
        *("--dump-header", tmp_path / "head", "--output", tmp_path / "answer"),
        *("--header", "Content-Type: application/grpc", "--header", "TE: trailers"),
        *("--data-binary", f"@{written(tmp_path / 'call', framed('identity', 'INPUT0'))}"),
        *("--write-out", "%{http_code} %{http_version}", f"http://{grpc_address}/{INFER}"),
    )
    assert done.stdout == b"200 2"
    head, trailers = (tmp_path / "head").read_text("latin-1").split("\n\n", 1)
    assert "content-type: application/grpc" in head
    assert "grpc-status: 0" in trailers
    answer = (tmp_path / "answer").read_bytes()
    assert answer[:5] == b"\0" + (len(answer) - 5).to_bytes(4, "big")
    outputs = outputs_of(messages.ModelInferResponse.FromString(answer[5:]))
    assert outputs == {"OUTPUT0": ROW.tolist()}


def test_curl_is_told_over_http2_what_grpc_is_not(grpc_address: str) -> None:
    page = f"http://{grpc_address}/{INFER}"
    said = ("--write-out", "%{http_code} %{http_version}")
    assert curl_http2(*said, page).stdout == b"405 2"
    # without a body: curl 7 forgets an answer that comes while it still has something to send
    words = ("--request", "POST", "--header", "Content-Type: application/json")
    assert curl_http2(*said, *words, page).stdout == b"415 2"


# load


def test_h2load_every_call_is_answered_and_was_inferred(
    http_address: str, grpc_address: str, tmp_path: Path, server: Child
) -> None:
    h2load = tool("h2load")
    before = success_count(http_address, "identity")
    done = run(
        *(h2load, "--clients=2", "--max-concurrent-streams=8", "--duration=1"),
        *("--data", written(tmp_path / "call", framed("identity", "INPUT0"))),
        *("--header", "content-type: application/grpc", "--header", "te: trailers"),
        f"http://{grpc_address}/{INFER}",
    )
    report = done.stdout.decode()
    numbers = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)[,\n]", report)}
    assert [numbers[name] for name in ("failed", "errored", "timeout")] == [0, 0, 0]
    assert numbers["succeeded"] == numbers["done"] > 100
    inferred = success_count(http_address, "identity") - before
    assert numbers["done"] <= inferred <= numbers["started"]
    assert server.err == []


WRK_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
wrk.headers["Inference-Header-Content-Length"] = "{head_size}"
wrong, threads = 0, {{}}
function setup(thread) table.insert(threads, thread) end
function response(status, headers, body)
  if status ~= 200 or body:sub(-64) ~= wrk.body:sub(-64) then wrong = wrong + 1 end
end
function done(summary)
  local all = 0
  for _, thread in ipairs(threads) do all = all + thread:get("wrong") end
  io.write("wrong answers: " .. all .. "\\n")
end
"""


def test_wrk_every_request_is_answered_rightly_and_was_inferred(
    http_address: str, tmp_path: Path, server: Child
) -> None:
    wrk = tool("wrk")
    head_size, body = binary_request("INPUT0", ROW)
    script = WRK_SCRIPT.format(body=written(tmp_path / "body", body), head_size=head_size)
    before = success_count(http_address, "identity")
    done = run(
        *(wrk, "-t1", "-c8", "-d1s", "-s", written(tmp_path / "wrk.lua", script.encode())),
        f"http://{http_address}/v2/models/identity/infer",
    )
    report = done.stdout.decode()
    assert "wrong answers: 0" in report
    assert "Non-2xx" not in report
    assert "Socket errors" not in report
    answered = re.search(r"(\d+) requests in", report)
    assert answered is not None
    count = int(answered[1])
    assert count > 100
    assert count <= success_count(http_address, "identity") - before <= count + 8
    assert server.err == []


# perf_analyzer


def perf_analyzer() -> str:
    """Where the C++ perf_analyzer is; skips where there is none."""
    found = os.environ.get("TPX_TEST_PERF_ANALYZER") or shutil.which("perf_analyzer")
    if found is None:
        pytest.skip("no perf_analyzer: set TPX_TEST_PERF_ANALYZER to its path, or put it on the PATH")
    return found


SERVER_COLUMNS = ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer_measures_and_finds_the_servers_share(
    http_address: str, grpc_address: str, tmp_path: Path, protocol: str
) -> None:
    before = success_count(http_address, "mnist")
    report = tmp_path / "report.csv"
    # a stability of 999 %: three windows, then it ends, however busy the machine is
    run(
        *(perf_analyzer(), "-m", "mnist", "-i", protocol, "--concurrency-range", "2"),
        *("-u", http_address if protocol == "http" else grpc_address),
        *("-p", "300", "-s", "999", "-r", "3", "-f", report),
        timeout_s=50,
    )
    [row] = csv.DictReader(report.read_text().splitlines())
    assert row["Concurrency"] == "2"
    assert float(row["Inferences/Second"]) > 10
    assert all(row[column].isdigit() for column in SERVER_COLUMNS)
    assert int(row["Server Compute Infer"]) > 0
    windows_s = 3 * 0.3
    inferred = success_count(http_address, "mnist") - before
    assert inferred > float(row["Inferences/Second"]) * windows_s / 2
