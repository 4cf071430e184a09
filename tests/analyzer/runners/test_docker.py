"""Containers by the exact words of their command; no daemon is needed for that."""

from pathlib import Path

import pytest

from tpx.analyzer.runners.docker import Container, find_docker, run_words
from tpx.analyzer.runners.servers import Launch
from tpx.errors import UsageError

PORTS = {"http-port": 8100, "grpc-port": 8101, "metrics-port": 8102}
PLAIN = Container(docker="docker", image="server:1", models=Path("/models"), gpus=())


def words(container: Container = PLAIN, launch: Launch | None = None) -> list[str]:
    return list(run_words(container, launch or Launch(), "box", PORTS))


def test_a_container_has_the_models_the_ports_and_explicit_control() -> None:
    assert words() == [
        *("run", "--rm", "--name", "box", "--label", "tpx.analyze=box"),
        *("--publish", "127.0.0.1:8100:8100"),
        *("--publish", "127.0.0.1:8101:8101"),
        *("--publish", "127.0.0.1:8102:8102"),
        *("--volume", "/models:/models:ro"),
        *("server:1", "tritonserver"),
        *("--model-repository=/models", "--model-control-mode=explicit", "--metrics-interval-ms=1000"),
        *("--http-port=8100", "--grpc-port=8101", "--metrics-port=8102"),
    ]


def test_everything_that_model_analyzer_passes_on_is_passed_on() -> None:
    container = Container(
        docker="docker",
        image="server:1",
        models=Path("/models"),
        mounts=("/data:/mnt:ro",),
        labels={"team": "vision"},
        shm_size="1g",
        gpus=("GPU-a", "GPU-b"),
        metrics_interval_ms=500,
    )
    launch = Launch(
        flags={"log-verbose": ("1",), "backend_config": ("a,b=1", "c,d=2")},
        environment={"LD_PRELOAD": "x.so"},
        docker_args={
            "mem_limit": "8g",
            "nano_cpus": 1500000000,
            "privileged": True,
            "tty": False,
            "cap_add": ["SYS_NICE", "IPC_LOCK"],
            "ipc_mode": "host",
        },
    )
    said = words(container, launch)
    line = " ".join(said)
    before, after = line.split(" server:1 tritonserver ")
    assert "--label team=vision" in before
    assert "--volume /data:/mnt:ro" in before
    assert said[said.index("--gpus") + 1] == '"device=GPU-a,GPU-b"'
    assert "--shm-size 1g --env LD_PRELOAD=x.so --memory=8g --cpus=1.5 --privileged" in before
    assert "--cap-add=SYS_NICE --cap-add=IPC_LOCK --ipc=host" in before
    assert "--tty" not in before
    assert after.endswith("--log-verbose=1 --backend-config=a,b=1 --backend-config=c,d=2")


def test_all_gpus_are_all_and_the_network_of_the_host_needs_no_ports() -> None:
    container = Container(docker="docker", image="server:1", models=Path("/models"), gpus=None)
    said = words(container, Launch(docker_args={"network_mode": "host"}))
    assert said[said.index("--gpus") + 1] == "all"
    assert "--publish" not in said
    assert "--network=host" in said


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch(docker_args={"command": "sh"}), "triton_docker_args: command is set by tpx analyze"),
        (Launch(flags={"http_port": ("1",)}), "http-port: with --triton-launch-mode docker tpx chooses"),
    ],
)
def test_what_tpx_decides_is_refused(launch: Launch, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        words(launch=launch)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "needs the docker command, which is not on the PATH"),
        ("echo 'no daemon here' >&2; exit 1", "--triton-launch-mode docker: no daemon here"),
        ("exit 3", "docker version ended with 3"),
    ],
)
def test_a_machine_without_docker_is_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    if script is not None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    with pytest.raises(UsageError, match=message):
        find_docker()
