"""The options that say what is measured, and how it is reached."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tpx.errors import UsageError
from tpx.options import Option
from tpx.perf.levels import parse_models
from tpx.perf.plan import ModelShare
from tpx.perf.settings import Header, one_of, parse_header, refuse

_TARGET = "Target"
LONGEST_TIMEOUT_S = 1e9
_protocol = one_of("-i (protocol)", ("http", "grpc"), "The value should be either HTTP or gRPC.")


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """A model, a server, and the way there."""

    model: Annotated[str, Option("model to send requests to", ("-m",), _TARGET, "NAME")] = ""
    models: Annotated[
        tuple[ModelShare, ...] | None,
        Option(
            "several models at once instead of -m, each request one of them by weight",
            (),
            _TARGET,
            "A:3,B:1",
            parse=parse_models,
        ),
    ] = None
    model_version: Annotated[
        str, Option("its version; the server's policy decides when not given", ("-x",), _TARGET)
    ] = ""
    url: Annotated[
        str,
        Option(
            "host:port of the server (localhost:8000, for grpc localhost:8001), https://host:port for TLS",
            ("-u",),
            _TARGET,
        ),
    ] = ""
    protocol: Annotated[
        Literal["http", "grpc"], Option("http or grpc", ("-i",), _TARGET, parse=_protocol)
    ] = "http"
    header: Annotated[
        tuple[Header, ...],
        Option(
            "header, or gRPC metadata, of every request (repeatable)",
            ("-H",),
            _TARGET,
            "NAME:VALUE",
            parse=parse_header,
        ),
    ] = ()
    timeout: Annotated[
        float, Option("seconds after which a request has failed; 0: never", (), _TARGET, "SECONDS")
    ] = 0.0

    def check_target(self) -> None:
        """Raise UsageError for a value out of range."""
        if self.models and (self.model or self.model_version):
            raise UsageError("--models names the models: leave out -m and -x")
        if not self.model and not self.models:
            refuse("-m (model name)", "The value must be specified.")
        if not 0 <= self.timeout <= LONGEST_TIMEOUT_S:
            refuse("--timeout", "The value must be >= 0 seconds, and no more than 1e9.")
