"""Run every command line of the README and the documentation as its reader does.

Blocks marked `sh` are commands, blocks with a title are files, blocks marked `python` are scripts. Each page
becomes one shell script; `reader.sh` defines how commands run. Commands that cannot run here are listed.
"""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.child import environment
from tests.warm import shell_command
from tpx.examples import write

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r'^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.M | re.S)
COMMAND = re.compile(
    r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:tpx|curl|pip|python3?|docker|podman|helm|kubectl|promtool|make|uvx?|buf)\s"
)

NOT_HERE = {
    "make ": "targets of the Makefile are steps of CI by themselves",
    "docker ": "no Docker daemon; tests/deploy/test_container.py runs the image",
    "podman ": "as docker",
    "MODELS=/path/to/models docker ": "as docker; tests/deploy/test_compose.py runs the services' commands",
    "helm ": "no Kubernetes; tests/deploy/test_chart.py renders the chart with these values",
    "kubectl ": "no Kubernetes; `make test-kserve` checks the files",
    "cp deploy/systemd": "no systemd; tests/deploy/test_files.py verifies the unit",
    "printf '%s\\n' TPX_SERVE_HTTP_ADDRESS": "as above",
    "systemctl ": "as above",
    "journalctl ": "as above",
    "python3 -m venv /opt": "needs a package index; `make dist` installs the wheel",
    "uv pip install": "what a page installs is installed",
    "tpx serve --model-repository s3:": "needs an object store; tests/serving/repository/stores run one",
    "tpx serve --model-repository gs:": "needs Google's object store",
    "tpx serve --model-repository as:": "needs Azure's object store",
    "tpx cluster ": "needs Ray and several machines; tests/cluster runs it in namespaces",
    "tpx analyze profile --launch-mode ray": "as above",
    "export RAY_ADDRESS": "as above",
    "RAY_ADDRESS=": "as above",
    "tpx serve NAME.gguf ": "the reader's model; tests/serving/backends/llamacpp set a context so",
    "export ANTHROPIC_": "takes 300 MB to install; tests/serving/frontends/test_openai.py sends its requests",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL=": "as above",
    "genai-perf ": "takes 1 GB to install; tests/perf/test_under_genai_perf.py runs it where it is",
    "buf ": "no package of buf; tests/serving/frontends ask reflection",
    "tpx perf -m mnist --http2 -u proxy.lan": "a host; tests/perf/clients/test_library.py has HAProxy",
    "tpx perf -m mnist -u server.lan": "a host; tests/perf/clients/test_proxies.py has a real proxy",
    "HTTPS_PROXY=": "as above",
}
"""Beginnings of command lines that are not run, and why."""

SCRIPTS_NOT_HERE = {
    "serve/dali.md": "takes 1 GB to install; tests/serving/backends/dali runs it",
    "serve/tensorflow.md": "takes 1 GB to install; tests/serving/backends/tensorflow runs it",
    "reference/backends.md": "a package; tests/serving/backends/test_documentation.py serves it",
}
"""Pages whose Python blocks are not run, and why."""

SERVE = "models; serve serve --model-repository models --model-control-mode explicit --load-model '*'"
SECOND = "also tpx serve --model-repository models --http-port 9000 --grpc-port 9001 --metrics-port 9002"
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost "
    "-addext subjectAltName=DNS:localhost -keyout server.key -out server.crt 2>openssl.log"
)
RUN = (
    "run analyze profile --model-repository models --profile-models mnist --concurrency 1 -e results "
    "--run-config-search-max-instance-count 2 --run-config-search-max-model-batch-size 1 "
    "--measurement-interval 20 --final-rounds 0"
)
ONE_FILE = "cp $MODELS/mnist/1/model.onnx my_model.onnx"
FILES = """mkdir directory; python -c '
import numpy as np
np.save("images.npy", np.zeros((4, 1, 8, 8), np.float32))
for name in ("INPUT0", "OUTPUT0"):
    np.save(f"directory/{name}.npy", np.ones((2, 16), np.float32))
'"""
SETUP = {
    "README.md": ONE_FILE,
    "analyze/commands.md": f"cp -rL $MODELS models; {RUN}; "
    "for name in main-1 main-2 main-3 branch; do cp -r results $name; done",
    "perf/data.md": f"{SERVE}; {SECOND}; {FILES}",
    "perf/loads.md": f"{SERVE}; also tests.e2e.other_services",
    "perf/services.md": f"{SERVE}; {CERTIFICATE}; also tests.e2e.other_services; "
    f"{SECOND.replace('9000', '8443')} "
    "--http-use-ssl --http-server-cert server.crt --http-server-key server.key",
    "reference/configuration.md": "",
    "production/containers.md": "",
    "production/kubernetes.md": "",
    "production/systemd.md": "",
    "guides/ci.md": f"models; {SECOND}",
    "guides/production.md": f"models; {CERTIFICATE}",
    "production/monitoring.md": "ln -s $ROOT/deploy deploy",
    "serve/repositories.md": f"models; {ONE_FILE}",
}
"""What a page expects; guides begin with an empty folder, every other page with the example models served."""

