"""tritonclient asks for and changes trace and log settings, on both protocols, blocking and asyncio."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.e2e.child import Child, serve
from tests.serving.onnx_files import doubling, write_model
from tests.waiting import eventually

pytestmark = pytest.mark.e2e

LOGS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "trace.json"


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory, file: Path) -> Iterator[Child]:
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "net", doubling())
    with serve("--model-repository", repository, f"--trace-config=triton,file={file}") as running:
        yield running.ready()
        assert running.stop() == 0
        assert running.err == []


class HttpSettings:
    """The settings as HTTP has them."""

    def __init__(self, child: Child) -> None:
        self.client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{child.port('HTTPService')}")
        self.inputs = tritonclient.http.InferInput

    def traces(self, model: str | None = None, **settings: Any) -> dict[str, Any]:
        if settings:
            changed: dict[str, Any] = self.client.update_trace_settings(model, settings)
            assert changed == self.client.get_trace_settings(model)
        told: dict[str, Any] = self.client.get_trace_settings(model)
        return told

    def logs(self, **settings: Any) -> dict[str, Any]:
        if settings:
            changed: dict[str, Any] = self.client.update_log_settings(settings)
            assert changed == self.client.get_log_settings()
        told: dict[str, Any] = self.client.get_log_settings()
        return told


class GrpcSettings:
    """The settings as gRPC has them, in the form of HTTP's."""

    def __init__(self, child: Child) -> None:
        address = f"127.0.0.1:{child.port('GRPCInferenceService')}"
        self.client = tritonclient.grpc.InferenceServerClient(address)
        self.inputs = tritonclient.grpc.InferInput

    def traces(self, model: str | None = None, **settings: Any) -> dict[str, Any]:
        if settings:
            self.client.update_trace_settings(model, settings)
        told = self.client.get_trace_settings(model, as_json=True)["settings"]
        values = {name: setting.get("value", [""]) for name, setting in told.items()}
        return {name: texts if name == "trace_level" else texts[0] for name, texts in values.items()}

    def logs(self, **settings: Any) -> dict[str, Any]:
        if settings:
            self.client.update_log_settings(settings)
        told = self.client.get_log_settings(as_json=True)["settings"]
        return {name: next(iter(setting.values())) for name, setting in told.items()}


@pytest.fixture(params=[HttpSettings, GrpcSettings])
def settings(request: pytest.FixtureRequest, child: Child) -> Any:
    return request.param(child)


def test_trace_settings_are_got_updated_and_cleared(settings: Any, file: Path) -> None:
    start = {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": str(file),
        "trace_mode": "triton",
    }
    assert settings.traces() == start
    assert settings.traces(trace_rate="50", trace_level=["TENSORS"])["trace_rate"] == "50"
    assert settings.traces("net", trace_rate="5", log_frequency="2") == {
        **start,
        "trace_level": ["TENSORS"],
        "trace_rate": "5",
        "log_frequency": "2",
    }
    assert settings.traces("net", trace_rate=None)["trace_rate"] == "50"
    assert settings.traces("net", log_frequency=None) == settings.traces()
    assert settings.traces(trace_rate=None, trace_level=None) == start


def test_refusals_reach_the_user(settings: Any) -> None:
    for change, message in (
        ({"trace_file": "x"}, "trace file location can not be updated through network protocol"),
        ({"trace_count": "-5"}, r"Unable to parse 'trace_count'\. Expecting value >= -1, got: ?-5"),
    ):
        with pytest.raises(InferenceServerException, match=message):
            settings.client.update_trace_settings(settings=change)
    with pytest.raises(InferenceServerException, match="Request for unknown model : nope"):
        settings.client.get_trace_settings("nope")
    with pytest.raises(InferenceServerException, match="log file location can not be updated"):
        settings.client.update_log_settings({"log_file": "x"})
    with pytest.raises(InferenceServerException, match=r"invalid argument for (--)?log_format, got: x"):
        settings.client.update_log_settings({"log_format": "x"})


def test_log_settings_are_got_and_updated(settings: Any, child: Child) -> None:
    assert settings.logs() == LOGS
    assert settings.logs(log_verbose_level=1, log_format="ISO8601") == {
        **LOGS,
        "log_verbose_level": 1,
        "log_format": "ISO8601",
    }
    settings.client.is_server_live()
    child.wait_for(r"(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ access_log\.py:\d+\] \"(HTTP|GRPC) request: ")
    assert settings.logs(log_verbose_level=0, log_format="default") == LOGS


def test_requests_are_traced_while_they_are_asked_to_be(settings: Any, file: Path) -> None:
    settings.traces("net", trace_level=["TIMESTAMPS"], trace_rate="1", trace_count="2")
    for number in range(4):
        tensor = settings.inputs("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2]], dtype=np.float32))
        settings.client.infer("net", [tensor], request_id=f"{settings.inputs.__module__}-{number}")
    assert settings.traces("net")["trace_count"] == "0"
    settings.traces("net", trace_level=None, trace_rate=None, trace_count=None)
    prefix = settings.inputs.__module__
    eventually(lambda: [i for i in ids_in(file) if i.startswith(prefix)] == [f"{prefix}-0", f"{prefix}-1"])


def ids_in(file: Path) -> list[str]:
    """The request ids in the numbered files."""
    records = [
        record for path in file.parent.glob("trace.json.*") for record in json.loads(path.read_bytes())
    ]
    return [record["request_id"] for record in records if "request_id" in record]


def test_the_asyncio_clients_have_the_same_verbs(child: Child) -> None:
    async def ask() -> tuple[str, str, bool]:
        http = tritonclient.http.aio.InferenceServerClient(f"127.0.0.1:{child.port('HTTPService')}")
        grpc = tritonclient.grpc.aio.InferenceServerClient(f"127.0.0.1:{child.port('GRPCInferenceService')}")
        async with http, grpc:
            changed = await http.update_trace_settings("net", {"trace_rate": "9"})
            seen = await grpc.get_trace_settings("net", as_json=True)
            await grpc.update_trace_settings("net", {"trace_rate": None})
            logs = await grpc.update_log_settings({"log_info": True}, as_json=True)
            return (
                changed["trace_rate"],
                seen["settings"]["trace_rate"]["value"][0],
                logs["settings"]["log_info"]["bool_param"],
            )

    assert asyncio.run(ask()) == ("9", "9", True)
