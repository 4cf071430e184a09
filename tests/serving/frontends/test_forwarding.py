"""Headers that become request parameters, over both protocols, and requests that are remembered meanwhile."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.protocol.http2.raw import grpc_headers
from tests.serving import onnx_files
from tests.serving.live import SERVICE, Live, floats, infer_message, serving
from tests.serving.onnx_files import write_model
from tpx.errors import InvalidRequest, UsageError
from tpx.protocol import messages
from tpx.protocol.grpc.metadata import interpret_request
from tpx.protocol.http1.head import parse_request_head
from tpx.serving.frontends.forwarding import parse_forwarding
from tpx.serving.request import InferRequest

Parameters = list[dict[str, Any]]


@pytest.fixture(scope="module")
def forwarding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that forwards what has `my_` in its name, and more that it must not."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", onnx_files.doubling())
    pattern = "my_|sequence|triton_|priority"
    with serving(
        repository,
        http_header_forward_pattern=pattern,
        grpc_header_forward_pattern=pattern,
        inline_below_us=0,  # every request goes through the data plane, where `seen` looks
    ) as live:
        yield live


@pytest.fixture
def seen(forwarding: Live, monkeypatch: pytest.MonkeyPatch) -> Parameters:
    """The parameters of the requests that reach the engine."""
    plane, out = forwarding.server.plane, []
    infer = plane.infer

    def note(request: InferRequest) -> None:
        out.append(dict(request.head.parameters))
        infer(request)

    monkeypatch.setattr(plane, "infer", note)
    return out


JSON = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def post(live: Live, headers: dict[str, str], verb: str = "infer", **members: Any) -> Any:
    body = {"x": [1, 2]} if verb != "infer" else JSON
    return live.http("POST", f"/v2/models/net/{verb}", json.dumps(body | members).encode(), headers)


def test_headers_become_parameters_named_as_they_are_spelled(forwarding: Live, seen: Parameters) -> None:
    answer = post(forwarding, {"My_B": "one", "x-my_c": "two", "other": "three"})
    assert answer.status == 200
    assert seen == [{"My_B": "one", "x-my_c": "two"}]


def test_a_header_wins_over_the_body_and_repeated_ones_are_joined(forwarding: Live, seen: Parameters) -> None:
    post(forwarding, {"my_user": "gateway"}, parameters={"my_user": "client", "kept": 1})
    with forwarding.raw_http() as client:
        body = json.dumps(JSON).encode()
        client.sendall(
            b"POST /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\nmy_a: 1\r\nMY_A: 2\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert seen == [{"my_user": "gateway", "kept": 1}, {"my_a": "1, 2"}]


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_generate_forwards_too(forwarding: Live, seen: Parameters, verb: str) -> None:
    post(forwarding, {"my_user": "gateway"}, verb, my_user="client", kept="x")
    assert seen == [{"my_user": "gateway", "kept": "x"}]


def test_equal_requests_under_different_headers_do_not_share_them(forwarding: Live, seen: Parameters) -> None:
    for _ in range(3):
        for user in ("a", "b", None):
            headers = {"my_user": user} if user else {}
            head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2],
                                           "parameters": {"binary_data_size": 8}}]}).encode()  # fmt: skip
            headers["Inference-Header-Content-Length"] = str(len(head))
            assert forwarding.http("POST", "/v2/models/net/infer", head + bytes(8), headers).status == 200
    assert seen == [{"my_user": "a"}, {"my_user": "b"}, {}] * 3


@pytest.mark.parametrize("name", ["sequence_id", "Sequence_Start", "TRITON_x", "priority"])
def test_reserved_names_are_refused(forwarding: Live, seen: Parameters, name: str) -> None:
    message = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    for verb in ("infer", "generate"):
        answer = post(forwarding, {name: "1"}, verb)
        assert (answer.status, answer.error) == (400, message)
    assert forwarding.http("GET", "/v2/models/net", headers={name: "1"}).status == 200
    with pytest.raises(grpc.RpcError) as caught:
        call(forwarding, ((name.lower(), "1"),))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == message.replace(name, name.lower())
    assert seen == []


def call(live: Live, metadata: Any, **parameters: str) -> None:
    fields = {"parameters": {key: {"string_param": text} for key, text in parameters.items()}}
    message = infer_message("net", {"x": floats([1, 2])}, **fields)
    with live.raw_grpc() as channel:
        channel.unary_unary(SERVICE + "ModelInfer")(message, metadata=metadata, timeout=5)


def test_metadata_becomes_parameters(forwarding: Live, seen: Parameters) -> None:
    call(forwarding, (("my_b", "one"), ("x-my_c", "two"), ("other", "three"), ("my_raw-bin", b"\xc3\xbc")))
    call(forwarding, (("my_user", "gateway"),), my_user="client", kept="x")
    assert seen == [
        {"my_b": "one", "x-my_c": "two", "my_raw-bin": "ü"},
        {"my_user": "gateway", "kept": "x"},
    ]


def test_equal_messages_under_different_metadata_do_not_share_it(forwarding: Live, seen: Parameters) -> None:
    for _ in range(3):
        for metadata in ((("my_user", "a"),), (("my_user", "b"),), ()):
            call(forwarding, metadata)
    assert seen == [{"my_user": "a"}, {"my_user": "b"}, {}] * 3


def test_the_metadata_of_a_stream_goes_with_each_of_its_requests(forwarding: Live, seen: Parameters) -> None:
    message = infer_message("net", {"x": floats([1, 2])})
    with forwarding.raw_grpc() as channel:
        stream = channel.stream_stream(SERVICE + "ModelStreamInfer")
        answers = list(stream(iter([message, message]), metadata=(("my_user", "a"),), timeout=5))
    assert [messages.ModelStreamInferResponse.FromString(answer).error_message for answer in answers] == [
        ""
    ] * 2
    assert seen == [{"my_user": "a"}] * 2


def head_of(*lines: str) -> Any:
    return parse_request_head(
        ("\r\n".join(["GET / HTTP/1.1", "Host: localhost", *lines]) + "\r\n\r\n").encode("latin-1")
    )


@pytest.mark.parametrize(
    ("pattern", "lines", "parameters"),
    [
        ("PREFIX_.*", ["prefix_a: 1", "xPrefix_b: 2", "pre: 3"], {"prefix_a": "1", "xPrefix_b": "2"}),
        ("(?-i)PREFIX_.*", ["prefix_a: 1", "PREFIX_b: 2"], {"PREFIX_b": "2"}),
        ("^x-y$", ["X-Y: 1", "x-yz: 2"], {"X-Y": "1"}),
        (
            "^x",
            ["x-empty:", "x-text: gr\xc3\xbcn", "x-odd:\t\xff "],
            {"x-empty": "", "x-text": "grün", "x-odd": "ÿ"},
        ),
    ],
)
def test_what_a_pattern_finds(pattern: str, lines: list[str], parameters: dict[str, str]) -> None:
    forwarding = parse_forwarding("--flag", pattern)
    assert forwarding is not None
    assert forwarding.of_head(head_of(*lines)) == parameters


def test_nothing_is_forwarded_unless_asked() -> None:
    assert parse_forwarding("--flag", "") is None


def test_a_pattern_for_everything_meets_reserved_names() -> None:
    forwarding = parse_forwarding("--flag", ".*")
    assert forwarding is not None
    assert forwarding.of_metadata({"a": "1", "b-bin": b"\xff"}) == {"a": "1", "b-bin": "ÿ"}
    with pytest.raises(InvalidRequest, match="Header 'Timeout' is reserved"):
        forwarding.of_head(head_of("Timeout: 1"))


def test_metadata_is_forwarded_by_its_names_and_the_user_agent_too() -> None:
    forwarding = parse_forwarding("--flag", "x-.*|user-agent")
    assert forwarding is not None
    fields = [(b"x-b", b"1"), (b"user-agent", b"me/1"), (b"x-a", b"2")]
    head = interpret_request(grpc_headers("/a/b", *fields))
    assert head is not None
    assert list(forwarding.of_metadata(head.metadata).items()) == [
        ("user-agent", "me/1"),
        ("x-a", "2"),
        ("x-b", "1"),
    ]


def test_a_wrong_pattern_is_refused_before_models_are_loaded(tmp_path: Path) -> None:
    message = r"--http-header-forward-pattern: '\(' is not a regular expression: missing \)"
    with pytest.raises(UsageError, match=message), serving(tmp_path, http_header_forward_pattern="("):
        pass
