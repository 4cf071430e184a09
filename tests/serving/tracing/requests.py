"""Requests to a model that is only a name."""

from tests.serving.fakes import config_of, decoded, ignore, signature_of
from tpx.serving.request import InferRequest


class Model:
    """What a trace asks of a model."""

    name, version, max_batch_size, decoupled, retired = "net", 3, 8, False, False

    def submit(self, request: InferRequest) -> None:
        pass

    def cancelled(self) -> None:
        pass


def request_for(rows: list[list[float]], request_id: str = "") -> InferRequest:
    asked = decoded(rows, request_id=request_id)
    head = signature_of(config_of()).bind(Model(), asked)
    request = InferRequest(head, [tensor.data for tensor in asked.inputs], ignore, None)
    request.arrived_ns = 20
    return request
