"""Run every guide of the documentation as its reader does: titled blocks are files, `sh` blocks are commands.

Each page becomes one shell script, in an empty folder and in a network namespace of its own, so that default
ports are free. Windows are shorter than a reader's, and a level that a busy machine makes unstable passes.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.child import environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = sorted(DOCS.glob("guides/*.md"))
BLOCK = re.compile(r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.M | re.S)
PRELUDE = f"""
set -e
python() {{ '{sys.executable}' "$@"; }}
pip() {{ :; }}  # what the page installs is installed
tpx() {{
  case "$1 $2" in
    "perf compare") python -m tpx "$@" ;;
    perf*) python -m tpx "$@" -p 60 -s 999 -r 3 || [ $? = 2 ] ;;
    "analyze profile") python -m tpx "$@" --measurement-interval 50 --max-measurements 4 --final-rounds 2 ;;
    *) python -m tpx "$@" ;;
  esac
}}
curl() {{ command curl --fail-with-body "$@"; echo; }}
serve() {{
  stop
  '{sys.executable}' -m tpx "$@" >serve.log 2>&1 &
  server=$!
  until grep -q 'is ready' serve.log; do kill -0 $server || {{ cat serve.log; exit 1; }}; sleep 0.05; done
}}
stop() {{ [ -z "$server" ] || {{ kill $server; wait $server || true; }}; server=; }}
trap stop EXIT
python -c '
import fcntl, socket, struct
with socket.socket() as any_socket:  # the loopback interface of a new namespace is down
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
'
"""


def script(page: Path) -> Iterator[str]:
    yield PRELUDE
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        text, title = block["text"], block["title"]
        if title:
            yield f"mkdir -p '{Path(title).parent}'\ncat >'{title}' <<'END OF FILE'\n{text}END OF FILE\n"
        elif block["language"] == "sh":
            yield re.sub(r"^tpx serve", "serve serve", text, flags=re.M)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_every_command_of_a_guide_works(page: Path, tmp_path: Path) -> None:
    (tmp_path / "guide.sh").write_text("".join(script(page)), encoding="utf-8")
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", "bash", "guide.sh"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stdout + done.stderr
