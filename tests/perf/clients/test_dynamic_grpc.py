"""Methods of a service that is no inference server, on grpcio's own server: all four kinds of streams."""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from grpc_reflection.v1alpha import reflection

from tests.perf.clients.running import level
from tpx.argv import from_argv
from tpx.cli.perf import main
from tpx.errors import UsageError
from tpx.perf.options import SessionSpec
from tpx.perf.results import LevelResult

SERVICE = "shop.Orders"
FIELD = descriptor_pb2.FieldDescriptorProto


def schema() -> Sequence[descriptor_pb2.FileDescriptorProto]:
    """Two files, one of which imports the other and a file of protobuf's own."""
    items = descriptor_pb2.FileDescriptorProto(name="items.proto", package="shop", syntax="proto3")
    item = items.message_type.add(name="Item")
    item.field.add(name="name", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    item.field.add(name="count", number=2, type=FIELD.TYPE_INT32, label=FIELD.LABEL_OPTIONAL)
    orders = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    orders.dependency.extend(["items.proto", "google/protobuf/timestamp.proto"])
    order = orders.message_type.add(name="Order")
    order.field.add(
        name="item", number=1, type=FIELD.TYPE_MESSAGE, type_name=".shop.Item", label=FIELD.LABEL_OPTIONAL
    )
    order.field.add(
        name="due",
        number=2,
        type=FIELD.TYPE_MESSAGE,
        type_name=".google.protobuf.Timestamp",
        label=FIELD.LABEL_OPTIONAL,
    )
    service = orders.service.add(name="Orders")
    for name, sends, receives in (
        ("Place", False, False),
        ("List", False, True),
        ("Collect", True, False),
        ("Talk", True, True),
    ):
        service.method.add(
            name=name,
            input_type=".shop.Order",
            output_type=".shop.Item",
            client_streaming=sends,
            server_streaming=receives,
        )
    return items, orders


POOL = descriptor_pool.DescriptorPool()
POOL.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
for _file in schema():
    POOL.Add(_file)
Order, Item = (
    message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"shop.{n}")) for n in ("Order", "Item")
)


class Orders(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with the item of an order as often as its count says; counts what it is sent."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.last: Any = None

    def service(self, details: Any) -> Any:
        package, _, name = details.method[1:].partition("/")
        if package != SERVICE:
            return None
        sends, receives = name in ("Collect", "Talk"), name in ("List", "Talk")
        self.calls[name] += 1

        def answers(orders: Iterator[Any], context: Any) -> Iterator[Any]:
            for order in orders:
                self.messages[name] += 1
                self.last = order
                if order.item.name == "none":
                    context.abort(grpc.StatusCode.NOT_FOUND, "no such item")
                yield from (order.item for _ in range(order.item.count if receives else 1))

        def handle(request: Any, context: Any) -> Any:
            found = answers(request if sends else iter([request]), context)
            return found if receives else list(found)[-1]

        kind = f"{'stream' if sends else 'unary'}_{'stream' if receives else 'unary'}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            handle,
            request_deserializer=Order.FromString,
            response_serializer=Item.SerializeToString,
        )


@contextmanager
def selling(*, reflects: bool) -> Iterator[tuple[str, Orders]]:
    """A running service; yields host:port, and what it has seen."""
    orders = Orders()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((orders,))
        if reflects:
            reflection.enable_server_reflection([SERVICE], server, POOL)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", orders
        finally:
            server.stop(None).wait(5)


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[str, Orders]]:
    with selling(reflects=True) as running:
        yield running


@pytest.fixture(scope="module")
def silent() -> Iterator[tuple[str, Orders]]:
    """The service without reflection."""
    with selling(reflects=False) as running:
        yield running


def order(count: int, name: str = "pen") -> dict[str, Any]:
    return {"item": {"name": name, "count": count}, "due": "2026-01-02T03:04:05Z"}


def kind(url: str, method: str, data: Path, *words: str) -> tuple[str, ...]:
    target = ("--service-kind", "dynamic_grpc", "-i", "grpc", "-u", url)
    return (*target, "--grpc-method", f"{SERVICE}/{method}", "--input-data", str(data), *words)


def called(url: str, method: str, directory: Path, messages: Any, *words: str) -> LevelResult:
    data = directory / "data.json"
    data.write_text(json.dumps({"data": [{"message_generator": messages}]}))
    return level(*kind(url, method, data, "--request-count", "8", "--concurrency-range", "2", *words))


@pytest.mark.parametrize("client", ["tpx", "library"])
@pytest.mark.parametrize(
    ("method", "messages", "responses"),
    [
        ("Place", [order(3)], 1),
        ("List", [order(3)], 3),
        ("Collect", [order(3), order(2), order(1)], 1),
        ("Talk", [order(3), order(0), order(2)], 5),
    ],
)
def test_every_kind_of_method_is_called_with_types_from_reflection(
    shop: tuple[str, Orders], tmp_path: Path, client: str, method: str, messages: Any, responses: int
) -> None:
    url, orders = shop
    orders.calls.clear()
    orders.messages.clear()
    result = called(url, method, tmp_path, messages, "--client", client)
    assert (result.requests, result.failed, result.errors) == (8, 0, ())
    assert orders.calls == {method: 8}
    assert orders.messages == {method: 8 * len(messages)}
    assert (orders.last.item.name, orders.last.due.ToJsonString()) == ("pen", "2026-01-02T03:04:05Z")
    assert result.streaming is not None
    assert result.streaming.responses == 8 * responses


