"""Options whose effect no other test shows, each on a real server."""

import socket
import threading
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from tests.serving import onnx_files
from tests.serving.live import serving
from tests.serving.onnx_files import write_model
from tpx.errors import LoadError, UsageError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model without a configuration."""
    write_model(tmp_path, "net", onnx_files.doubling())
    return tmp_path


def test_settings_of_a_backend_that_there_is_not_are_warned_of(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ("onnxrutime,default-max-batch-size=8", "tensorrt,plugins=x.so", "default-max-batch-size=2")
    with serving(repository, backend_config=settings):
        said = [record.getMessage() for record in caplog.records if "--backend-config" in record.getMessage()]
    assert said == [
        "--backend-config names 'onnxrutime', which is not a backend (did you mean 'onnxruntime'?)"
    ]


def test_the_server_has_the_name_it_is_given(repository: Path) -> None:
    with serving(repository, id="mine") as live:
        assert live.get("/v2").json["name"] == "mine"


@pytest.mark.parametrize(
    "words",
    [
        {"disable_auto_complete_config": True},
        {"strict_model_config": True},
        {"strict_model_config": False, "disable_auto_complete_config": True},
    ],
    ids=str,
)
def test_an_incomplete_configuration_is_refused_if_it_is_not_to_be_completed(
    repository: Path, words: dict[str, Any]
) -> None:
    with pytest.raises(LoadError, match="failed to load 1 of 1 models: net"), serving(repository, **words):
        pass


def test_an_incomplete_configuration_is_completed_otherwise(repository: Path) -> None:
    with serving(repository, strict_model_config=False) as live:
        assert live.get("/v2/models/net/config").json["backend"] == "onnxruntime"


def test_each_endpoint_listens_where_it_is_told(repository: Path) -> None:
    addresses = {
        "HTTPService": "127.0.0.2",
        "GRPCInferenceService": "127.0.0.3",
        "Metrics Service": "127.0.0.4",
    }
    http, grpc, metrics = addresses.values()
    with serving(repository, http_address=http, grpc_address=grpc, metrics_address=metrics) as live:
        for service, address in addresses.items():
            port = live.ports[service]
            socket.create_connection((address, port), timeout=5).close()
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", port), timeout=5)


def test_metrics_are_where_http_is_unless_told(repository: Path) -> None:
    with serving(repository, http_address="127.0.0.2") as live:
        socket.create_connection(("127.0.0.2", live.ports["Metrics Service"]), timeout=5).close()


@pytest.mark.parametrize(("service", "name"), [("http", "HTTPService"), ("grpc", "GRPCInferenceService")])
def test_two_servers_share_a_port_if_both_are_told_to(repository: Path, service: str, name: str) -> None:
    sharing = {f"reuse_{service}_port": True}
    with serving(repository, **sharing) as first:
        port = {f"{service}_port": first.ports[name]}
        with serving(repository, **sharing, **port) as second:
            assert second.ports[name] == first.ports[name]
        with pytest.raises(UsageError, match="already in use"), serving(repository, **port):
            pass


def test_all_ports_in_use_are_told_at_once_before_models_load(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        http_port, grpc_port = (each.getsockname()[1] for each in (one, two))
        words = {"http_port": http_port, "grpc_port": grpc_port}
        with pytest.raises(UsageError) as caught, serving(tmp_path / "absent", **words):
            pass
    assert f"Socket '127.0.0.1:{http_port}' already in use" in caught.value.message
    assert f"Socket '127.0.0.1:{grpc_port}' already in use" in caught.value.message


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_models_load_at_once_as_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    write_model(repository, "other", onnx_files.doubling())
    lock, inside, most, both = threading.Lock(), 0, 0, threading.Event()

    class Counting(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, *words: Any, **more: Any) -> None:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
                if most == 2:
                    both.set()
            both.wait(10 if threads == 2 else 0.3)
            super().__init__(*words, **more)
            with lock:
                inside -= 1

    monkeypatch.setattr(onnxruntime, "InferenceSession", Counting)
    with serving(repository, model_load_thread_count=threads):
        assert most == threads
