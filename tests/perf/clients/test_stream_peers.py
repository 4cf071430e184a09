"""Streams of other servers, on grpcio: that end, that keep no ids, that do not say what follows."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from tests.perf.clients.running import level, ran
from tpx.errors import UsageError
from tpx.perf.results import LevelResult
from tpx.protocol import messages

Answer = Callable[[int, Any, Any], Iterator[Any]]
"""What a request is answered: its number, itself, and the call's context."""


def answer_of(request: Any, *, keeps_id: bool = True, final: bool | None = None, outputs: int = 1) -> Any:
    response = messages.ModelStreamInferResponse()
    inner = response.infer_response
    inner.model_name, inner.id = "net", request.id if keeps_id else ""
    if final is not None:
        inner.parameters["triton_final_response"].bool_param = final
    for _ in range(outputs):
        inner.outputs.add(name="y", datatype="FP32", shape=[1])
        inner.raw_output_contents.append(bytes(4))
    return response


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A v2 server whose streams answer as a test says."""

    def __init__(self, answer: Answer, *, name: str = "peer", single: bool = False) -> None:
        self._answer = answer
        self._name = name
        self._single = single
        self._count = 0
        self.streams = 0
        self.requests: list[Any] = []

    def service(self, details: Any) -> Any:
        verb = details.method.rsplit("/", 1)[1]
        if verb == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        answers = {"ServerMetadata": self._server, "ModelMetadata": self._model, "ModelConfig": self._config}
        return grpc.unary_unary_rpc_method_handler(answers[verb])

    def _server(self, request: bytes, context: Any) -> bytes:
        return bytes(messages.ServerMetadataResponse(name=self._name).SerializeToString())

    def _model(self, request: bytes, context: Any) -> bytes:
        response = messages.ModelMetadataResponse(name="net")
        response.inputs.add(name="x", datatype="FP32", shape=[1])
        return bytes(response.SerializeToString())

    def _config(self, request: bytes, context: Any) -> bytes:
        response = messages.ModelConfigResponse()
        response.config.model_transaction_policy.decoupled = True
        return bytes(response.SerializeToString())

    def _stream(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.streams += 1
        for data in requests:
            request = messages.ModelInferRequest.FromString(data)
            self.requests.append(request)
            self._count += 1
            for response in self._answer(self._count, request, context):
                yield response.SerializeToString()
            if self._single:
                return


@contextmanager
def peer(answer: Answer, *, name: str = "peer", single: bool = False) -> Iterator[tuple[str, Service]]:
    """A running server: host:port, and itself; `single` takes one request from a stream."""
    with ThreadPoolExecutor(24) as pool:
        server = grpc.server(pool)
        service = Service(answer, name=name, single=single)
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", service
        finally:
            server.stop(None).wait(5)


def streamed(answer: Answer, *words: str) -> tuple[LevelResult, Service]:
    with peer(answer) as (url, service):
        return level("-i", "grpc", "-u", url, "-m", "net", "--streaming", *words), service


@pytest.mark.slow
def test_a_stream_that_ends_fails_what_was_in_flight_and_is_opened_again() -> None:
    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        if number == 5:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more of this")
        yield answer_of(request)

    result, service = streamed(answer, "--request-count", "12")
    (error,) = result.errors
    assert (error.code, error.count) == ("gRPC RESOURCE_EXHAUSTED", 1)
    assert error.message == "no more of this"
    assert (result.requests, len(service.requests)) == (11, 12)


def test_a_stream_that_ends_without_a_word_owes_its_answers() -> None:
    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        if number == 3:
            context.cancel()
        yield answer_of(request)

    result, _ = streamed(answer, "--request-count", "6", "--concurrency-range", "2")
    assert (result.requests, result.failed) == (5, 1)


@pytest.mark.slow
def test_a_server_that_says_nothing_about_what_follows_answers_once() -> None:
    result, _ = streamed(lambda _, request, __: iter([answer_of(request)]), "--request-count", "9")
    assert result.streaming is not None
    assert (result.requests, result.streaming.responses) == (9, 9)


@pytest.mark.slow
def test_a_server_that_keeps_no_ids_answers_in_order() -> None:
    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        yield answer_of(request, keeps_id=False, final=False)
        yield answer_of(request, keeps_id=False, final=True, outputs=0)

    result, _ = streamed(answer, "--request-count", "30", "--concurrency-range", "20")
    assert result.streaming is not None
    assert (result.requests, result.failed, result.streaming.responses) == (30, 0, 30)


@pytest.mark.slow
def test_a_server_that_sends_the_bare_responses_is_understood() -> None:
    """MLServer does, and gives all of them the id of the stream's first request."""

    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        inner = answer_of(request).infer_response
        inner.id = "00000001"
        yield inner

    result, _ = streamed(answer, "--request-count", "20", "--concurrency-range", "18")
    assert result.streaming is not None
    assert (result.requests, result.failed, result.streaming.responses) == (20, 0, 20)


