"""JavaScript clients: @grpc/grpc-js, which has an HTTP/2 and a gRPC of its own, and openai."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import tpx.protocol.schema
from tests.e2e.child import Child
from tests.serving.backends.llamacpp.models import write_tiny
from tests.serving.live import serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

FOLDER = Path(__file__).parent / "node"
INSTALLED = FOLDER / "node_modules" / ".package-lock.json"
CHECKS = (
    "health of the server and of a model",
    "the health checking protocol",
    "metadata",
    "configuration",
    "raw tensors, an id and a requested output",
    "typed tensors",
    "600 KB both ways",
    "8 MB both ways, several at once",
    "a large answer to a small question",
    "errors have a status and a message",
    "a deadline ends the call and not the server",
    "a cancelled call ends at once",
    "many calls at once on one channel",
    "compressed messages",
)


def install() -> None:
    """Bring node_modules to what package-lock.json says, or skip with the reason why not."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found (Debian: nodejs, npm)")
    if INSTALLED.exists() and INSTALLED.stat().st_mtime > (FOLDER / "package-lock.json").stat().st_mtime:
        return
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=90, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install what package-lock.json says: {done.stderr.strip()[-500:]}")


@pytest.fixture(scope="module")
def problems(grpc_address: str) -> dict[str, str | None]:
    """What went wrong in each check, None where nothing did."""
    install()
    schema = Path(next(iter(tpx.protocol.schema.__path__)))
    done = subprocess.run(
        ["node", str(FOLDER / "client.js"), grpc_address, str(schema)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line["problem"] for line in lines}


@pytest.mark.parametrize("check", CHECKS)
def test_a_javascript_client_finds_nothing_wrong(problems: dict[str, str | None], check: str) -> None:
    assert problems[check] is None, problems[check]


def test_every_check_of_the_script_is_looked_at(problems: dict[str, str | None], server: Child) -> None:
    assert tuple(problems) == CHECKS
    assert server.err == []


_NODE = """
const { OpenAI } = require("openai");
const client = new OpenAI({ baseURL: process.argv[1], apiKey: "any", maxRetries: 0 });
(async () => {
  const messages = [{ role: "user", content: "And" }];
  const request = { model: "tiny", messages, max_tokens: 8, temperature: 0 };
  const whole = await client.chat.completions.create(request);
  let [text, chunks] = ["", 0];
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    chunks += 1;
  }
  const models = (await client.models.list()).data.map((model) => model.id);
  const refused = await client.chat.completions.create({ ...request, n: 99 }).catch((error) => error);
  console.log(JSON.stringify({ whole, text, chunks, models, status: refused.status, param: refused.param }));
})();
"""


def test_openais_client_chats_streams_and_tells_errors(tmp_path: Path) -> None:
    install()
    write_tiny(tmp_path, "tiny", threads=1)
    with serving(tmp_path) as live:
        done = subprocess.run(
            ["node", "-e", _NODE, f"http://127.0.0.1:{live.http_port}/v1"],
            capture_output=True,
            text=True,
            timeout=50,
            check=True,
            cwd=FOLDER,
        )
    told = json.loads(done.stdout)
    assert told["text"] == told["whole"]["choices"][0]["message"]["content"] != ""
    assert told["chunks"] > 3
    assert "tiny" in told["models"]
    assert (told["status"], told["param"]) == (400, "n")
