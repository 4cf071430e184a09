"""The files of deploy/, and what they say."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LOOPBACK_UP = """python -c '
import fcntl, socket, struct
with socket.socket() as any_socket:  # the loopback interface of a new namespace is down
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
'"""


def documents(text: str) -> list[Any]:
    """The documents of YAML text that hold something."""
    return [found for found in yaml.safe_load_all(text) if found]


def load(name: str) -> Any:
    """The one document of a file below deploy/."""
    [found] = documents((DEPLOY / name).read_text("utf-8"))
    return found


def image_variables(containerfile: str) -> dict[str, str]:
    """The options of tpx serve that a container image sets."""
    text = (DEPLOY / containerfile).read_text("utf-8")
    return dict(re.findall(r"\b(TPX_SERVE_\w+)=(\S+)", text))
