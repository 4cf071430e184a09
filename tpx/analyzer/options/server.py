"""Server options: the server on which variants are measured, how to start it and how to reach it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from tpx.analyzer.options.models import docker_args
from tpx.analyzer.values import Flags, environment, flags, from_yaml_text, words
from tpx.errors import UsageError
from tpx.options import Options, nearest, option

_MAP = "{KEY: VALUE}"

LaunchMode = Literal["local", "remote", "inprocess", "docker", "ray"]
_MODES: Mapping[str, LaunchMode] = {mode: mode for mode in get_args(LaunchMode)} | {"c_api": "inprocess"}


def parse_launch_mode(text: object) -> LaunchMode:
    """Parse a launch mode by any of its names."""
    word = str(text)
    if word.lower() not in _MODES:
        raise ValueError(f"expected one of: {', '.join(_MODES)}{nearest(word, _MODES)}")
    return _MODES[word.lower()]


class LaunchSpec(Options):
    """Launch mode, addresses, and the server's start options."""

    triton_launch_mode: LaunchMode = option(
        "local",
        "local: a child server on this machine; remote: a running server with explicit model "
        "control; inprocess (c_api): the engine in this process; docker: a container; ray: child servers on "
        "the nodes of a Ray cluster, trials side by side",
        "--launch-mode",
        metavar="local|remote|inprocess|docker|ray",
        parse=parse_launch_mode,
        read=parse_launch_mode,
        common=True,
    )
    ray_address: str = option(
        "", "ray: host:port of Ray's head node (default: RAY_ADDRESS)", metavar="ADDRESS"
    )
    ray_trial: Literal["node", "gpu"] = option("node", "ray: what each trial has exclusively")
    triton_server_path: str = option(
        "", "local: the server program (default: `tpx serve`)", metavar="PROGRAM"
    )
    triton_http_endpoint: str = option("localhost:8000", "remote: HTTP endpoint", metavar="HOST:PORT")
    triton_grpc_endpoint: str = option("localhost:8001", "remote: gRPC endpoint", metavar="HOST:PORT")
    triton_metrics_url: str = option(
        "http://localhost:8002/metrics", "remote: URL of the server's metrics", metavar="URL"
    )
    client_protocol: Literal["http", "grpc"] = option(
        "grpc", "protocol of the load", metavar="http|grpc", common=True
    )
    client_max_retries: int = option(
        50, "seconds to wait for the server and the model to become ready", "-r", minimum=1
    )
    reload_model_disable: bool = option(
        False, "remote: never load or unload; measure the models that are loaded"
    )
    triton_server_flags: Flags = option(
        {}, "options of the server, by name", metavar=_MAP, parse=from_yaml_text(flags), read=flags
    )
    triton_server_environment: Mapping[str, str] = option(
        {},
        "environment variables of the server",
        metavar=_MAP,
        parse=from_yaml_text(environment),
        read=environment,
    )
    triton_output_path: Path | None = option(None, "file for the server's log", metavar="FILE")
    triton_install_path: Path = option(
        Path("/opt/tritonserver"), "not needed: the engine is built in", metavar="DIR", inert=True
    )
    gpus: tuple[str, ...] = option(
        ("all",), "GPUs to use, by UUID or number; all, or [] for none", metavar="A,B", parse=words
    )

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or one that does not apply to the launch mode."""
        if self.reload_model_disable and self.triton_launch_mode != "remote":
            raise UsageError(
                "--reload-model-disable requires --triton-launch-mode remote: a server that tpx starts "
                "has no models loaded"
            )
        for flag, address in (("http", self.triton_http_endpoint), ("grpc", self.triton_grpc_endpoint)):
            if not address.rpartition(":")[2].isdecimal():
                raise UsageError(f"--triton-{flag}-endpoint: '{address}' is not HOST:PORT")
        if not self.triton_metrics_url.startswith(("http://", "https://")):
            raise UsageError(
                f"--triton-metrics-url: '{self.triton_metrics_url}' is not a URL such as http://HOST:PORT/metrics"
            )

    @property
    def chosen_gpus(self) -> tuple[str, ...] | None:
        """UUIDs or numbers of the GPUs to use; None is all, an empty tuple none."""
        words_ = tuple(word for word in self.gpus if word != "[]")
        return None if words_ == ("all",) else words_


class DockerSpec(Options):
    """The container of a server."""

    triton_docker_image: str = option(
        "nvcr.io/nvidia/tritonserver:26.04-py3", "image to run", metavar="IMAGE"
    )
    triton_docker_args: Mapping[str, object] = option(
        {}, "arguments for the container", metavar=_MAP, parse=from_yaml_text(docker_args), read=docker_args
    )
    triton_docker_labels: Mapping[str, str] = option(
        {}, "labels of the container", metavar=_MAP, parse=from_yaml_text(environment), read=environment
    )
    triton_docker_mounts: tuple[str, ...] = option(
        (), "additional mounts of the container", metavar="HOST:DEST:MODE", comma=True
    )
    triton_docker_shm_size: str = option("", "size of the container's /dev/shm", metavar="SIZE")

    def __post_init__(self) -> None:
        """Raise UsageError for a malformed mount."""
        for mount in self.triton_docker_mounts:
            if mount.count(":") != 2 or not all(mount.split(":")):
                raise UsageError(f"--triton-docker-mounts: '{mount}' is not HOST:DEST:MODE")
