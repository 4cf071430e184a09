"""The words in which `cases.yaml` says what is sent and what must come back.

Bytes are a string, one character each ("\\xff" is the byte 255), or a list of pieces that are joined. A piece
is a string or one of

    {json: VALUE}                its JSON text
    {utf8: TEXT}                 its UTF-8
    {repeat: PIECES, times: N}   the same again and again
    {floats: [...]}              FP32, little-endian
    {gzip: PIECES}               compressed; so is {deflate: PIECES}
    {cut: PIECES, keep: N}       the first N bytes of them

$SHM begins the names of files that the test has put into /dev/shm, or that must not come to be.
"""

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from google.protobuf import json_format

from tpx.protocol import messages

FILE = Path(__file__).with_name("cases.yaml")

Sort = Literal["http", "raw", "grpc", "repository"]

_VERBS = ("get", "post", "head", "put", "delete", "patch", "options", "trace")
_WORDS: dict[Sort, frozenset[str]] = {
    "http": frozenset({*_VERBS, "infer", "model", "headers", "body", "header"}),
    "raw": frozenset({"send", "end", "port", "header"}),
    "grpc": frozenset({"grpc", "message", "bytes", "raw", "metadata", "code", "compression"}),
    "repository": frozenset({"repository", "files", "links", "state", "serves"}),
}
_COMMON = frozenset({"row", "case", "status", "error", "answer", "closed", "bystander"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input and its answer; which fields count follows from `sort`."""

    sort: Sort
    row: str
    name: str
    error: str
    """Part of the error's text; empty where the answer is none."""
    status: int
    """Of HTTP; 0 where the connection may end without an answer."""
    closed: bool
    """Behind the answer, the connection must end."""
    bystander_s: float
    """Meanwhile, each of another client's small requests must be answered within this; 0: none asks."""
    said: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.row}-{self.sort}-{self.name}".replace(" ", "_")


def joined(pieces: Any) -> bytes:
    """The bytes that a string, a piece or a list of pieces stands for."""
    if isinstance(pieces, str):
        return pieces.encode("latin-1")
    if isinstance(pieces, list):
        return b"".join(joined(piece) for piece in pieces)
    [word] = pieces.keys() & _PIECES.keys()
    return _PIECES[word](pieces)


_PIECES: dict[str, Callable[[Any], bytes]] = {
    "json": lambda piece: json.dumps(piece["json"]).encode(),
    "utf8": lambda piece: piece["utf8"].encode(),
    "repeat": lambda piece: joined(piece["repeat"]) * piece["times"],
    "floats": lambda piece: struct.pack(f"<{len(piece['floats'])}f", *piece["floats"]),
    "gzip": lambda piece: gzip.compress(joined(piece["gzip"]), 6, mtime=0),
    "deflate": lambda piece: zlib.compress(joined(piece["deflate"])),
    "cut": lambda piece: joined(piece["cut"])[: piece["keep"]],
}


def http_request(case: Case, shm: str = "") -> bytes:
    """The request of a case of HTTP, or what one of `raw` sends instead."""
    said = _filled(case.said, shm)
    if case.sort == "raw":
        return joined(said["send"])
    verb = next((verb for verb in _VERBS if verb in said), "post")
    path = said.get(verb, f"/v2/models/{said.get('model', 'double')}/infer")
    body = json.dumps(said["infer"]).encode() if "infer" in said else b""
    tail = joined(said.get("body", ""))
    lines = [f"{verb.upper()} {path} HTTP/1.1", "Host: localhost"]
    headers = dict(said.get("headers", {}))
    if body and tail:
        headers.setdefault("Inference-Header-Content-Length", len(body))
    if body or tail or verb != "get":
        headers.setdefault("Content-Length", len(body) + len(tail))
    for name, value in headers.items():
        lines.append(f"{name}: {value if isinstance(value, int) else joined(value).decode('latin-1')}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body + tail


def grpc_message(case: Case, shm: str = "") -> bytes:
    """The request message of a case of gRPC, serialized."""
    said = _filled(case.said, shm)
    if "bytes" in said:
        return joined(said["bytes"])
    message = getattr(messages, said["grpc"].replace("ModelStreamInfer", "ModelInfer") + "Request")()
    json_format.ParseDict(said.get("message", {}), message)
    for pieces in said.get("raw", ()):
        message.raw_input_contents.append(joined(pieces))
    data: bytes = message.SerializeToString()
    return data


def _filled(said: Any, shm: str) -> Any:
    """The same with $SHM filled in."""
    if isinstance(said, str):
        return said.replace("$SHM", shm)
    if isinstance(said, Mapping):
        return {_filled(key, shm): _filled(value, shm) for key, value in said.items()}
    return [_filled(item, shm) for item in said] if isinstance(said, list) else said


@cache
def document() -> dict[str, Any]:
    """The whole file: `rows` says what each is about and over which protocols, `cases` are all of them."""
    read: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return read


@cache
def cases() -> tuple[Case, ...]:
    """All cases, in the order of the file."""
    return tuple(_case(said) for said in document()["cases"])


def _case(said: dict[str, Any]) -> Case:
    sort: Sort = next((sort for sort in ("grpc", "repository") if sort in said), "http")
    sort = "raw" if "send" in said else sort
    unknown = said.keys() - _WORDS[sort] - _COMMON
    assert not unknown, f"unknown words {unknown} in {said['row']} {said['case']}"
    return Case(
        sort=sort,
        row=str(said["row"]),
        name=said["case"],
        error=said.get("error", ""),
        status=said.get("status", 400),
        closed=said.get("closed", sort == "raw"),
        bystander_s=said.get("bystander", 0),
        said=said,
    )
