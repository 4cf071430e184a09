"""Reflection, asked by grpcio's client of it, and the health service."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.serving.live import Live, floats, serving
from tests.serving.onnx_files import write_model
from tpx.protocol import messages
from tpx.protocol.grpc.status import Status

VERSIONS = ("v1", "v1alpha")
SERVICES = {
    "inference.GRPCInferenceService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
}


@pytest.fixture
def raw(live: Live) -> Iterator[Any]:
    """grpcio's own channel."""
    with live.raw_grpc() as channel:
        yield channel


def ask(raw: Any, version: str, *questions: dict[str, Any]) -> list[Any]:
    """The answers to questions on one stream."""
    call = raw.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        lambda request: request.SerializeToString(),
        messages.ServerReflectionResponse.FromString,
    )
    return list(call((messages.ServerReflectionRequest(**fields) for fields in questions), timeout=10))


def files_of(answer: Any) -> dict[str, Any]:
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in answer.file_descriptor_response.file_descriptor_proto
    ]
    return {file.name: file for file in files}


# a client that knows nothing but reflection


def test_a_client_without_our_files_finds_every_service_and_calls_one(raw: Any) -> None:
    database = ProtoReflectionDescriptorDatabase(raw)
    assert set(database.get_services()) == SERVICES
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    method = service.methods_by_name["ModelInfer"]
    assert {m.name for m in service.methods} == {m.name for m in messages.GRPCInferenceService.methods}
    request: Any = message_factory.GetMessageClass(method.input_type)(model_name="double")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    request.raw_input_contents.append(floats([1, 2]).tobytes())
    call = raw.unary_unary(
        f"/{service.full_name}/{method.name}",
        lambda message: message.SerializeToString(),
        message_factory.GetMessageClass(method.output_type).FromString,
    )
    answer = call(request, timeout=10)
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [2, 4]


def test_every_service_that_is_listed_is_described_and_every_method_of_it_served(raw: Any) -> None:
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(raw))
    for name in SERVICES:
        for method in pool.FindServiceByName(name).methods:
            call = raw.stream_stream(f"/{name}/{method.name}", lambda data: data, lambda data: data)
            answers = call(iter([b"\xff"]), timeout=5)
            with suppress(grpc.RpcError):
                list(answers)
            # an inference stream answers nonsense in the stream, every other method with a status
            assert "unknown method" not in answers.details(), method.full_name
            assert (answers.code() is grpc.StatusCode.OK) == (method.name == "ModelStreamInfer")


# the questions one by one


@pytest.mark.parametrize("version", VERSIONS)
def test_services_are_listed(raw: Any, version: str) -> None:
    [answer] = ask(raw, version, {"host": "here", "list_services": "*"})
    assert {service.name for service in answer.list_services_response.service} == SERVICES
    assert answer.valid_host == answer.original_request.host == "here"
    assert answer.original_request.list_services == "*"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_comes_with_what_it_imports(raw: Any, version: str) -> None:
    [answer] = ask(raw, version, {"file_by_filename": "grpc_service.proto"})
    files = files_of(answer)
    assert list(files) == ["grpc_service.proto", "model_config.proto"]
    assert files["grpc_service.proto"].service[0].name == "GRPCInferenceService"


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("inference.GRPCInferenceService", "grpc_service.proto"),
        ("inference.GRPCInferenceService.ModelStreamInfer", "grpc_service.proto"),
        ("inference.ModelInferRequest.InferInputTensor", "grpc_service.proto"),
        ("inference.ModelInferRequest.raw_input_contents", "grpc_service.proto"),
        ("inference.ModelConfig", "model_config.proto"),
        ("inference.DataType", "model_config.proto"),
        ("grpc.health.v1.HealthCheckResponse.ServingStatus", "health.proto"),
        ("grpc.reflection.v1.ServerReflection", "reflection.proto"),
        ("grpc.reflection.v1alpha.ServerReflectionRequest", "reflection_v1alpha.proto"),
    ],
)
def test_a_symbol_is_found_in_its_file(raw: Any, symbol: str, file: str) -> None:
    [answer] = ask(raw, "v1", {"file_containing_symbol": symbol})
    assert next(iter(files_of(answer))) == file


