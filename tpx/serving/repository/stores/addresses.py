"""Locations of model repositories as given on the command line: a path, or a location in an object
store with credentials from the environment or a credentials file (Triton:
docs/user_guide/model_repository.md).

  s3://bucket/path   s3://https://host:port/bucket/path   gs://bucket/path   as://account/container/path

  AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_DEFAULT_REGION, AWS_PROFILE
  GOOGLE_APPLICATION_CREDENTIALS
  AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY, AZURE_STORAGE_AUTH_TYPE, AZURE_STORAGE_CLIENT_ID
  TRITON_CLOUD_CREDENTIAL_PATH: JSON file, by scheme and URL prefix; the longest matching prefix wins
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tpx.errors import UsageError

Scheme = Literal["s3", "gs", "as"]

_SCHEMES: dict[str, Scheme] = {"s3": "s3", "gs": "gs", "as": "as"}
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_ENDPOINT = re.compile(r"(https?://[^/]+)/+(.*)", re.DOTALL)
_BARE_ENDPOINT = re.compile(r"([A-Za-z0-9.-]+:[0-9]+)/+(.*)", re.DOTALL)
_AZURE_HOST = ".blob.core.windows.net"


class StoreAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A directory in an object store."""

    scheme: Scheme
    bucket: str
    """Bucket, called container in Azure."""
    path: str = ""
    """Path below the bucket, without leading or trailing slashes."""
    endpoint: str = ""
    """URL of the server, unless it is the provider's own."""
    account: str = ""
    """Storage account (Azure only)."""

    def __str__(self) -> str:
        host = f"{self.account or self.endpoint}/" if self.account or self.endpoint else ""
        return f"{self.scheme}://{host}{self.bucket}{'/' if self.path else ''}{self.path}"


def address_of(text: str) -> Path | StoreAddress:
    """Parse a repository location. Raises ValueError naming the expected form."""
    match = _URL.fullmatch(text)
    if match is None:
        return Path(text)
    scheme = _SCHEMES.get(match[1])
    if scheme is None:
        raise ValueError("expected a directory, s3://, gs:// or as://")
    rest, endpoint, account = match[2], "", ""
    if scheme == "s3":
        endpoint, rest = _split_endpoint(rest)
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
    return StoreAddress(
        scheme=scheme, bucket=bucket, path="/".join(parts), endpoint=endpoint, account=account
    )


def _split_endpoint(rest: str) -> tuple[str, str]:
    """Split off the endpoint URL before bucket and path, if any; a bare `host:port` means https."""
    match = _ENDPOINT.fullmatch(rest)
    if match is not None:
        return match[1], match[2]
    if rest.startswith(("http://", "https://")):
        return rest, ""
    match = _BARE_ENDPOINT.fullmatch(rest)
    return (f"https://{match[1]}", match[2]) if match is not None else ("", rest)


Settings = dict[str, object]
"""Settings of a store, under obstore's names."""

_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
_AWS_MEMBERS = {
    "key_id": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_DEFAULT_REGION",
    "profile": "AWS_PROFILE",
}
_AZURE_MEMBERS = {"account_str": "AZURE_STORAGE_ACCOUNT", "account_key": "AZURE_STORAGE_KEY"}
_AZURE_TYPES = {
    "": "",
    "default": "auto",
    "managed": "managed_identity",
    "managed_identity": "managed_identity",
}


def settings_of(address: StoreAddress, environment: Mapping[str, str], home: Path) -> Settings:
    """Return the settings to open a store with. obstore looks up credentials that are missing here,
    such as the identity of the machine or workload. Raises UsageError.
    """
    path = environment.get(_FILE, "")
    entry = _find_credentials(Path(path), address) if path else None
    if address.scheme == "s3":
        return _read_s3_settings(
            address, environment if entry is None else _rename_to_variables(entry, _AWS_MEMBERS), home
        )
    if address.scheme == "gs":
        if entry is not None and not isinstance(entry, str):
            raise UsageError(f"{_FILE} '{path}': an entry of 'gs' must be the path of a file")
        credentials = environment.get("GOOGLE_APPLICATION_CREDENTIALS", "") if entry is None else entry
        return _drop_empty_settings({"application_credentials": credentials})
    return _read_azure_settings(
        address, environment if entry is None else _rename_to_variables(entry, _AZURE_MEMBERS)
    )


