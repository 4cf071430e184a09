"""The least that a server in Python could do for a request: read it, compute it where it was read, and write
the outputs into a prepared answer.

One thread with uvloop. As in `floor.c`, HTTP/1.1 is read by the end of the head and Content-Length, HTTP/2
by a walk over frames, and nothing else is looked at: one model, requests of one size, no limits, no errors,
no statistics.
"""

import argparse
import asyncio
from collections import defaultdict
from pathlib import Path
from typing import cast

import numpy as np
import onnxruntime
import uvloop

from benchmarks.payloads import inputs
from benchmarks.runtimes.bound_loop import MODELS
from tpx.protocol.http2 import frames
from tpx.protocol.tensors import aligned

HEAD_END = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
READY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LARGE_BYTES = 64 << 10
PREFIX_BYTES = 5
"""Of a gRPC message: whether it is compressed, and its size."""
LARGEST_FRAME_BYTES = (1 << 24) - 1
LARGEST_WINDOW_BYTES = (1 << 31) - 1


class Model:
    """The model, and places for its requests, which are used again."""

    def __init__(self, onnx: Path, name: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
        [(self.input, self.example)] = inputs(MODELS[name]).items()
        [self.answer] = self.session.run(None, {self.input: self.example})
        self.free: dict[int, list[Place]] = defaultdict(list)

    def place(self, size: int) -> "Place":
        """Return a place for a message of `size` bytes, which ends with the tensor."""
        free = self.free[size]
        return free.pop() if free else Place(self, size)


class Place:
    """Memory for a message, bound to the model."""

    def __init__(self, model: Model, size: int) -> None:
        example, offset = model.example, size - model.example.nbytes
        self.memory = aligned(size, offset)
        self.filled = 0
        self._free = model.free[size]
        self._outputs = np.array(model.answer)
        address = np.frombuffer(self.memory[offset:], np.uint8).ctypes.data
        binding, name = model.session.io_binding(), model.session.get_outputs()[0].name
        binding.bind_input(model.input, "cpu", 0, np.float32, example.shape, address)
        binding.bind_output(name, "cpu", 0, np.float32, self._outputs.shape, self._outputs.ctypes.data)
        self._binding, self._run = binding._iobinding, model.session._sess.run_with_iobinding

    def fill(self, data: bytes) -> None:
        self.memory[self.filled : self.filled + len(data)] = data
        self.filled += len(data)

    def compute(self) -> bytes:
        """Compute the message, and leave the place to another one."""
        self._run(self._binding, None)
        self.filled = 0
        self._free.append(self)
        return self._outputs.tobytes()


class Connection(asyncio.Protocol):
    """The first read of a connection, which tells its protocol and the size of its requests."""

    def __init__(self, model: Model, http_answer: bytes, grpc_answer: bytes) -> None:
        self._model, self._http_answer, self._grpc_answer = model, http_answer, grpc_answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        model, transport = self._model, self._transport
        if data.startswith(b"GET"):
            transport.write(READY)
        elif data.startswith(b"PRI"):
            http2 = Http2(model, self._grpc_answer, transport)
            transport.set_protocol(http2)
            http2.data_received(data[len(frames.PREFACE) :])
        else:
            head = data.index(HEAD_END)
            length = data.lower().index(LENGTH, 0, head) + len(LENGTH)
            sizes = head + len(HEAD_END), int(data[length : data.index(b"\r", length)])
            kind = Http if sizes[1] < LARGE_BYTES else LargeHttp
            http = kind(model, self._http_answer, transport, sizes)
            transport.set_protocol(http)
            http.begin(data)


class Http(asyncio.Protocol):
    """Requests with heads and bodies of `sizes` bytes, most of which one read brings."""

    def __init__(
        self, model: Model, answer: bytes, transport: asyncio.Transport, sizes: tuple[int, int]
    ) -> None:
        self._model, self._transport = model, transport
        self._start, outputs, self._end = answer.partition(model.answer.tobytes())
        assert outputs
        self._head_bytes, self._body_bytes = sizes
        self._place: Place | None = None

    def begin(self, data: bytes) -> None:
        """Begin a request with the first bytes of it."""
        if data.find(HEAD_END) + len(HEAD_END) != self._head_bytes:
            self._transport.abort()
            return
        self._place = place = self._model.place(self._body_bytes)
        place.fill(data[self._head_bytes :])
        self.end(place)

    def end(self, place: Place) -> None:
        """Answer the request if it is complete."""
        if place.filled == self._body_bytes:
            self._place = None
            self._transport.write(b"".join((self._start, place.compute(), self._end)))

    def data_received(self, data: bytes) -> None:
        place = self._place
        if place is None:
            self.begin(data)
        else:
            place.fill(data)
            self.end(place)


class LargeHttp(Http, asyncio.BufferedProtocol):
    """Requests whose bodies are read to their places."""

    _beginning = memoryview(bytearray(4 << 10))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        place = self._place
        return self._beginning if place is None else place.memory[place.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        place = self._place
        if place is None:
            self.begin(bytes(self._beginning[:nbytes]))
        else:
            place.filled += nbytes
            self.end(place)


class Http2(asyncio.Protocol):
    """Calls on streams, each of which sends one message of the same size."""

    def __init__(self, model: Model, answer: bytes, transport: asyncio.Transport) -> None:
        self._model, self._transport = model, transport
        self._pieces = _pieces(answer, model.answer.tobytes())
        self._held = b""
        self._size = 0
        self._places: dict[int, Place] = {}
        self._used = 0
        most = {
            frames.Setting.INITIAL_WINDOW_SIZE: LARGEST_WINDOW_BYTES,
            frames.Setting.MAX_FRAME_SIZE: LARGEST_FRAME_BYTES,
        }
        window = frames.window_update(0, LARGEST_WINDOW_BYTES - (1 << 16))
        transport.write(frames.settings_frame(most) + window)

    def data_received(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        at, end = 0, len(data)
        answers: list[bytes] = []
        while at + frames.HEADER_BYTES <= end:
            high, low, kind, flags, stream = frames.header_at(data, at)
            start = at + frames.HEADER_BYTES
            stop = start + (high << 16 | low)
            if stop > end:
                break
            at = stop
            if kind == frames.DATA:
                answers.append(self._take(stream, data[start:stop], last=bool(flags & frames.END_STREAM)))
            elif kind == frames.SETTINGS and not flags & frames.ACK:
                answers.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._held = data[at:]
        if self._used > LARGEST_WINDOW_BYTES // 2:
            answers.append(frames.window_update(0, self._used))
            self._used = 0
        if answers:
            self._transport.write(b"".join(answers))

    def _take(self, stream: int, data: bytes, *, last: bool) -> bytes:
        """Return the answer to the call if these are its last bytes, else nothing."""
        self._used += len(data)
        place = self._places.get(stream)
        if place is None:
            if not self._size:
                self._size = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")
            place = self._places[stream] = self._model.place(self._size)
        place.fill(data)
        if not last:
            return b""
        del self._places[stream]
        number = stream.to_bytes(4, "big")
        head, of_data, before, after, trailers = self._pieces
        return b"".join(
            (head, number, of_data, number, before, place.compute(), after, number, trailers),
        )


def _pieces(answer: bytes, outputs: bytes) -> list[bytes]:
    """Return what is around the outputs and the numbers of the stream in an answer of three frames."""
    found = answer.index(outputs)
    cuts, at = [], 0
    for _ in range(3):
        high, low, *_ = frames.header_at(answer, at)
        cuts.append((at + 5, at + frames.HEADER_BYTES))
        at += frames.HEADER_BYTES + (high << 16 | low)
    cuts.insert(2, (found, found + len(outputs)))
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(answer)]
    return [answer[start:end] for start, end in zip(starts, ends, strict=True)]


async def serve(model: Model, port: int, answers: tuple[bytes, bytes]) -> None:
    """Serve until the process ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(model, *answers), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    """Serve one model on one port, with recorded answers of both protocols."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("port", type=int)
    parser.add_argument("answers", type=Path, nargs=2, help="of HTTP and of gRPC")
    given = parser.parse_args()
    http_answer, grpc_answer = (file.read_bytes() for file in given.answers)
    uvloop.run(serve(Model(given.onnx, given.model), given.port, (http_answer, grpc_answer)))


if __name__ == "__main__":
    main()
