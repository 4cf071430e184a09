"""TorchServe: a form with one file, posted to `/predictions/MODEL[/VERSION]` as perf_analyzer does."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from tpx.errors import UsageError
from tpx.perf.clients.base import PLAIN, Failure, RequestFields
from tpx.perf.clients.control import StaticControl, error_text
from tpx.perf.clients.endpoint import Connections, Endpoint
from tpx.perf.clients.http import HttpSlots
from tpx.perf.clients.model import TensorDescription
from tpx.perf.clients.transport import http_dialer
from tpx.protocol.http1.client import HttpResponse
from tpx.protocol.tensors import Tensor, decode_bytes

INPUT = TensorDescription(name="TORCHSERVE_INPUT", datatype="BYTES", shape=(1,))
"""Path of a file to send, or its content."""
_BOUNDARY = b"tpx-0b5a9c2f7e4d41c8-tpx"
_LONGEST_PATH = 4096


def connect(endpoint: Endpoint) -> Connections:
    """Return the connections to TorchServe."""
    dialer = http_dialer(endpoint)
    return Connections(TorchServeClient(dialer, endpoint), StaticControl(dialer, "torchserve", INPUT))


class TorchServeClient(HttpSlots):
    """Implements Client."""

    streams = False

    async def prepare(self, tensors: Sequence[Tensor], fields: RequestFields = PLAIN) -> bytes:
        if fields.sequence or fields.shared_inputs or fields.outputs:
            raise UsageError(
                "--service-kind torchserve supports neither sequences nor outputs nor shared memory"
            )
        (tensor,) = tensors
        (content,) = decode_bytes(tensor.data, 1)
        model = self.endpoint.model
        version = f"/{quote(model.version, safe='')}" if model.version else ""
        headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY.decode()}"}
        path = f"/predictions/{quote(model.name, safe='')}{version}"
        return b"".join(self.encode(path, headers, [form(content)]))

    def failure(self, response: HttpResponse) -> Failure:
        return Failure(f"HTTP {response.status}", error_text(response, "message") or "(no message)")


def form(content: bytes) -> bytes:
    """Return a form (RFC 7578) whose one field, `data`, is a file: the one named by `content`, or
    `content` itself.

    Raises UsageError if the data contains the form's boundary.
    """
    name, data = "data", content
    path = None
    if 0 < len(content) <= _LONGEST_PATH and b"\0" not in content and b"\n" not in content:
        with suppress(UnicodeDecodeError, OSError):  # not a path
            path = Path(content.decode()) if Path(content.decode()).is_file() else None
    if path is not None:
        name, data = path.name, path.read_bytes()
    if b"--" + _BOUNDARY in data:
        raise UsageError(f"input '{INPUT.name}' contains the line that ends a form")
    quoted = name.replace("\\", "\\\\").replace('"', '\\"').encode()
    disposition = b'Content-Disposition: form-data; name="data"; filename="%b"\r\n' % quoted
    head = b"--%b\r\n%bContent-Type: application/octet-stream\r\n\r\n" % (_BOUNDARY, disposition)
    return head + data + b"\r\n--%b--\r\n" % _BOUNDARY