def _read_s3_settings(address: StoreAddress, environment: Mapping[str, str], home: Path) -> Settings:
    settings: Settings = {
        "access_key_id": environment.get("AWS_ACCESS_KEY_ID", ""),
        "secret_access_key": environment.get("AWS_SECRET_ACCESS_KEY", ""),
        "session_token": environment.get("AWS_SESSION_TOKEN", ""),
        "region": environment.get("AWS_DEFAULT_REGION") or environment.get("AWS_REGION", ""),
        "endpoint": address.endpoint,
    }
    profile = environment.get("AWS_PROFILE", "")
    if profile or not settings["access_key_id"]:
        found = _read_aws_profile(profile or "default", environment, home)
        if profile and not found.get("access_key_id"):
            raise UsageError(
                f"profile '{profile}' of AWS_PROFILE has no aws_access_key_id: tpx reads only keys from "
                "~/.aws/credentials; for other kinds of profiles set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            )
        if found.get("access_key_id"):
            settings |= {
                "session_token": "",
                **found,
                "region": settings["region"] or found.get("region", ""),
            }
    # S3-compatible servers address buckets by path and may lack a wildcard certificate
    settings["virtual_hosted_style_request"] = not address.endpoint
    return _drop_empty_settings(settings)


def _read_aws_profile(name: str, environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the keys and region of a profile, as far as the AWS files contain them. Raises UsageError."""
    import configparser  # late: only a repository in S3 needs it

    out: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        path = Path(environment.get(variable, "") or home / ".aws" / file)
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"cannot read '{path}': {exc}") from exc
        values = dict(parser[section]) if parser.has_section(section) else {}
        for key, setting in (
            ("aws_access_key_id", "access_key_id"),
            ("aws_secret_access_key", "secret_access_key"),
            ("aws_session_token", "session_token"),
            ("region", "region"),
        ):
            if values.get(key):
                out[setting] = values[key]
    return out


def _read_azure_settings(address: StoreAddress, environment: Mapping[str, str]) -> Settings:
    kind = environment.get("AZURE_STORAGE_AUTH_TYPE", "").lower()
    if kind not in _AZURE_TYPES:
        raise UsageError(f"AZURE_STORAGE_AUTH_TYPE must be 'default' or 'managed_identity', got '{kind}'")
    settings: Settings = {
        "account_name": environment.get("AZURE_STORAGE_ACCOUNT", "") or address.account,
        "account_key": environment.get("AZURE_STORAGE_KEY", "") if not kind else "",
        "client_id": environment.get("AZURE_STORAGE_CLIENT_ID") or environment.get("AZURE_CLIENT_ID", ""),
        "credential_type": _AZURE_TYPES[kind],
    }
    return _drop_empty_settings(settings)


def _drop_empty_settings(settings: Settings) -> Settings:
    return {name: value for name, value in settings.items() if value != ""}


def _find_credentials(path: Path, address: StoreAddress) -> object:
    """Return the entry of the credentials file for a location, or None. Raises UsageError."""
    try:
        by_scheme = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"cannot read {_FILE} '{path}': {exc}") from exc
    schemes: tuple[Scheme, ...] = ("gs", "s3", "as")
    if not isinstance(by_scheme, dict) or not by_scheme.keys() <= set(schemes):
        raise UsageError(f"{_FILE} '{path}': expected an object with the members {', '.join(schemes)}")
    entries = by_scheme.get(address.scheme, {})
    if not isinstance(entries, dict):
        raise UsageError(f"{_FILE} '{path}': '{address.scheme}' must be an object")
    fitting = [beginning for beginning in entries if _is_within(str(address), beginning)]
    return entries[max(fitting, key=len)] if fitting else None


def _is_within(url: str, beginning: str) -> bool:
    """Return True if a URL is this location or below it: `s3://a` does not match `s3://a-of-others`."""
    address = beginning.rstrip("/")
    return not address or url == address or url.startswith(address + "/")


def _rename_to_variables(entry: object, names: Mapping[str, str]) -> dict[str, str]:
    """Return an entry as environment variables. Raises UsageError."""
    if not isinstance(entry, dict) or not entry.keys() <= names.keys():
        raise UsageError(f"{_FILE}: expected an object with the members {', '.join(names)}")
    if not all(isinstance(value, str) for value in entry.values()):
        raise UsageError(f"{_FILE}: the members of an entry must be strings")
    return {names[key]: value for key, value in entry.items()}