@pytest.mark.parametrize("words", [(), ("--grpc-compression-algorithm", "gzip")])
def test_types_come_from_a_descriptor_set_as_well(
    silent: tuple[str, Orders], tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = tmp_path / "shop.binpb"
    file.write_bytes(descriptor_pb2.FileDescriptorSet(file=[*schema()][::-1]).SerializeToString())
    result = called(silent[0], "List", tmp_path, order(4), "--grpc-descriptor-set", str(file), *words)
    assert (result.requests, result.failed) == (8, 0)
    assert result.streaming is not None
    assert result.streaming.responses == 32


@pytest.mark.parametrize("types", [False, True])
@pytest.mark.parametrize("form", ["list", "perf_analyzer's"])
def test_serialized_messages_need_no_types(
    shop: tuple[str, Orders], silent: tuple[str, Orders], tmp_path: Path, form: str, types: bool
) -> None:
    url, orders = shop if types else silent
    # a message of 123 bytes: its length is the brace that begins JSON, behind a tag that is a line break
    raw = [Order(item=Item(name="i" * 119, count=n)).SerializeToString() for n in (1, 2)]
    assert raw[0].startswith(b"\n{")
    messages: Any = [{"b64": base64.b64encode(each).decode()} for each in raw]
    if form != "list":
        packed = b"".join(len(each).to_bytes(4, "little") + each for each in raw)
        messages = {"b64": base64.b64encode(packed).decode()}
    result = called(url, "Talk", tmp_path, messages, "--streaming")
    assert (result.requests, result.failed) == (8, 0)
    assert (len(orders.last.item.name), orders.last.item.count) == (119, 2)
    assert result.streaming is not None
    assert result.streaming.responses == 24


@pytest.mark.parametrize("client", ["tpx", "library"])
@pytest.mark.parametrize("method", ["Place", "Talk"])
def test_an_error_has_the_services_status_and_words(
    shop: tuple[str, Orders], tmp_path: Path, method: str, client: str
) -> None:
    (error,) = called(shop[0], method, tmp_path, [order(1, "none")], "--client", client).errors
    assert (error.code, error.count, error.message) == ("gRPC NOT_FOUND", 8, "no such item")


@pytest.mark.parametrize(
    ("method", "messages", "words", "text"),
    [
        ("Plaec", [order(1)], (), r"has no method Plaec \(did you mean 'Place'\?\) \(has: Place, List"),
        ("Place", [{"itme": {}}], (), 'no field named "itme"'),
        ("Place", [{"b64": "/////w=="}], (), "4 bytes are no message of its type"),
        ("Place", [order(1)], ("--streaming",), "--streaming: shop.Orders/Place has one response"),
    ],
)
def test_what_the_types_do_not_allow_is_refused(
    shop: tuple[str, Orders], tmp_path: Path, method: str, messages: Any, words: tuple[str, ...], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        called(shop[0], method, tmp_path, messages, *words)


def test_json_without_types_is_refused(silent: tuple[str, Orders], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the server has no reflection: give --grpc-descriptor-set"):
        called(silent[0], "Place", tmp_path, [order(1)])


def test_a_set_without_its_imports_is_refused(silent: tuple[str, Orders], tmp_path: Path) -> None:
    file = tmp_path / "shop.binpb"
    file.write_bytes(descriptor_pb2.FileDescriptorSet(file=schema()[1:]).SerializeToString())
    with pytest.raises(UsageError, match=r"lacks items\.proto, which orders\.proto imports"):
        called(silent[0], "Place", tmp_path, [order(1)], "--grpc-descriptor-set", str(file))


def test_the_export_holds_every_response(shop: tuple[str, Orders], tmp_path: Path) -> None:
    data, out = tmp_path / "data.json", tmp_path / "out.json"
    data.write_text(json.dumps({"data": [{"message_generator": [order(2)]}]}))
    words = ("--request-count", "2", "--profile-export-file", str(out))
    assert main(kind(shop[0], "List", data, *words)) == 0
    document = json.loads(out.read_text("utf-8"))
    assert document["service_kind"] == "dynamic_grpc"
    (first, _) = document["experiments"][0]["requests"]
    assert len(first["response_timestamps"]) == 2


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--grpc-method", "List"), "does not match the format: <package>.<service>/<method>."),
        ((), "give --grpc-method"),
        (("--grpc-method", "a.B/C"), "give the messages of its calls with --input-data"),
        (("--grpc-method", "a.B/C", "-i", "http"), "--service-kind dynamic_grpc is reached with -i grpc"),
    ],
)
def test_what_is_incomplete_is_refused(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        from_argv(SessionSpec, ["--service-kind", "dynamic_grpc", "-i", "grpc", *words])
