"""Options of how requests are sent, and of the server's trace settings."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError
from tpx.options import Options, check_range, option, refuse
from tpx.perf.clients.proxies import HttpProxy, parse_proxy
from tpx.perf.clients.transport import ClientName
from tpx.protocol.v2 import Parameter

TensorFormat = Literal["binary", "json"]
_FORMATS = "Unsupported type provided: '{}'. The available options are 'binary' or 'json'."


@dataclass(frozen=True, slots=True)
class RequestParameter:
    """One `--request-parameter NAME:VALUE:TYPE`."""

    name: str
    value: Parameter

    def __str__(self) -> str:
        return f"{self.name}:{self.value}"


def parse_request_parameter(text: str) -> RequestParameter:
    """Parse `name:value:type`; the value may contain colons."""
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


class WireSpec(Options):
    """Options for the client, streams, tensor formats, compression, request parameters and tracing."""

    client: ClientName | None = option(
        None,
        "client that sends requests: tpx, or library (httpx for HTTP, grpcio for gRPC); default tpx, but "
        "library where a proxy applies",
    )
    proxy: HttpProxy | None = option(
        None,
        "HTTP proxy for all connections to the server (default: what HTTP_PROXY and the like name, unless "
        "the server is on this machine)",
        metavar="URL",
        parse=parse_proxy,
    )
    http2: bool = option(
        False, "send over HTTP/2, by the library client: without TLS with prior knowledge, with TLS by ALPN"
    )
    asynchronous: bool = option(
        False, "measure as perf_analyzer does with asynchronous calls", "--async", "-a"
    )
    sync: bool = option(False, "measure as perf_analyzer does with blocking calls")
    streaming: bool = option(
        False, "gRPC: use bidirectional streams; OpenAI: request streamed responses", common=True
    )
    stream_per_request: bool = option(
        False,
        "with --streaming: one stream per request, which ends with its last response; the default for "
        "MLServer",
    )
    input_tensor_format: TensorFormat | None = option(
        None,
        "HTTP: send inputs as binary or json (default binary, if the server supports it)",
        refusal=_FORMATS,
    )
    output_tensor_format: TensorFormat | None = option(
        None,
        "HTTP: request outputs as binary or json (default binary, if the server supports it)",
        refusal=_FORMATS,
    )
    grpc_compression_algorithm: Literal["none", "gzip", "deflate"] = option(
        "none",
        "compression of request messages: none, gzip, or deflate",
        refusal="Unsupported type provided: '{}'. The available options are 'none', 'gzip', or 'deflate'.",
    )
    request_parameter: tuple[RequestParameter, ...] = option(
        (),
        "parameter for every request; TYPE is bool, int, or string (repeatable)",
        metavar="NAME:VALUE:TYPE",
        parse=parse_request_parameter,
    )
    trace_level: tuple[Literal["OFF", "TIMESTAMPS", "TENSORS"], ...] = option(
        (),
        "trace level to set on the server: OFF, TIMESTAMPS, or TENSORS (repeatable)",
        refusal="Unsupported type provided: '{}'. The available options are 'OFF', 'TIMESTAMPS', or "
        "'TENSORS'.",
    )
    trace_rate: int | None = option(None, "trace one of this many requests (1000)", metavar="N")
    trace_count: int | None = option(None, "maximum traces; -1 = unlimited", metavar="N")
    log_frequency: int | None = option(None, "traces per trace file; 0 = all in one", metavar="N")

    def __post_init__(self) -> None:
        for flag, chosen in (("--proxy", self.proxy), ("--http2", self.http2)):
            if chosen and self.client == "tpx":
                raise UsageError(f"{flag} needs the library client: leave out --client tpx")
        if self.asynchronous and self.sync:
            raise UsageError("Cannot specify --async and --sync simultaneously.")
        if self.streaming and self.sync:
            raise UsageError("can not use streaming with synchronous API")
        check_range(self, "trace_rate", above=0)
        check_range(self, "log_frequency", least=0)
        if self.trace_count is not None and self.trace_count < -1:
            refuse("--trace-count", "The value must be >= 0 or set to -1 (default).")

    def calls_asynchronously(self, *, sequences: bool = False) -> bool:
        """Return True if perf_analyzer would not wait: with streams, and by default for sequences."""
        return self.asynchronous or self.streaming or (sequences and not self.sync)

    @property
    def trace_settings(self) -> dict[str, tuple[str, ...]]:
        """Trace settings to apply to the server before the run: those that the user gave."""
        numbers = ((name, getattr(self, name)) for name in ("trace_rate", "trace_count", "log_frequency"))
        levels = {"trace_level": self.trace_level} if self.trace_level else {}
        return levels | {name: (str(value),) for name, value in numbers if value is not None}

    @property
    def compression(self) -> str:
        """Compression of gRPC messages: gzip or deflate; empty for none."""
        return "" if self.grpc_compression_algorithm == "none" else self.grpc_compression_algorithm
