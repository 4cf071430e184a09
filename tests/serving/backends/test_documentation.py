"""The backend and the agent that docs/reference/backends.md shows, installed as packages are, and served."""

import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.fernet import Fernet

from tests.serving.installed import install
from tests.serving.live import Answer, serving

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "backends.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def block(kind: str, beginning: str) -> str:
    """The block of the page that begins so."""
    [found] = [text for name, text in BLOCKS if name == kind and text.startswith(beginning)]
    return str(found)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mapping[str, Any]]:
    """The package of the page, installed."""
    site = tmp_path / "site"
    site.mkdir()
    project: Mapping[str, Any] = tomllib.loads(block("toml", "[build-system]"))["project"]
    source = block("python", '"""Models that are polynomials')
    install(site, project["name"], source, project["entry-points"], version=project["version"])
    monkeypatch.syspath_prepend(site)
    yield project
    sys.modules.pop("tpx_polynomial", None)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The model of the page."""
    parabola = tmp_path / "models" / "parabola"
    (parabola / "1").mkdir(parents=True)
    (parabola / "config.pbtxt").write_text(block("text", 'backend: "polynomial"'))
    (parabola / "1" / "model.json").write_text(block("json", '{"coefficients'))
    return tmp_path / "models"


def values(answer: Answer) -> Any:
    assert answer.status == 200, answer.error
    return answer.json["outputs"][0]["data"]


REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [0, 1, 2, 3]}]}


@pytest.mark.usefixtures("package")
def test_the_backend_of_the_page_is_served(models: Path) -> None:
    with serving(models) as live:
        assert values(live.infer("parabola", REQUEST)) == [-2, -1, 2, 7]
        config = live.get("/v2/models/parabola/config").json
        assert (config["backend"], config["max_batch_size"]) == ("polynomial", 4)
        assert "dynamic_batching" in config
        binary = live.infer_binary("parabola", {"x": np.ones((1, 3), np.float32)})
        assert np.frombuffer(binary.tail, np.float32).tolist() == [-1, -1, -1]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("config", "content", "reason"),
    [
        ("", "{}", "cannot read '"),
        ("instance_group [{ kind: KIND_GPU }]", "", "polynomials are computed on the CPU, use KIND_CPU"),
        ("input [{ name: 'z' data_type: TYPE_FP32 dims: 1 }]", "", "has the input x and the output y"),
    ],
)
def test_its_errors_are_the_reason_in_the_index(models: Path, config: str, content: str, reason: str) -> None:
    with (models / "parabola" / "config.pbtxt").open("a") as file:
        file.write(config)
    if content:
        (models / "parabola" / "1" / "model.json").write_text(content)
    with serving(models, exit_on_error=False) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
        assert entry["state"] == "UNAVAILABLE"
        assert reason in entry["reason"]


def test_without_its_package_the_error_names_the_backends_that_there_are(models: Path) -> None:
    with serving(models, exit_on_error=False) as live:
        [entry] = live.http("POST", "/v2/repository/index").json
        assert "unable to find backend library for backend 'polynomial'" in entry["reason"]


@pytest.mark.usefixtures("package")
def test_the_agent_of_the_page_unpacks_a_model(models: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agents" / "unpack" / "agent.py"
    agent.parent.mkdir(parents=True)
    agent.write_text(block("python", "import zipfile"))
    content = (models / "parabola" / "1" / "model.json").read_bytes()
    (models / "parabola" / "1" / "model.json").unlink()
    (models / "parabola" / "1").rmdir()
    with zipfile.ZipFile(models / "parabola" / "model.zip", "w") as archive:
        archive.writestr("3/model.json", content)
    with (models / "parabola" / "config.pbtxt").open("a") as file:
        file.write('model_repository_agents { agents [{ name: "unpack" }] }')
    with serving(models, repoagent_directory=agent.parents[1]) as live:
        assert values(live.infer("parabola", REQUEST, version="3")) == [-2, -1, 2, 7]


@pytest.mark.usefixtures("package")
def test_the_words_of_the_page_encrypt_what_its_agent_decrypts(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(block("python", "from pathlib import Path\n\nfrom cryptography"), {})
    assert Fernet((tmp_path / "models.key").read_bytes())
    asked = block("text", 'model_repository_agents { agents [ { name: "decrypt"')
    with (models / "parabola" / "config.pbtxt").open("a") as file:
        file.write(asked.replace("/run/secrets/models.key", str(tmp_path / "models.key")))
    assert not (models / "parabola" / "1" / "model.json").exists()
    with serving(models) as live:
        assert values(live.infer("parabola", REQUEST)) == [-2, -1, 2, 7]
