"""Where a repository is, as the command line names it: a path, or a place in an object store.

s3://bucket/path   s3://https://host:port/bucket/path   gs://bucket/path   as://account/container/path
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Scheme = Literal["s3", "gs", "as"]

_SCHEMES: dict[str, Scheme] = {"s3": "s3", "gs": "gs", "as": "as"}
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_ENDPOINT = re.compile(r"(https?://[^/]+)/+(.*)", re.DOTALL)
_BARE_ENDPOINT = re.compile(r"([A-Za-z0-9.-]+:[0-9]+)/+(.*)", re.DOTALL)
_AZURE_HOST = ".blob.core.windows.net"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """A directory in an object store."""

    scheme: Scheme
    bucket: str
    """Or the container, in Azure's word."""
    path: str = ""
    """Below the bucket, without slashes at its ends."""
    endpoint: str = ""
    """URL of a server that is not the provider's own."""
    account: str = ""
    """Of Azure."""

    def __str__(self) -> str:
        host = f"{self.account or self.endpoint}/" if self.account or self.endpoint else ""
        return f"{self.scheme}://{host}{self.bucket}{'/' if self.path else ''}{self.path}"


def place_of(text: str) -> Path | StorePlace:
    """The place that a word of the command line means. Raises ValueError with what was expected."""
    match = _URL.fullmatch(text)
    if match is None:
        return Path(text)
    scheme = _SCHEMES.get(match[1])
    if scheme is None:
        raise ValueError("expected a directory, s3://, gs:// or as://")
    rest, endpoint, account = match[2], "", ""
    if scheme == "s3":
        endpoint, rest = _endpoint_of(rest)
    elif scheme == "as":
        account, _, rest = rest.partition("/")
        account = account.removesuffix(_AZURE_HOST)
    bucket, _, path = rest.lstrip("/").partition("/")
    if not bucket or (scheme == "as" and not account):
        shape = "as://account/container/path" if scheme == "as" else f"{scheme}://bucket/path"
        raise ValueError(f"expected {shape}")
    parts = [part for part in path.split("/") if part]
    if any(part in (".", "..") or not part.isprintable() for part in (bucket, *parts)):
        raise ValueError("expected a path without '.', '..' and control characters")
    return StorePlace(scheme=scheme, bucket=bucket, path="/".join(parts), endpoint=endpoint, account=account)


def _endpoint_of(rest: str) -> tuple[str, str]:
    """The URL in front of bucket and path, if there is one; `host:port` alone is meant as https."""
    match = _ENDPOINT.fullmatch(rest)
    if match is not None:
        return match[1], match[2]
    if rest.startswith(("http://", "https://")):
        return rest, ""
    match = _BARE_ENDPOINT.fullmatch(rest)
    return (f"https://{match[1]}", match[2]) if match is not None else ("", rest)
