"""The memory of message heads: a known head is a shortcut, and never an excuse or a mix-up."""

from typing import Any

import grpc

from tests.serving.frontends.requests import grpc_request, refused
from tests.serving.live import Channel, Live, floats, outputs_of
from tpx.protocol import messages
from tpx.protocol.protobuf_contents import encode_varint


def raw_field(data: bytes) -> bytes:
    """One raw_input_contents entry as encoders write it."""
    return b"\x3a" + encode_varint(len(data)) + data


def start(**fields: Any) -> bytes:
    """A message up to its tensors."""
    data: bytes = grpc_request(**fields).SerializeToString()
    return data


def answer_of(channel: Channel, data: bytes) -> dict[str, Any]:
    """The outputs for a message given as bytes."""
    return outputs_of(messages.ModelInferResponse.FromString(channel.send("ModelInfer", data)))


def test_the_same_head_with_other_data_gets_its_own_answer(channel: Channel) -> None:
    for n in range(20):
        data = start() + raw_field(floats([n, -n]).tobytes())
        assert answer_of(channel, data) == {"y": [[2 * n, -2 * n]]}


def test_a_remembered_head_does_not_excuse_a_message_that_lies(channel: Channel) -> None:
    good = start() + raw_field(floats([1, 2]).tobytes())
    for _ in range(3):
        assert answer_of(channel, good) == {"y": [[2, 4]]}
    tensor = floats([1, 2]).tobytes()
    cut, longer = raw_field(tensor)[:-1], raw_field(tensor + b"\0")
    assert refused(channel, start() + cut)
    assert refused(channel, start() + longer)
    assert refused(channel, start() + raw_field(tensor) * 2)
    assert refused(channel, start() + raw_field(tensor[:4]))
    assert refused(channel, start())
    # the right length, but another field and another framing
    assert refused(channel, start() + b"\x42" + raw_field(tensor)[1:])
    assert refused(channel, start() + b"\x3a\x07" + tensor)
    assert refused(channel, start() + b"\x3a\x09" + tensor)


def test_a_field_behind_the_tensors_is_not_overlooked(channel: Channel) -> None:
    tensor = raw_field(floats([1, 2]).tobytes())
    for _ in range(2):
        assert answer_of(channel, start() + tensor) == {"y": [[2, 4]]}
    more = messages.ModelInferRequest(id="late").SerializeToString()
    answer = messages.ModelInferResponse.FromString(channel.send("ModelInfer", start() + tensor + more))
    assert (answer.id, outputs_of(answer)) == ("late", {"y": [[2, 4]]})
    unknown = messages.ModelInferRequest()
    unknown.outputs.add(name="z")
    assert "unexpected inference output 'z'" in refused(
        channel, start() + tensor + unknown.SerializeToString()
    )


def test_a_length_that_is_written_longer_than_need_be_is_understood(channel: Channel) -> None:
    tensor = floats([1, 2]).tobytes()
    for data in (raw_field(tensor), b"\x3a\x88\x00" + tensor, raw_field(tensor)):
        assert answer_of(channel, start() + data) == {"y": [[2, 4]]}


def test_heads_of_other_models_versions_and_ids_are_not_mixed_up(channel: Channel) -> None:
    tensor = raw_field(floats([1, 2]).tobytes())
    for n in range(4):
        assert answer_of(channel, start() + tensor) == {"y": [[2, 4]]}
        assert answer_of(channel, start(model="versions", model_version="1") + tensor) == {"y": [[2, 4]]}
        assert answer_of(channel, start(model="versions", model_version="3") + tensor) == {"y": [[1, 2]]}
        response = channel.send("ModelInfer", start(id=f"id-{n}") + tensor)
        assert messages.ModelInferResponse.FromString(response).id == f"id-{n}"


def test_more_heads_than_are_remembered_are_all_answered(channel: Channel) -> None:
    for n in range(1100):
        head = messages.ModelInferRequest(model_name="double")
        head.inputs.add(name="x", datatype="FP32", shape=[1, 2])
        head.parameters["n"].int64_param = n
        data = head.SerializeToString() + raw_field(floats([n, 1]).tobytes())
        assert answer_of(channel, data) == {"y": [[2 * n, 2]]}


def test_a_cancelled_call_does_not_disturb_the_next(live: Live, channel: Channel) -> None:
    address = f"127.0.0.1:{live.ports['GRPCInferenceService']}"
    with grpc.insecure_channel(address) as other:
        call = other.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)
        data = start() + raw_field(floats([9, 9]).tobytes())
        for _ in range(50):
            call.future(data).cancel()
        assert answer_of(channel, start() + raw_field(floats([1, 2]).tobytes())) == {"y": [[2, 4]]}
