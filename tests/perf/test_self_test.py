"""The null server, and what is measured against it."""

import asyncio

import grpc
import pytest

from tpx.cli.perf import main
from tpx.perf.loops import event_loop
from tpx.perf.self_test import cpu_us, null_server, self_test
from tpx.protocol import messages


def test_the_null_server_answers_requests_of_http_however_they_arrive() -> None:
    async def scene() -> None:
        async with null_server("http") as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = b"POST /v2/models/null/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd"
            writer.write(request * 2 + request[:30])
            await asyncio.sleep(0.02)
            writer.write(request[30:])
            for _ in range(3):
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
                assert head.startswith(b"HTTP/1.1 200 OK")
                length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                assert b'"outputs":[]' in await reader.readexactly(length)
            writer.close()

    asyncio.run(scene())


def test_the_null_server_answers_grpcs_own_client() -> None:
    async def scene() -> None:
        async with (
            null_server("grpc") as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            body = messages.ModelInferRequest(model_name="null").SerializeToString()
            for size in (0, 100_000):
                answer = await infer(body + b"\x3a\x00" * size, timeout=5)
                assert messages.ModelInferResponse.FromString(answer).model_name == "null"

    asyncio.run(scene())


@pytest.mark.slow
def test_a_self_test_measures_each_protocols_ceiling_and_pacing() -> None:
    with asyncio.Runner(loop_factory=event_loop) as runner:
        test = runner.run(self_test(0.1))
    assert set(test.results) == {"http", "grpc"}
    for *closed, paced in test.results.values():
        assert max(result.throughput_infer_per_s for result in closed) > 1000
        assert min(cpu_us(result) for result in closed) < 100
        assert paced.open_loop is not None
        assert 0 <= paced.open_loop.slip.at(50.0) <= paced.open_loop.slip.at(99.0)
    assert str(test).count("infer/sec per core") == 6


@pytest.mark.slow
def test_a_self_test_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--self-test", "-p", "100"]) == 0
    assert "GRPC, concurrency 16" in capsys.readouterr().out
