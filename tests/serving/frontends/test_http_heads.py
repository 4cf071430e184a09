"""The memory of JSON heads: a known head is a shortcut, and never an excuse or a mix-up."""

import json

import psutil

from tests.serving.frontends.requests import binary_head, refusal
from tests.serving.live import Live, floats
from tpx.protocol.tensors import encode_bytes


def answered(live: Live, head: bytes, tail: bytes, model: str = "double", **more: str) -> bytes:
    """The binary tensors of the answer to a request given as bytes."""
    sent = {"Inference-Header-Content-Length": str(len(head)), **more}
    answer = live.infer(model, head, tail, **sent)
    assert answer.status == 200, answer.body
    return answer.tail


BINARY = json.dumps(binary_head(parameters={"binary_data_output": True})).encode()


def test_the_same_head_with_other_data_gets_its_own_answer(live: Live) -> None:
    for n in range(20):
        assert answered(live, BINARY, floats([n, -n]).tobytes()) == floats([2 * n, -2 * n]).tobytes()


def test_a_remembered_head_does_not_excuse_a_body_that_is_cut_or_longer(live: Live) -> None:
    answered(live, BINARY, bytes(8))
    answered(live, BINARY, bytes(8))
    assert "expecting 1 additional bytes" in refusal(live, BINARY, bytes(7))
    assert "unexpected additional input data" in refusal(live, BINARY, bytes(9))
    assert "expecting 8 additional bytes" in refusal(
        live, BINARY, b"", **{"Inference-Header-Content-Length": str(len(BINARY))}
    )


def test_heads_of_other_models_and_versions_are_not_mixed_up(live: Live) -> None:
    data = floats([1, 2]).tobytes()
    for _ in range(3):
        assert answered(live, BINARY, data, "double") == floats([2, 4]).tobytes()
        sent = {"Inference-Header-Content-Length": str(len(BINARY))}
        for version, expected in (("1", [2, 4]), ("3", [1, 2])):
            answer = live.infer("versions", BINARY, data, version=version, **sent)
            assert answer.tail == floats(expected).tobytes()
            assert answer.head["model_version"] == version


def test_a_head_with_an_id_is_answered_with_its_own_id(live: Live) -> None:
    for n in range(5):
        head = json.dumps(binary_head(id=f"id-{n}", parameters={"binary_data_output": True})).encode()
        for _ in range(2):
            sent = {"Inference-Header-Content-Length": str(len(head))}
            answer = live.infer("double", head, floats([n, n]).tobytes(), **sent)
            assert answer.head["id"] == f"id-{n}"
            assert answer.tail == floats([2 * n, 2 * n]).tobytes()


def test_strings_behind_the_same_head_may_have_other_lengths(live: Live) -> None:
    for words in ([b"ab", b"c"], [b"a", b"bc"], [b"", b"abc"]):
        raw = encode_bytes(words)
        item = {"name": "x", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": 11}}
        head = json.dumps({"inputs": [item], "parameters": {"binary_data_output": True}}).encode()
        assert answered(live, head, raw, "words") == raw


def test_a_head_that_was_refused_is_refused_again(live: Live) -> None:
    head = json.dumps(binary_head(8, (1, 3))).encode()
    for _ in range(3):
        assert "input byte size mismatch" in refusal(live, head, bytes(8))


def test_more_heads_than_are_remembered_are_all_answered(live: Live) -> None:
    for n in range(300):
        head = json.dumps(binary_head(parameters={"binary_data_output": True, "n": n})).encode()
        assert answered(live, head, floats([n, n]).tobytes()) == floats([2 * n, 2 * n]).tobytes()


def test_two_inputs_behind_a_remembered_head_keep_their_order(live: Live) -> None:
    for names in (("a", "b"), ("b", "a")):
        items = [binary_head(name=name)["inputs"][0] for name in names]
        head = json.dumps({"inputs": items, "outputs": [{"name": "difference"}]}).encode()
        for n in range(3):
            first, second = floats([n, n]), floats([10, 20])
            sent = {"Inference-Header-Content-Length": str(len(head))}
            answer = live.infer("two", head, first.tobytes() + second.tobytes(), **sent)
            expected = (first - second) if names == ("a", "b") else (second - first)
            assert answer.json["outputs"][0]["data"] == expected.reshape(-1).tolist()


def test_heads_are_not_remembered_without_end(live: Live) -> None:
    """Neither many nor large ones: what a client can make the server keep is bounded in bytes."""
    process = psutil.Process()
    before = process.memory_info().rss
    padding = " " * (1 << 20)
    for n in range(150):
        head = json.dumps(binary_head(parameters={"binary_data_output": True, "n": n})) + padding
        assert answered(live, head.encode(), floats([n, n]).tobytes()) == floats([2 * n, 2 * n]).tobytes()
    assert process.memory_info().rss - before < 60 << 20
