"""Every case of `cases.yaml`, each on a fresh connection to the same server, which must then still serve."""

import json
from contextlib import nullcontext
from typing import Any

import grpc
import pytest

from tests.hostile import vocabulary, wire
from tests.hostile.conftest import MIB
from tests.hostile.siege import Siege
from tests.hostile.vocabulary import Case

pytestmark = [pytest.mark.e2e]

PEAK_BYTES = 96 * MIB
"""What a single request may take for a moment: a few times the largest body."""

WIRE_CASES = [case for case in vocabulary.cases() if case.sort != "repository"]


@pytest.mark.parametrize("case", WIRE_CASES, ids=str)
def test_every_input_is_answered_and_leaves_a_server_that_serves(siege: Siege, case: Case) -> None:
    before = siege.forget_peak()
    with siege.bystander() if case.bystander_s else nullcontext() as others:
        play(siege, case)
    assert siege.peak() - before < PEAK_BYTES
    if others is not None:
        assert others.worst_s < case.bystander_s
    siege.alive()


def play(siege: Siege, case: Case) -> None:
    """Send what the case says and hold its answer against what it expects."""
    if case.sort == "grpc":
        _play_grpc(siege, case)
    elif case.status:
        _play_http(siege, case)
    else:
        with wire.connect(getattr(siege, case.said.get("port", "http"))) as sock:
            wire.send_all(sock, vocabulary.http_request(case, siege.shm))
            rest = wire.read_rest(sock)
            assert rest is not None, "the connection was not closed"
            assert case.said.get("answer", "").encode() in rest


def _play_http(siege: Siege, case: Case) -> None:
    said = case.said
    answer = wire.ask(
        getattr(siege, said.get("port", "http")),
        vocabulary.http_request(case, siege.shm),
        end=said.get("end", False),
        until_closed=case.closed,
    )
    assert answer.status == case.status, answer
    if "header" in said:
        name, _, value = said["header"].partition(": ")
        assert answer.headers.get(name.lower()) == value
    if case.closed:
        assert answer.rest == b"", "something follows the answer, or the connection was not closed"
    if "answer" in said:
        assert said["answer"].encode() in answer.body
    elif said.get("head") is None:
        assert answer.error
        assert case.error in answer.error


def _play_grpc(siege: Siege, case: Case) -> None:
    said = case.said
    options: dict[str, Any] = {}
    if "compression" in said:
        options["compression"] = grpc.Compression.Gzip
    if "metadata" in said:
        options["metadata"] = [(k, vocabulary.joined(v).decode()) for k, v in said["metadata"].items()]
    with pytest.raises(grpc.RpcError) as caught:
        siege.call(said["grpc"], vocabulary.grpc_message(case, siege.shm), **options)
    assert caught.value.code().name == said.get("code", "INVALID_ARGUMENT"), caught.value.details()
    assert case.error in caught.value.details()


@pytest.mark.parametrize("case", [case for case in vocabulary.cases() if case.sort == "repository"], ids=str)
def test_every_broken_model_is_refused_with_its_reason_and_the_others_serve(siege: Siege, case: Case) -> None:
    entries = index(siege, case.said["repository"])
    states = {entry["state"] for entry in entries}
    assert states == ({case.said["state"]} if case.said["state"] else set())
    if "serves" in case.said:
        assert [int(entry["version"]) for entry in entries] == case.said["serves"]
    if states == {"UNAVAILABLE"}:
        assert all(case.error in entry["reason"] for entry in entries), entries
        assert all(entry["reason"] for entry in entries)


def index(siege: Siege, name: str) -> list[dict[str, Any]]:
    """What the repository index says of a model."""
    answer = wire.post(siege.http, "/v2/repository/index", b"")
    assert answer.status == 200
    return [entry for entry in json.loads(answer.body) if entry["name"] == name]


def test_p7_a_loop_of_64_ensembles_is_refused(siege: Siege) -> None:
    for number in (0, 31, 63):
        [entry] = index(siege, f"loop_{number}")
        assert entry["state"] == "UNAVAILABLE"
        assert "ensemble" in entry["reason"]
    siege.alive()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_all_of_it_again_takes_nothing_more(siege: Siege) -> None:
    # not those that take long: they have alike ones that do not
    cases = [case for case in WIRE_CASES if not case.bystander_s and case.row not in ("C1", "H8", "J8")]
    before = siege.settles(lambda now: now.descriptors < 40)
    for _ in range(6):  # a leak grows each time; pools and caches are full at some time
        for case in cases:
            play(siege, case)
        most = before.descriptors
        after = siege.settles(lambda now, most=most: now.descriptors <= most)  # type: ignore[misc]
        grown = after.resident_bytes - before.resident_bytes
        if grown < 8 * MIB:
            break
        before = after
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads + 2  # pools start threads when none of theirs is idle
    assert grown < 8 * MIB
