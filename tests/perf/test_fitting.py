"""What a run makes of a server that says less of itself, or has less, than Triton."""

import orjson
import pytest

from tests.perf.clients.running import level, ran
from tests.perf.servers import Behaviour, grpc_server, http_server
from tpx.errors import MeasurementError, UsageError

COUNTED = ("-m", "net", "--request-count", "3")


def test_inputs_that_the_server_does_not_list_are_those_that_are_declared() -> None:
    behaviour = Behaviour(lists_inputs=False, has_config=False, extensions=())
    with http_server(behaviour) as url:
        result = level("-u", url, *COUNTED, "--declare", "given:INT32:-1,2", "--shape", "given:3,2")
    assert (result.requests, result.failed) == (3, 0)
    (tensor,) = orjson.loads(behaviour.seen[0][1])["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("given", "INT32", [3, 2])


def test_inputs_that_the_server_lists_are_not_declared_anew() -> None:
    with http_server(Behaviour()) as url, pytest.raises(UsageError, match=r"itself: x FP32 \[4\]"):
        ran("-u", url, *COUNTED, "--declare", "x:FP32:4")


def refusing(_: int) -> int:
    """The status of everything that is posted."""
    return 501


ASKED = {
    "system_shared_memory": ("--shared-memory", "system"),
    "trace": ("--trace-level", "TIMESTAMPS"),
}


@pytest.mark.parametrize("extension", ASKED)
def test_what_a_server_never_said_that_it_has_is_to_be_left_out(extension: str) -> None:
    words = (*COUNTED, *ASKED[extension])
    with http_server(Behaviour(status=refusing)) as url, pytest.raises(MeasurementError) as refused:
        ran("-u", url, *words)
    told = f"; server 'test' does not list the extension {extension}: leave out {ASKED[extension][0]}"
    assert told in refused.value.message
    listed = Behaviour(status=refusing, extensions=("binary_tensor_data", extension))
    with http_server(listed) as url, pytest.raises(MeasurementError) as refused:
        ran("-u", url, *words)
    assert "leave out" not in refused.value.message


def test_a_stream_for_every_request_is_of_streams() -> None:
    with grpc_server(Behaviour()) as url, pytest.raises(UsageError, match="requires --streaming over gRPC"):
        ran("-i", "grpc", "-u", url, *COUNTED, "--stream-per-request")