PAGES = [
    page for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if "```" in page.read_text("utf-8")
]


def name_of(page: Path) -> str:
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


def blocks(page: Path) -> Iterator[tuple[str, str | None, str]]:
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield block["language"], block["title"], block["text"]


def is_not_here(line: str) -> bool:
    return line.startswith(tuple(NOT_HERE))


def commands(text: str) -> str:
    """The lines of a block that can run here; `tpx serve` runs in the background."""
    lines = re.findall(r"(?:.*\\\n)*.*\n", text)
    return re.sub(
        r"^tpx serve", "serve serve", "".join(each for each in lines if not is_not_here(each)), flags=re.M
    )


def script(page: Path) -> Iterator[str]:
    name = name_of(page)
    yield ". $READER\n"
    yield SETUP.get(name, "" if name.startswith("guides/") else SERVE) + "\n"
    for language, title, text in blocks(page):
        if title:
            yield f"mkdir -p '{Path(title).parent}'\ncat >'{title}' <<'END OF FILE'\n{text}END OF FILE\n"
        elif language == "sh":
            yield commands(text)
        elif language == "python" and name not in SCRIPTS_NOT_HERE:
            yield f"python - <<'END OF SCRIPT'\n{text}END OF SCRIPT\n"


RUN_HERE = [page for page in PAGES if any(part.strip() for part in [*script(page)][2:])]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example models, and a decoupled one."""
    repository = tmp_path_factory.mktemp("documented") / "models"
    write(repository)
    (repository / "repeat" / "1").mkdir(parents=True)
    config = 'backend: "repeat" model_transaction_policy { decoupled: true }'
    (repository / "repeat" / "config.pbtxt").write_text(config, encoding="utf-8")
    return repository


def named(text: str, models: Path) -> set[Path]:
    """The models that a page names, and those that their configurations name."""
    found = {model for model in models.iterdir() if re.search(rf"\b{model.name}\b", text)}
    texts = [config.read_text("utf-8") for model in found if (config := model / "config.pbtxt").exists()]
    beneath = {model for model in models.iterdir() if any(f'"{model.name}"' in each for each in texts)}
    return found | beneath


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_HERE, ids=name_of)
def test_every_command_of_a_page_works(page: Path, models: Path, tmp_path: Path) -> None:
    text = "".join(script(page))
    (tmp_path / "page.sh").write_text(text, encoding="utf-8")
    served = tmp_path / "served"
    served.mkdir()
    for model in named(text, models):
        (served / model.name).symlink_to(model)
    reader = {"READER": str(Path(__file__).with_name("reader.sh")), **shell_command()}
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", "bash", "page.sh"],
        cwd=tmp_path,
        env=environment({**reader, "MODELS": str(served), "ROOT": str(ROOT)}),
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stdout + done.stderr


def test_every_command_line_stands_in_a_block_that_is_run() -> None:
    elsewhere = [
        f"{name_of(page)}: {line}"
        for page in PAGES
        for language, title, text in blocks(page)
        if language != "sh" and not title
        for line in text.splitlines()
        if COMMAND.match(line)
    ]
    assert elsewhere == []


def test_what_is_not_run_still_stands_somewhere() -> None:
    lines = [
        line
        for page in PAGES
        for language, _, text in blocks(page)
        if language == "sh"
        for line in text.splitlines()
    ]
    assert [start for start in NOT_HERE if not any(line.startswith(start) for line in lines)] == []
    assert [name for name in SCRIPTS_NOT_HERE if not (DOCS / name).exists()] == []


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = "".join(page.read_text("utf-8") for page in [ROOT / "README.md", *DOCS.rglob("*.md")])
    named = {extra for group in re.findall(r"\btpx\[([a-z,-]+)\]", text) for extra in group.split(",")}
    assert named - {*project["optional-dependencies"]} == set()