@pytest.mark.slow
def test_nothing_but_the_news_of_the_end_is_an_answer_without_responses() -> None:
    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        if number % 2:
            yield answer_of(request, final=True, outputs=0)
        else:
            yield answer_of(request, final=True)

    result, _ = streamed(answer, "--request-count", "10")
    assert result.streaming is not None
    assert (result.requests, result.streaming.responses) == (10, 5)


@pytest.mark.slow
def test_an_answer_that_is_late_meets_nobody() -> None:
    held: list[Any] = []

    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        if number == 2:
            held.append(request)
            return
        yield answer_of(request)
        while held:
            yield answer_of(held.pop())

    result, service = streamed(answer, "--request-count", "8", "--timeout", "0.2")
    assert [(e.code, e.count) for e in result.errors] == [("timeout", 1)]
    assert (result.requests, len(service.requests)) == (7, 8)
    assert len({request.id for request in service.requests}) == 8


@pytest.mark.slow
@pytest.mark.parametrize("responses", [1, 3])
def test_the_last_response_ends_a_request_and_not_the_news_that_it_was_the_last(responses: int) -> None:
    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        for _ in range(responses):
            yield answer_of(request, final=False)
        time.sleep(0.6)
        yield answer_of(request, final=True, outputs=0)

    result, _ = streamed(answer, "--request-count", "4")
    assert result.latency is not None
    assert result.latency.max_ns < 600_000_000
    assert result.requests == 4


def pieces(number: int, request: Any, context: Any) -> Iterator[Any]:
    """Three bare responses of which none says that it is the last one."""
    for _ in range(3):
        yield answer_of(request).infer_response


@pytest.mark.slow
def test_a_stream_of_its_own_for_every_request_ends_with_the_last_response() -> None:
    with peer(pieces, single=True) as (url, service):
        where = ("-i", "grpc", "-u", url, "-m", "net", "--streaming", "--stream-per-request")
        result = level(*where, "--request-count", "40", "--concurrency-range", "18")
    assert result.streaming is not None
    assert (result.requests, result.failed, result.streaming.responses) == (40, 0, 120)
    assert service.streams == 40


@pytest.mark.slow
def test_a_server_that_is_known_to_take_one_request_from_a_stream_needs_no_option() -> None:
    with peer(pieces, name="mlserver", single=True) as (url, _):
        report = ran("-i", "grpc", "-u", url, "-m", "net", "--streaming", "--request-count", "20")
        with pytest.raises(UsageError, match="streams that carry several requests"):
            ran(
                *("-i", "grpc", "-u", url, "-m", "net", "--streaming", "--profile-export-file", "never.json"),
                *("--periodic-concurrency-range", "1:2"),
            )
    (result,) = report.levels
    assert (result.requests, result.failed) == (20, 0)


@pytest.mark.slow
def test_a_stream_of_one_request_fails_with_its_status_and_the_next_one_goes_on() -> None:
    def answer(number: int, request: Any, context: Any) -> Iterator[Any]:
        yield answer_of(request).infer_response
        if number % 4 == 0:
            context.abort(grpc.StatusCode.INTERNAL, "halfway")

    with peer(answer, single=True) as (url, _):
        where = ("-i", "grpc", "-u", url, "-m", "net", "--streaming", "--stream-per-request")
        result = level(*where, "--request-count", "20", "--concurrency-range", "2")
    (error,) = result.errors
    assert (error.code, error.message, error.count) == ("gRPC INTERNAL", "halfway", 5)
    assert result.requests == 15


@pytest.mark.slow
def test_a_stream_of_one_request_that_brings_nothing_is_an_answer_without_responses() -> None:
    with peer(lambda *_: iter(()), single=True) as (url, _):
        where = ("-i", "grpc", "-u", url, "-m", "net", "--streaming", "--stream-per-request")
        result = level(*where, "--request-count", "5")
    assert (result.requests, result.failed, result.streaming) == (5, 0, None)
