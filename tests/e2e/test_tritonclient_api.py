"""tritonclient's public API, method by method, found by introspection: none without an exercise."""

import asyncio
import base64
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.grpc.auth
import tritonclient.http
import tritonclient.http.aio
import tritonclient.http.auth
import tritonclient.utils
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, serve
from tests.e2e.tritonclient_control_exercises import EXERCISES
from tests.e2e.tritonclient_exercises import ROWS, Flavor, added
from tests.serving.onnx_files import doubling, write_model
from tpx.examples import write

pytestmark = pytest.mark.e2e

MODULES: dict[str, ModuleType] = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}


def public(owner: Any) -> list[str]:
    """The public methods of a class that is not Python's own."""
    own = {name for base in inspect.getmro(owner) if base.__module__ == "builtins" for name in dir(base)}
    return [
        name
        for name, _ in inspect.getmembers(owner, callable)
        if not name.startswith("_") and name not in own
    ]


CLIENT_METHODS = [
    (flavor, method) for flavor, module in MODULES.items() for method in public(module.InferenceServerClient)
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api")
    write(path, ["add_sub", "identity"])
    write_model(path, "other", doubling(), "max_batch_size: 8")
    return path


@pytest.fixture(scope="module")
def api(repository: Path) -> Iterator[Child]:
    """A server whose models can be loaded and unloaded."""
    flags = ("--model-control-mode=explicit", "--load-model=add_sub", "--load-model=identity")
    with serve("--model-repository", repository, *flags) as child:
        yield child.ready()
        assert child.stop() == 0
        logged = [line for line in child.err if "failed to load" not in line]  # refused loads are errors
        assert not [line for line in logged if line.startswith(("E", "Traceback"))]


def address(api: Child, flavor: str) -> str:
    service = "HTTPService" if flavor.startswith("http") else "GRPCInferenceService"
    return f"127.0.0.1:{api.port(service)}"


@pytest.mark.parametrize(("flavor", "method"), CLIENT_METHODS, ids=lambda word: word)
def test_every_method_of_every_client_does_what_it_says(
    api: Child, repository: Path, flavor: str, method: str
) -> None:
    assert method in EXERCISES, f"tritonclient.{flavor} has a method that nobody tries: {method}"
    module = MODULES[flavor]

    async def run() -> None:
        client = module.InferenceServerClient(address(api, flavor))
        tried = Flavor(name=flavor, module=module, client=client, repository=repository)
        try:
            async with asyncio.timeout(40):
                await EXERCISES[method](tried)
        finally:
            await EXERCISES["close"](tried)

    asyncio.run(run())


def test_no_exercise_is_of_a_method_that_is_gone() -> None:
    assert set(EXERCISES) == {method for _, method in CLIENT_METHODS}


# the classes that requests and answers are made of


@pytest.fixture(params=["http", "grpc"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return MODULES[request.param]


@pytest.fixture
def client(api: Child, module: ModuleType) -> Iterator[Any]:
    flavor = "http" if module is tritonclient.http else "grpc"
    with module.InferenceServerClient(address(api, flavor)) as connected:
        yield connected


def test_every_method_of_an_input(module: ModuleType, client: Any) -> None:
    assert public(module.InferInput) == [
        "datatype",
        "name",
        "set_data_from_numpy",
        "set_shape",
        "set_shared_memory",  # tried with the regions
        "shape",
    ]
    tensor = module.InferInput("INPUT0", [1, 16], "FP32")
    assert (tensor.name(), tensor.datatype(), list(tensor.shape())) == ("INPUT0", "FP32", [1, 16])
    tensor.set_shape([2, 16])
    assert list(tensor.shape()) == [2, 16]
    tensor.set_data_from_numpy(ROWS)
    other = module.InferInput("INPUT1", [2, 16], "FP32").set_data_from_numpy(ROWS * 2)
    assert added(client.infer("add_sub", [tensor, other]))


def test_every_method_of_an_output(module: ModuleType, client: Any) -> None:
    assert public(module.InferRequestedOutput) == ["name", "set_shared_memory", "unset_shared_memory"]
    output = module.InferRequestedOutput("OUTPUT0", class_count=3)
    assert output.name() == "OUTPUT0"
    inputs = [
        module.InferInput(name, [2, 16], "FP32").set_data_from_numpy(ROWS * factor)
        for name, factor in (("INPUT0", 1), ("INPUT1", 2))
    ]
    classes = client.infer("add_sub", inputs, outputs=[output]).as_numpy("OUTPUT0")
    assert classes[1].tolist() == [b"96.000000:15", b"93.000000:14", b"90.000000:13"]
    output = module.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory("nobody", 128)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'nobody'"):
        client.infer("add_sub", inputs, outputs=[output])
    output.unset_shared_memory()
    assert added(client.infer("add_sub", inputs, outputs=[output]))


def test_every_method_of_a_result(module: ModuleType, client: Any) -> None:
    expected = ["as_numpy", "get_output", "get_response"]
    assert [name for name in public(module.InferResult) if name != "from_response_body"] == expected
    inputs = [
        module.InferInput(name, [2, 16], "FP32").set_data_from_numpy(ROWS * factor)
        for name, factor in (("INPUT0", 1), ("INPUT1", 2))
    ]
    result = client.infer("add_sub", inputs)
    assert added(result)
    item = result.get_output("OUTPUT1")
    assert (item["name"] if isinstance(item, dict) else item.name) == "OUTPUT1"
    assert result.get_output("nobody") is None
    assert result.as_numpy("nobody") is None
    head = result.get_response()
    assert (head["model_name"] if isinstance(head, dict) else head.model_name) == "add_sub"


def test_every_method_of_an_error(client: Any) -> None:
    assert public(InferenceServerException) == ["debug_details", "message", "status"]
    with pytest.raises(InferenceServerException) as error:
        client.get_model_metadata("nobody")
    assert error.value.message() == "Request for unknown model: 'nobody' is not found"
    assert error.value.status() in ("404", "StatusCode.NOT_FOUND")
    assert error.value.debug_details() is None or "nobody" in str(error.value.debug_details())


def test_every_function_of_the_utilities() -> None:
    functions = inspect.getmembers(tritonclient.utils, inspect.isfunction)
    assert [name for name, _ in functions if not name.startswith("_")] == [
        "deserialize_bytes_tensor",
        "np_to_triton_dtype",
        "raise_error",
        "serialize_byte_tensor",
        "serialized_byte_size",
        "triton_to_np_dtype",
    ]  # they speak to no server; what they make is sent in tests/e2e/test_clients_tritonclient.py


def test_every_function_of_the_shared_memory_utilities() -> None:
    functions = inspect.getmembers(shm, inspect.isfunction)
    assert [name for name, _ in functions if not name.startswith("_")] == [
        "create_shared_memory_region",
        "destroy_shared_memory_region",
        "get_contents_as_numpy",
        "mapped_shared_memory_regions",
        "set_shared_memory_region",
    ]  # all but one are used by the exercises of the regions
    region = shm.create_shared_memory_region("mapped", "/tpx_api_mapped", 64, create_only=True)
    try:
        assert "/tpx_api_mapped" in shm.mapped_shared_memory_regions()
    finally:
        shm.destroy_shared_memory_region(region)


# options of the clients


def test_basic_auth_reaches_the_server_as_a_header(repository: Path) -> None:
    """The server lets only those in who have the header that the plugin makes."""
    secret = "Basic " + base64.b64encode(b"me:secret").decode()
    with serve(
        "--model-repository", repository, f"--http-restricted-api=metadata:authorization={secret}"
    ) as child:
        child.ready()
        with tritonclient.http.InferenceServerClient(address(child, "http")) as client:
            with pytest.raises(InferenceServerException) as refused:
                client.get_server_metadata()
            assert refused.value.status() == "403"
            client.register_plugin(tritonclient.http.auth.BasicAuth("me", "secret"))
            assert client.get_server_metadata()["name"] == "triton"
            client.unregister_plugin()
            with pytest.raises(InferenceServerException, match="restricted"):
                client.get_server_metadata()


@pytest.mark.parametrize("flavor", list(MODULES))
def test_basic_auth_is_taken_by_every_client(api: Child, flavor: str) -> None:
    auth = tritonclient.http.auth if flavor.startswith("http") else tritonclient.grpc.auth

    async def run() -> None:
        client = MODULES[flavor].InferenceServerClient(address(api, flavor))
        client.register_plugin(auth.BasicAuth("me", "un:safe word"))
        live = client.is_server_live()
        assert await live if inspect.isawaitable(live) else live
        closed = client.close()
        if inspect.isawaitable(closed):
            await closed

    asyncio.run(run())


def test_deadlines_of_the_client_end_a_call(api: Child, repository: Path) -> None:
    """A model that waits longer than the client does."""
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 3000000 }"
    write_model(repository, "patient", doubling(), config)
    tensor = np.ones((1, 2), np.float32)
    with tritonclient.grpc.InferenceServerClient(address(api, "grpc")) as client:
        client.load_model("patient")
        inputs = [tritonclient.grpc.InferInput("x", [1, 2], "FP32").set_data_from_numpy(tensor)]
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer("patient", inputs, client_timeout=0.3)
    with tritonclient.http.InferenceServerClient(address(api, "http"), network_timeout=0.3) as client:
        http_inputs = [tritonclient.http.InferInput("x", [1, 2], "FP32").set_data_from_numpy(tensor)]
        with pytest.raises(TimeoutError):
            client.infer("patient", http_inputs)


@pytest.mark.parametrize(
    ("flavor", "options"),
    [
        ("http", {"concurrency": 4, "connection_timeout": 5.0, "network_timeout": 5.0, "max_greenlets": 3}),
        ("http", {"verbose": True}),
        ("http.aio", {"conn_limit": 3, "conn_timeout": 5.0, "verbose": True}),
        ("grpc", {"verbose": True, "channel_args": [("grpc.max_receive_message_length", 1 << 20)]}),
        ("grpc", {"keepalive_options": "many"}),
        ("grpc.aio", {"verbose": True, "channel_args": [("grpc.primary_user_agent", "api")]}),
        ("grpc.aio", {"keepalive_options": "many"}),
    ],
)
def test_options_of_the_constructors(
    api: Child, flavor: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    if "keepalive_options" in options:
        options = {"keepalive_options": tritonclient.grpc.KeepAliveOptions(60_000, 5_000, True, 2)}
    module = MODULES[flavor]

    async def run() -> None:
        client = module.InferenceServerClient(address(api, flavor), **options)
        inputs = [
            module.InferInput(name, [2, 16], "FP32").set_data_from_numpy(ROWS * factor)
            for name, factor in (("INPUT0", 1), ("INPUT1", 2))
        ]
        result = client.infer("add_sub", inputs)
        assert added(await result if inspect.isawaitable(result) else result)
        closed = client.close()
        if inspect.isawaitable(closed):
            await closed

    asyncio.run(run())
    assert bool(capsys.readouterr().out) is options.get("verbose", False)


def test_every_option_of_the_constructors_is_tried() -> None:
    """Those about TLS are tried in test_clients_certificates.py."""
    tls = {"ssl", "ssl_options", "ssl_context_factory", "insecure", "ssl_context"}
    tls |= {"root_certificates", "private_key", "certificate_chain", "creds"}
    tried = {
        "self",
        "url",
        "verbose",
        "concurrency",
        "connection_timeout",
        "network_timeout",
        "max_greenlets",
    }
    tried |= {"conn_limit", "conn_timeout", "keepalive_options", "channel_args"}
    for module in MODULES.values():
        parameters = set(inspect.signature(module.InferenceServerClient.__init__).parameters)
        assert parameters <= tried | tls, parameters - tried - tls
