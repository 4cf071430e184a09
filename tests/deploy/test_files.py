"""The files of deploy/ and .github/ fit each other and tpx: versions, options, names, schemas."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import DEPLOY, ROOT, image_variables, load
from tpx import __version__
from tpx.cluster.spec import read_spec
from tpx.options import build
from tpx.serving.options import ServeConfig, ServeWords
from tpx.sources import collect, doubtful_variables, values_of

CHECKER = Path(sys.executable).with_name("check-jsonschema")
UNIT = (DEPLOY / "systemd" / "tpx.service").read_text("utf-8")


def _containerfile(name: str) -> list[str]:
    words = re.search(r"^CMD \[(.+)\]$", (DEPLOY / name).read_text("utf-8"), re.MULTILINE)
    assert words is not None
    return re.findall(r'"([^"]+)"', words[1])


def _unit() -> tuple[list[str], dict[str, str]]:
    command = re.search(r"^ExecStart=/opt/tpx/bin/tpx (.+) \$TPX_OPTIONS$", UNIT, re.MULTILINE)
    variables = re.search(r"^Environment=(.+)$", UNIT, re.MULTILINE)
    assert command is not None
    assert variables is not None
    return command[1].split(), dict(each.split("=", 1) for each in variables[1].split())


COMPOSED = load("compose.yaml")["services"]["tpx"]
COMMANDS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "Containerfile": (_containerfile("Containerfile"), image_variables("Containerfile")),
    "Containerfile.gpu": (_containerfile("Containerfile.gpu"), image_variables("Containerfile.gpu")),
    "compose": (COMPOSED["command"], image_variables("Containerfile") | COMPOSED["environment"]),
    "KServe": (load("kserve/clusterservingruntime.yaml")["spec"]["containers"][0]["args"], {}),
    "systemd": _unit(),
}


def _config(name: str) -> ServeConfig:
    """The options of a server that is started as this file says."""
    (command, *options), variables = COMMANDS[name]
    assert command == "serve"
    assert list(doubtful_variables("serve", variables, ServeWords)) == []
    return build(ServeWords, values_of(collect(ServeWords, options, "serve", variables))).server


@pytest.mark.parametrize("name", COMMANDS)
def test_tpx_takes_the_command(name: str) -> None:
    config = _config(name)
    assert config.repository.model_repository
    listens = "127.0.0.1" if name == "systemd" else "0.0.0.0"
    assert (config.http.http_address, config.grpc.grpc_address) == (listens, listens)


def test_there_is_one_version() -> None:
    chart = load("helm/tpx/Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    image = load("kserve/clusterservingruntime.yaml")["spec"]["containers"][0]["image"]
    assert image == f"tpx:{__version__}"
    ray = (DEPLOY / "kuberay.yaml").read_text("utf-8")
    assert set(re.findall(r"tpx-cluster:(\S+)", ray)) == {__version__}
    action = (ROOT / "docs" / "production" / "github-action.md").read_text("utf-8")
    assert set(re.findall(r"github-action@v(\S+)", action)) == {__version__}
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_python_that_is_promised_is_tested() -> None:
    project: Any = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    promised = [each.rpartition(" ")[2] for each in project["classifiers"] if ":: Python ::" in each]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert f"python: {promised}".replace("'", '"') in workflow


def test_time_to_stop_is_longer_than_the_drain() -> None:
    def drain(name: str) -> int:
        return _config(name).server.drain_secs

    exit_s = ServeConfig().server.exit_timeout_secs
    grace = load("compose.yaml")["services"]["tpx"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > drain("compose") + exit_s
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > drain("systemd") + exit_s
    predictor = load("kserve/inferenceservice.yaml")["spec"]["predictor"]
    assert predictor["terminationGracePeriodSeconds"] > drain("KServe") + exit_s


def test_both_containerfiles_differ_in_little() -> None:
    cpu, gpu = (set((DEPLOY / name).read_text("utf-8").splitlines()) for name in list(COMMANDS)[:2])
    assert len(cpu - gpu) <= 8


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("github-workflows", ".github/workflows/ci.yml"),
        ("github-actions", "deploy/github-action/action.yml"),
        ("compose-spec", "deploy/compose.yaml"),
    ],
)
@pytest.mark.skipif(not CHECKER.exists(), reason="no check-jsonschema: pip install 'tpx[deploy]'")
def test_a_file_is_of_its_schema(schema: str, path: str) -> None:
    words = [str(CHECKER), "--builtin-schema", f"vendor.{schema}", str(ROOT / path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    unit = tmp_path / "tpx.service"
    tpx = Path(sys.executable).with_name("tpx")
    unit.write_text(UNIT.replace("/opt/tpx/bin/tpx", str(tpx)), encoding="utf-8")
    for words in (["verify"], ["security", "--offline=yes", "--threshold=20"]):
        done = subprocess.run(
            ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr


def test_compose_mounts_what_there_is() -> None:
    for service in load("compose.yaml")["services"].values():
        sources = [volume.split(":")[0] for volume in service["volumes"]]
        assert all((DEPLOY / source).exists() for source in sources if source.startswith("./"))


def test_the_job_of_kuberay_starts_a_cluster_as_it_is_meant() -> None:
    parts = list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text(encoding="utf-8")))
    cluster, job, service = parts
    spec = read_spec(job["spec"]["entrypoint"].split()[3:])
    [head] = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in head["ports"]}
    assert (ports["http"], ports["grpc"]) == (spec.traffic.http_port, spec.traffic.grpc_port)
    assert {each["targetPort"] for each in service["spec"]["ports"]} == {"http", "grpc", "stats"}
    [worker] = cluster["spec"]["workerGroupSpecs"]
    assert spec.replica.bounds[1] == worker["maxReplicas"]
