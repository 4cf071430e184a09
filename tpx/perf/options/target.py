"""The options that say what is measured, and how it is reached."""

from dataclasses import dataclass
from typing import Literal

from tpx.errors import UsageError
from tpx.options import one_of, option, refuse
from tpx.perf.levels import parse_models
from tpx.perf.plan import ModelShare
from tpx.perf.settings import Header, parse_header

LONGEST_TIMEOUT_S = 1e9
_protocol = one_of("-i (protocol)", ("http", "grpc"), "The value should be either HTTP or gRPC.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """A model, a server, and the way there."""

    model: str = option("", "model to send requests to", "-m", metavar="NAME")
    models: tuple[ModelShare, ...] | None = option(
        None,
        "several models at once instead of -m, each request one of them by weight",
        metavar="A:3,B:1",
        parse=parse_models,
    )
    model_version: str = option("", "its version; the server's policy decides when not given", "-x")
    url: str = option(
        "",
        "host:port of the server (localhost:8000, for grpc localhost:8001), https://host:port for TLS",
        "-u",
    )
    protocol: Literal["http", "grpc"] = option("http", "http or grpc", "-i", parse=_protocol)
    header: tuple[Header, ...] = option(
        (),
        "header, or gRPC metadata, of every request (repeatable)",
        "-H",
        metavar="NAME:VALUE",
        parse=parse_header,
    )
    timeout: float = option(0.0, "seconds after which a request has failed; 0: never", metavar="SECONDS")

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.models and (self.model or self.model_version):
            raise UsageError("--models names the models: leave out -m and -x")
        if not 0 <= self.timeout <= LONGEST_TIMEOUT_S:
            refuse("--timeout", "The value must be >= 0 seconds, and no more than 1e9.")
