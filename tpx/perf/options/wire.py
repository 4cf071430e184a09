"""The options that say how requests go over the wire, and what the server is told beforehand."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError
from tpx.options import option
from tpx.perf.clients.base import RequestFields
from tpx.perf.clients.endpoint import WireSettings
from tpx.perf.settings import one_of, refuse
from tpx.protocol.v2 import Parameter

_WIRE = "Wire"

TensorFormat = Literal["binary", "json"]


_FORMATS = "Unsupported type provided: '{}'. The available options are 'binary' or 'json'."


def parse_level(text: str) -> str:
    """A level of tracing, as the server spells it."""
    if text.upper() not in ("OFF", "TIMESTAMPS", "TENSORS"):
        choices = "The available options are 'OFF', 'TIMESTAMPS', or 'TENSORS'."
        refuse("--trace-level", f"Unsupported type provided: '{text}'. {choices}")
    return text.upper()


@dataclass(frozen=True, slots=True)
class RequestParameter:
    """One `--request-parameter NAME:VALUE:TYPE`."""

    name: str
    value: Parameter

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"


def parse_request_parameter(text: str) -> RequestParameter:
    """`name:value:type`; the value may hold further colons."""
    flag = "--request-parameter"
    name, colon, rest = text.partition(":")
    value, other, kind = rest.rpartition(":")
    if not (name and colon and other):
        refuse(flag, "The value does not match <name:value:type>.")
    if kind == "string":
        return RequestParameter(name, value)
    if kind == "bool" and value.lower() in ("true", "false"):
        return RequestParameter(name, value.lower() == "true")
    if kind == "int" and value.removeprefix("-").isdecimal() and -(2**63) <= int(value) < 2**63:
        return RequestParameter(name, int(value))
    if kind not in ("int", "bool"):
        choices = "The available options are 'bool', 'int', or 'string'."
        refuse(flag, f"Unsupported type provided: '{kind}'. {choices}")
    return refuse(flag, f"The value '{value}' is no {kind}.")


_compression = one_of(
    "--grpc-compression-algorithm",
    ("none", "gzip", "deflate"),
    "Unsupported type provided: '{}'. The available options are 'none', 'gzip', or 'deflate'.",
)


@dataclass(frozen=True, kw_only=True)
class WireOptions:
    """Streams, formats, compression, parameters, tracing."""

    asynchronous: bool = option(
        False, "measure as with perf_analyzer's asynchronous calls", "--async", "-a", section=_WIRE
    )
    sync: bool = option(False, "measure as with its blocking calls", section=_WIRE)
    streaming: bool = option(
        False, "gRPC: send over bidirectional streams; OpenAI: have answers streamed", section=_WIRE
    )
    stream_per_request: bool = option(
        False,
        "--streaming: a stream of its own for every request, which ends with the last response to it; "
        "MLServer's are so without being told",
        section=_WIRE,
    )
    input_tensor_format: TensorFormat | None = option(
        None,
        "HTTP: inputs as binary or json; binary, unless the server does not say that it takes it",
        section=_WIRE,
        parse=one_of("--input-tensor-format", ("binary", "json"), _FORMATS),
    )
    output_tensor_format: TensorFormat | None = option(
        None,
        "HTTP: outputs as binary or json; binary, unless the server does not say that it takes it",
        section=_WIRE,
        parse=one_of("--output-tensor-format", ("binary", "json"), _FORMATS),
    )
    grpc_compression_algorithm: Literal["none", "gzip", "deflate"] = option(
        "none", "of the requests' messages: none, gzip or deflate", section=_WIRE, parse=_compression
    )
    request_parameter: tuple[RequestParameter, ...] = option(
        (),
        "parameter of every request; the type is bool, int or string (repeatable)",
        section=_WIRE,
        metavar="NAME:VALUE:TYPE",
        parse=parse_request_parameter,
    )
    trace_level: tuple[str, ...] = option(
        (), "have the server trace: OFF, TIMESTAMPS or TENSORS (repeatable)", section=_WIRE, parse=parse_level
    )
    trace_rate: int | None = option(
        None, "of how many requests it traces one (1000)", section=_WIRE, metavar="N"
    )
    trace_count: int | None = option(None, "how many it traces; -1: any number", section=_WIRE, metavar="N")
    log_frequency: int | None = option(
        None, "traces in one of its files; 0: all of them", section=_WIRE, metavar="N"
    )

    def calls_asynchronously(self, *, sequences: bool = False) -> bool:
        """Whether perf_analyzer would send without waiting for answers: over streams always, and by itself
        for models that take sequences."""
        return self.asynchronous or self.streaming or (sequences and not self.sync)

    def check_wire(self, protocol: str, kind: str) -> None:
        """Raise UsageError for a value out of range, or one that the transport has no use for."""
        if self.asynchronous and self.sync:
            raise UsageError("Cannot specify --async and --sync simultaneously.")
        if self.streaming and protocol != "grpc" and kind not in ("inprocess", "openai"):
            raise UsageError("Streaming is only allowed with gRPC protocol and Triton C API.")
        if self.streaming and self.sync:
            raise UsageError("can not use streaming with synchronous API")
        if self.stream_per_request and not (self.streaming and protocol == "grpc" and kind == "triton"):
            raise UsageError("--stream-per-request is of --streaming over gRPC (-i grpc)")
        if self.grpc_compression_algorithm != "none" and (protocol != "grpc" or kind == "inprocess"):
            raise UsageError("Using compression algorithm is only allowed with gRPC protocol.")
        formats = (self.input_tensor_format, self.output_tensor_format)
        if "json" in formats and (protocol != "http" or kind != "triton"):
            raise UsageError(
                "--input-tensor-format and --output-tensor-format json are only allowed with HTTP protocol"
            )
        if self.request_parameter and kind not in ("triton", "inprocess"):
            raise UsageError(f"--request-parameter: the requests of --service-kind {kind} have no parameters")
        self._check_trace(kind)

    def _check_trace(self, kind: str) -> None:
        if self.trace_rate is not None and self.trace_rate <= 0:
            refuse("--trace-rate", "The value must be > 0.")
        if self.trace_count is not None and self.trace_count < -1:
            refuse("--trace-count", "The value must be >= 0 or set to -1 (default).")
        if self.log_frequency is not None and self.log_frequency < 0:
            refuse("--log-frequency", "The value must be >= 0.")
        if self.trace_settings and kind != "triton":
            raise UsageError(f"--trace-level and its like: --service-kind {kind} has no trace settings")

    @property
    def trace_settings(self) -> dict[str, tuple[str, ...]]:
        """What the server is told before the run; what was not given stays as it is there."""
        numbers = {
            "trace_rate": self.trace_rate,
            "trace_count": self.trace_count,
            "log_frequency": self.log_frequency,
        }
        out = {name: (str(value),) for name, value in numbers.items() if value is not None}
        return ({"trace_level": self.trace_level} if self.trace_level else {}) | out

    @property
    def request_fields(self) -> RequestFields:
        """What every request says beside its tensors."""
        return RequestFields(parameters={p.name: p.value for p in self.request_parameter})

    @property
    def wire(self) -> WireSettings:
        """How requests are put on the wire."""
        compression = self.grpc_compression_algorithm
        return WireSettings(
            streaming=self.streaming,
            stream_per_request=self.stream_per_request,
            compression="" if compression == "none" else compression,
            input_binary=self.input_tensor_format != "json",
            output_binary=self.output_tensor_format != "json",
        )
