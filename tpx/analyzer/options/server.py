"""The options that say which server the variants are measured on, and how it is started and reached."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tpx.analyzer.models import Flags
from tpx.analyzer.options.models import docker_args
from tpx.analyzer.options.values import environment, flags, from_yaml_text, words
from tpx.errors import UsageError
from tpx.options import Option, nearest

_SERVER = "Server"
_DOCKER = "Docker"
_MAP = "{KEY: VALUE}"

LaunchMode = Literal["local", "remote", "inprocess", "docker"]
_MODES: Mapping[str, LaunchMode] = {
    "local": "local",
    "remote": "remote",
    "inprocess": "inprocess",
    "docker": "docker",
    "c_api": "inprocess",
}


def parse_launch_mode(text: object) -> LaunchMode:
    """A launch mode by any of its names."""
    word = str(text)
    if word.lower() not in _MODES:
        raise ValueError(f"expected one of: {', '.join(_MODES)}{nearest(word, _MODES)}")
    return _MODES[word.lower()]


def _no_flags() -> Flags:
    return {}


def _no_variables() -> Mapping[str, str]:
    return {}


def _no_arguments() -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Launch mode, addresses, and what the server is told when it starts."""

    triton_launch_mode: Annotated[
        LaunchMode,
        Option(
            "local: a child server on this machine; remote: one that runs already, under explicit model "
            "control; inprocess (c_api): the engine in this process; docker: a container",
            (),
            _SERVER,
            "local|remote|inprocess|docker",
            parse=parse_launch_mode,
            read=parse_launch_mode,
        ),
    ] = "local"
    triton_server_path: Annotated[
        str, Option("local: the server program; `tpx serve` when not given", (), _SERVER, "PROGRAM")
    ] = ""
    triton_http_endpoint: Annotated[str, Option("remote: where HTTP is served", (), _SERVER, "HOST:PORT")] = (
        "localhost:8000"
    )
    triton_grpc_endpoint: Annotated[str, Option("remote: where gRPC is served", (), _SERVER, "HOST:PORT")] = (
        "localhost:8001"
    )
    triton_metrics_url: Annotated[str, Option("remote: page of the server's metrics", (), _SERVER, "URL")] = (
        "http://localhost:8002/metrics"
    )
    client_protocol: Annotated[
        Literal["http", "grpc"], Option("protocol of the load", (), _SERVER, "http|grpc")
    ] = "grpc"
    client_max_retries: Annotated[
        int, Option("seconds that a server and its model have to become ready", ("-r",), _SERVER)
    ] = 50
    reload_model_disable: Annotated[
        bool, Option("remote: never load or unload, measure what is loaded", (), _SERVER)
    ] = False
    triton_server_flags: Annotated[
        Flags,
        Option(
            "options of the server by name",
            (),
            _SERVER,
            _MAP,
            parse=from_yaml_text(flags),
            read=flags,
        ),
    ] = field(default_factory=_no_flags)
    triton_server_environment: Annotated[
        Mapping[str, str],
        Option(
            "variables of its environment",
            (),
            _SERVER,
            _MAP,
            parse=from_yaml_text(environment),
            read=environment,
        ),
    ] = field(default_factory=_no_variables)
    triton_output_path: Annotated[Path | None, Option("file for the server's log", (), _SERVER, "FILE")] = (
        None
    )
    triton_install_path: Annotated[
        Path, Option("tpx has its engine with it", (), _SERVER, "DIR", inert=True)
    ] = Path("/opt/tritonserver")
    gpus: Annotated[
        tuple[str, ...],
        Option("GPUs to use, by UUID or number; all, or [] for none", (), _SERVER, "A,B", parse=words),
    ] = ("all",)

    triton_docker_image: Annotated[str, Option("image to run", (), _DOCKER, "IMAGE")] = (
        "nvcr.io/nvidia/tritonserver:26.04-py3"
    )
    triton_docker_args: Annotated[
        Mapping[str, object],
        Option(
            "arguments of the container",
            (),
            _DOCKER,
            _MAP,
            parse=from_yaml_text(docker_args),
            read=docker_args,
        ),
    ] = field(default_factory=_no_arguments)
    triton_docker_labels: Annotated[
        Mapping[str, str],
        Option("labels of it", (), _DOCKER, _MAP, parse=from_yaml_text(environment), read=environment),
    ] = field(default_factory=_no_variables)
    triton_docker_mounts: Annotated[
        tuple[str, ...],
        Option("further mounts of it", (), _DOCKER, "HOST:DEST:MODE", comma=True, read=words),
    ] = ()
    triton_docker_shm_size: Annotated[str, Option("size of its /dev/shm", (), _DOCKER, "SIZE")] = ""

    def check_server(self) -> None:
        """Raise UsageError for a value out of range, or one that the launch mode has no use for."""
        if self.client_max_retries < 1:
            raise UsageError(f"--client-max-retries must be at least 1, not {self.client_max_retries}")
        if self.reload_model_disable and self.triton_launch_mode != "remote":
            raise UsageError(
                "--reload-model-disable goes with --triton-launch-mode remote only: a server that is started "
                "here has no models by itself"
            )
        for mount in self.triton_docker_mounts:
            if mount.count(":") != 2 or not all(mount.split(":")):
                raise UsageError(f"--triton-docker-mounts: '{mount}' is not HOST:DEST:MODE")
        for flag, address in (("http", self.triton_http_endpoint), ("grpc", self.triton_grpc_endpoint)):
            if not address.rpartition(":")[2].isdecimal():
                raise UsageError(f"--triton-{flag}-endpoint: '{address}' is not HOST:PORT")
        if not self.triton_metrics_url.startswith(("http://", "https://")):
            raise UsageError(
                f"--triton-metrics-url: '{self.triton_metrics_url}' is no URL as http://HOST:PORT/metrics"
            )

    @property
    def chosen_gpus(self) -> tuple[str, ...] | None:
        """UUIDs or numbers; None is every GPU, an empty tuple none."""
        words_ = tuple(word for word in self.gpus if word != "[]")
        return None if words_ == ("all",) else words_
