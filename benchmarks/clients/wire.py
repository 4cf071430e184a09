"""The third opinion: how long requests took by the kernel's own clock, as their packets passed the loopback.

Neither end takes part in it, so that what a load generator adds to a latency can be told from what the server
took. Needs Linux and the right to open packet sockets (CAP_NET_RAW); meant for some hundred small requests a
second.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from threading import Thread
from typing import Literal, Self

import numpy as np

from benchmarks.results import Sample
from tpx.errors import MeasurementError

_ALL_PROTOCOLS = 3  # ETH_P_ALL, linux/if_ether.h
_SO_TIMESTAMPNS = 35  # asm-generic/socket.h
_SOL_PACKET, _PACKET_STATISTICS = 263, 6  # linux/socket.h, linux/if_packet.h
_OUTGOING = 4  # PACKET_OUTGOING: on the loopback every packet passes twice
_TCP = 6
_LARGEST = 1 << 16
_QUEUE_BYTES = 8 << 20
_TURN_S = 0.2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = 9
DATA, HEADERS, END_STREAM = 0, 1, 1
SMALLEST_INPUT = 64
"""Bytes. Requests of less data ask for statistics and the like."""


@dataclass(frozen=True, slots=True)
class Segment:
    """TCP payload as it passed, at a time in nanoseconds; `client` is the port of that end."""

    at_ns: int
    client: int
    to_server: bool
    payload: bytes


def why_unwatched() -> MeasurementError | None:
    """What keeps a Wire from being entered here; None where nothing does."""
    try:
        _packets().close()
    except MeasurementError as exc:
        return exc
    return None


class Wire:
    """Watches a port of 127.0.0.1 while it is entered, which raises MeasurementError where it may not."""

    def __init__(self, port: int, protocol: Literal["grpc", "http"]) -> None:
        self._port = port
        self._latencies_us = _http_latencies_us if protocol == "http" else _grpc_latencies_us
        self._segments: list[Segment] = []
        self._watching = True

    def __enter__(self) -> Self:
        self._socket = _packets()
        self._thread = Thread(target=self._watch, name="wire")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watching = False
        self._thread.join()
        counted = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self._lost = struct.unpack("=II", counted)[1]
        self._socket.close()

    def beside(self, told: Sample) -> Sample:
        """Percentiles of what passed, in microseconds, and the ratios of the told ones to them.

        Raises MeasurementError where packets were missed.
        """
        if self._lost:
            raise MeasurementError(f"{self._lost} packets of the loopback were missed")
        by_client = sorted(self._segments, key=attrgetter("client"))
        took = [
            latency_us
            for _, segments in groupby(by_client, key=attrgetter("client"))
            for latency_us in self._latencies_us(segments)
        ]
        if not took:
            raise MeasurementError("no request passed the loopback")
        passed = {f"p{p}_us": float(np.percentile(took, p)) for p in (50, 90, 99)}
        return {
            **{f"wire_{figure}": value for figure, value in passed.items()},
            **{f"{figure}_over_wire": told[figure] / value for figure, value in passed.items()},
        }

    def _watch(self) -> None:
        while self._watching:
            try:
                packet, ancillary, _, address = self._socket.recvmsg(_LARGEST, 256)
            except TimeoutError:
                continue
            if address[2] == _OUTGOING and packet[9] == _TCP:
                self._keep(packet, ancillary[0][2])

    def _keep(self, packet: bytes, timestamp: bytes) -> None:
        tcp = (packet[0] & 15) * 4
        source, target = struct.unpack_from(">HH", packet, tcp)
        payload = packet[tcp + (packet[tcp + 12] >> 4) * 4 : struct.unpack_from(">H", packet, 2)[0]]
        if payload and self._port in (source, target):
            seconds, nanoseconds = struct.unpack("qq", timestamp)
            to_server = target == self._port
            client = source if to_server else target
            self._segments.append(Segment(seconds * 10**9 + nanoseconds, client, to_server, payload))


def _packets() -> socket.socket:
    try:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _QUEUE_BYTES)
        packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        packets.settimeout(_TURN_S)
        packets.bind(("lo", _ALL_PROTOCOLS))  # only now do they come, each with its time
    except (AttributeError, OSError) as exc:
        raise MeasurementError(f"packets of the loopback cannot be watched: {exc}") from exc
    return packets


def _http_latencies_us(segments: Iterator[Segment]) -> Iterator[float]:
    """Of one HTTP/1.1 connection: from the first bytes of an inference to the last of its answer."""
    asked_ns = answered_ns = 0
    for segment in segments:
        if not segment.to_server:
            answered_ns = segment.at_ns
        elif answered_ns or not asked_ns:
            if asked_ns and answered_ns:
                yield (answered_ns - asked_ns) / 1e3
            infers = b"/infer HTTP/1.1\r\n" in segment.payload
            asked_ns, answered_ns = segment.at_ns if infers else 0, 0


def _grpc_latencies_us(segments: Iterator[Segment]) -> Iterator[float]:
    """Of one HTTP/2 connection: from the bytes that open a stream to those that end its answer."""
    opened_ns: dict[int, int] = {}
    unread = {True: b"", False: b""}
    for segment in segments:
        way = segment.to_server
        frames, unread[way] = _frames((unread[way] + segment.payload).removeprefix(PREFACE))
        for kind, flags, stream, size in frames:
            if way and kind == HEADERS:
                opened_ns[stream] = segment.at_ns
            elif way and kind == DATA and flags & END_STREAM and size < SMALLEST_INPUT:
                opened_ns.pop(stream, None)
            elif not way and kind == HEADERS and flags & END_STREAM and stream in opened_ns:
                yield (segment.at_ns - opened_ns.pop(stream)) / 1e3


def _frames(data: bytes) -> tuple[list[tuple[int, int, int, int]], bytes]:
    """Kind, flags, stream and size of each whole frame; and the bytes behind them."""
    frames = []
    while len(data) >= FRAME_HEAD and len(data) >= (end := FRAME_HEAD + int.from_bytes(data[:3], "big")):
        stream = int.from_bytes(data[5:FRAME_HEAD], "big") & 0x7FFFFFFF
        frames.append((data[3], data[4], stream, end - FRAME_HEAD))
        data = data[end:]
    return frames, data
