"""Files that change under a region, regions that go while they are used, clients that go."""

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.serving.frontends.shared_memory.requests import (
    SYSTEM,
    grpc_request,
    in_region,
    register,
    request,
    written,
)
from tests.serving.gated import GATE, installed
from tests.serving.live import Channel, Live, serving
from tests.serving.onnx_files import write_model
from tests.serving.repository.composed import gated
from tests.serving.shared_memory.segments import descriptors, open_descriptors, segment
from tests.serving.transports import set_parameters
from tests.waiting import eventually
from tpx.protocol import messages


def test_a_region_is_closed_when_it_is_unregistered_though_its_clients_stay(
    live: Live, channel: Channel, file: Path
) -> None:
    data = grpc_request(outputs=in_region(32)).SerializeToString()
    assert channel.outcome("ModelInfer", data) == "NOT_FOUND"
    assert live.get(SYSTEM + "/status").json == []  # both connections are open
    before = descriptors()
    gc.disable()  # nothing is left for it
    try:
        for ask in (
            lambda: channel.send("ModelInfer", data),
            lambda: live.infer("double", request(None, in_region(32))),
            lambda: live.infer("double", request(None, in_region(32, 4))),
        ):
            assert register(live, "r", key=file.name).status == 200
            ask()
            assert live.http("POST", SYSTEM + "/region/r/unregister").status == 200
            eventually(lambda: open_descriptors() == before)
    finally:
        gc.enable()


# requests in flight, on a model that collects requests for a while


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    repository = tmp_path_factory.mktemp("models")
    delay = "dynamic_batching { max_queue_delay_microseconds: 150000 }"
    write_model(repository, "patient", config=f"max_batch_size: 8 {delay}")
    gated(repository, "gated")
    (repository / "repeat" / "1").mkdir(parents=True)
    (repository / "repeat" / "config.pbtxt").write_text("backend: 'repeat'", encoding="utf-8")
    with installed(tmp_path_factory.mktemp("site")), serving(repository) as running:
        yield running


def test_nothing_is_written_for_a_client_that_has_gone(patient: Live) -> None:
    GATE.close()
    [model] = [model for model in patient.server.plane.served() if model.name == "gated"]
    with segment(4096) as file, patient.channel() as channel:
        assert register(patient, "r", key=file.name).status == 200
        call = channel.raw.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        asked = call.future(grpc_request(None, in_region(32), model="gated").SerializeToString(), timeout=10)
        # it computes: to be cancelled in the queue would be another thing
        eventually(lambda: (model.in_flight, model.pending) == (1, 0))
        asked.cancel()
        assert channel.call("ServerLive").live  # the cancellation came before, on the same connection
        GATE.open()
        eventually(lambda: not model.in_flight)
        assert model.statistics.durations()["success"].count == 1
        assert written(file, 32) == [0, 0]
        assert patient.http("POST", SYSTEM + "/unregister").status == 200


def test_every_response_of_a_stream_goes_to_the_region_and_the_empty_final_one_comes(patient: Live) -> None:
    with segment(4096) as file, patient.channel() as channel:
        assert register(patient, "r", key=file.name).status == 200
        message = messages.ModelInferRequest(model_name="repeat")
        for name, datatype, values in (
            ("IN", "INT32", np.array([5, 6, 7], np.int32)),
            ("DELAY", "UINT32", np.zeros(3, np.uint32)),
            ("WAIT", "UINT32", np.zeros(1, np.uint32)),
        ):
            message.inputs.add(name=name, datatype=datatype, shape=values.shape)
            message.raw_input_contents.append(values.tobytes())
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        set_parameters(message.outputs.add(name="OUT"), in_region(16, 4))
        open_stream = channel.raw.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [
            messages.ModelStreamInferResponse.FromString(data)
            for data in open_stream(iter([message.SerializeToString()]), timeout=10)
        ]
        assert [answer.error_message for answer in answers] == [""] * 4
        assert [len(answer.infer_response.outputs) for answer in answers] == [1, 1, 1, 0]
        assert [list(answer.infer_response.raw_output_contents) for answer in answers[:3]] == [[b""]] * 3
        assert np.frombuffer(file.read_bytes(), np.int32, 1, 16).tolist() == [7]
        assert patient.http("POST", SYSTEM + "/unregister").status == 200