@pytest.mark.parametrize(
    ("question", "code", "words"),
    [
        ({"file_by_filename": "nobody.proto"}, Status.NOT_FOUND, "has no file 'nobody.proto'"),
        ({"file_by_filename": ""}, Status.NOT_FOUND, "has no file ''"),
        ({"file_containing_symbol": "inference.Nobody"}, Status.NOT_FOUND, "symbol 'inference.Nobody'"),
        ({"file_containing_symbol": "inference.GRPCInferenceService.No"}, Status.NOT_FOUND, "no symbol"),
        (
            {
                "file_containing_extension": {
                    "containing_type": "inference.ModelConfig",
                    "extension_number": 9,
                }
            },
            Status.NOT_FOUND,
            "'inference.ModelConfig' has no extension 9",
        ),
        ({"all_extension_numbers_of_type": "no.Body"}, Status.NOT_FOUND, "no symbol 'no.Body'"),
        ({}, Status.INVALID_ARGUMENT, "asks nothing"),
    ],
)
def test_what_cannot_be_found_is_an_answer_and_the_stream_goes_on(
    raw: Any, question: dict[str, Any], code: Status, words: str
) -> None:
    refused, found = ask(raw, "v1", question, {"list_services": ""})
    assert refused.error_response.error_code == code
    assert words in refused.error_response.error_message
    assert len(found.list_services_response.service) == len(SERVICES)


def test_a_type_without_extensions_has_none(raw: Any) -> None:
    [answer] = ask(raw, "v1", {"all_extension_numbers_of_type": "inference.ModelConfig"})
    assert answer.all_extension_numbers_response.base_type_name == "inference.ModelConfig"
    assert not answer.all_extension_numbers_response.extension_number


def test_questions_are_answered_one_by_one_not_at_the_end(raw: Any) -> None:
    asked, may_ask = [], threading.Semaphore(1)

    def questions() -> Iterator[Any]:
        for number in range(3):
            assert may_ask.acquire(timeout=5)
            asked.append(number)
            yield messages.ServerReflectionRequest(host=str(number), list_services="")

    call = raw.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        lambda request: request.SerializeToString(),
        messages.ServerReflectionResponse.FromString,
    )
    for number, answer in enumerate(call(questions(), timeout=10)):
        assert answer.valid_host == str(number)
        assert asked == list(range(number + 1))
        may_ask.release()


def test_bytes_that_are_no_question_end_the_stream(raw: Any) -> None:
    call = raw.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", lambda data: data, lambda data: data
    )
    with pytest.raises(grpc.RpcError) as error:
        list(call(iter([b"\xff\xff"]), timeout=10))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# health


def watching(raw: Any, request: bytes = b"") -> Any:
    call = raw.unary_stream(
        "/grpc.health.v1.Health/Watch", lambda data: data, messages.HealthCheckResponse.FromString
    )
    return call(request, timeout=20)


def test_check_answers_for_the_server_whatever_service_is_named(raw: Any) -> None:
    call = raw.unary_unary(
        "/grpc.health.v1.Health/Check", lambda data: data, messages.HealthCheckResponse.FromString
    )
    for service in ("", "inference.GRPCInferenceService", "nobody"):
        request = messages.HealthCheckRequest(service=service).SerializeToString()
        assert call(request, timeout=10).status == messages.HealthCheckResponse.SERVING


def test_a_watch_tells_the_health_at_once_and_can_be_left(raw: Any) -> None:
    call = watching(raw)
    assert next(call).status == messages.HealthCheckResponse.SERVING
    call.cancel()


def test_a_watch_that_asks_nothing_or_nonsense_is_refused(raw: Any) -> None:
    with pytest.raises(grpc.RpcError) as error:
        list(watching(raw, b"\xff"))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    call = raw.stream_stream("/grpc.health.v1.Health/Watch", lambda data: data, lambda data: data)
    with pytest.raises(grpc.RpcError) as error:
        list(call(iter(()), timeout=10))
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_watch_learns_that_the_server_ends_and_does_not_hold_it_up(tmp_path: Path) -> None:
    write_model(tmp_path, "net")
    with serving(tmp_path) as live:
        address = f"127.0.0.1:{live.ports['GRPCInferenceService']}"
        with grpc.insecure_channel(address) as channel:
            call = watching(channel)
            assert next(call).status == messages.HealthCheckResponse.SERVING
            live.ask_to_stop()
            assert [answer.status for answer in call] == [messages.HealthCheckResponse.NOT_SERVING]
    assert live.finished
