"""Target options: the model, the server, the protocol, and TLS."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.errors import UsageError
from tpx.options import one_of, option, refuse
from tpx.perf.clients.tls import TlsSettings
from tpx.perf.levels import ModelShare, parse_models
from tpx.perf.settings import Header, parse_header

LONGEST_TIMEOUT_S = 1e9
_protocol = one_of("-i (protocol)", ("http", "grpc"), "The value should be either HTTP or gRPC.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSpec:
    """Options for the model, the server, and how to reach it."""

    model: str = option(
        "",
        "model to send requests to",
        "-m",
        "--profile-models",
        metavar="NAME",
        common=True,
        completes="served models",
    )
    models: tuple[ModelShare, ...] | None = option(
        None,
        "send to several models instead of -m, each request to one of them by weight",
        metavar="A:3,B:1",
        parse=parse_models,
    )
    model_version: str = option("", "model version (default: chosen by the server's version policy)", "-x")
    url: str = option(
        "",
        "host:port of the server (default localhost:8000, for gRPC localhost:8001); https://host:port for "
        "TLS",
        "-u",
        common=True,
    )
    protocol: Literal["http", "grpc"] = option("http", "http or grpc", "-i", parse=_protocol, common=True)
    header: tuple[Header, ...] = option(
        (),
        "HTTP header or gRPC metadata for every request (repeatable)",
        "-H",
        metavar="NAME:VALUE",
        parse=parse_header,
    )
    timeout: float = option(0.0, "seconds until a request fails; 0 = never", metavar="SECONDS")

    def __post_init__(self) -> None:
        """Raise UsageError for a value out of range, or two ways of naming models."""
        if self.models and (self.model or self.model_version):
            raise UsageError("--models names the models: leave out -m and -x")
        if not 0 <= self.timeout <= LONGEST_TIMEOUT_S:
            refuse("--timeout", "The value must be >= 0 seconds, and no more than 1e9.")


def _file(name: str, help: str) -> Path | None:  # noqa: A002 (`option` names it so)
    """Return an option for an existing file; `name` is its flag without `--ssl-`."""

    def parse(text: str) -> Path:
        if not Path(text).is_file():
            refuse(f"--ssl-{name}", "The value must be a valid file path.")
        return Path(text)

    return option(None, help, metavar="FILE", parse=parse)


def _number(flag: str, most: int, text: str) -> Callable[[str], int]:
    def parse(word: str) -> int:
        if not word.isdecimal() or int(word) > most:
            refuse(flag, text)
        return int(word)

    return parse


def _encoding(flag: str) -> Callable[[str], str]:
    def parse(word: str) -> str:
        if word.upper() not in ("PEM", "DER"):
            refuse(flag, f"Unsupported type provided: '{word}'. The available options are 'PEM' or 'DER'.")
        return word.upper()

    return parse


_HTTPS = "--ssl-https-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSpec:
    """Options for the certificates that the client trusts, and the one that it presents."""

    ssl_grpc_use_ssl: bool = option(False, "use TLS for gRPC")
    ssl_grpc_root_certifications_file: Path | None = _file(
        "grpc-root-certifications-file", "PEM certificates of trusted authorities"
    )
    ssl_grpc_private_key_file: Path | None = _file("grpc-private-key-file", "PEM private key of the client")
    ssl_grpc_certificate_chain_file: Path | None = _file(
        "grpc-certificate-chain-file", "PEM certificate chain of the client"
    )
    ssl_https_verify_peer: int = option(
        1,
        "1 = verify the server's certificate; 0 = accept any",
        parse=_number(_HTTPS + "verify-peer", 1, "The value must be either 0 or 1."),
    )
    ssl_https_verify_host: int = option(
        2,
        "1 or 2 = verify that the certificate matches the host; 0 = do not",
        parse=_number(_HTTPS + "verify-host", 2, "The value must be either 0, 1, or 2."),
    )
    ssl_https_ca_certificates_file: Path | None = _file(
        "https-ca-certificates-file", "PEM certificates of trusted authorities"
    )
    ssl_https_client_certificate_file: Path | None = _file(
        "https-client-certificate-file", "certificate of the client"
    )
    ssl_https_client_certificate_type: Literal["PEM", "DER"] = option(
        "PEM", "PEM or DER", parse=_encoding(_HTTPS + "client-certificate-type")
    )
    ssl_https_private_key_file: Path | None = _file("https-private-key-file", "private key of the client")
    ssl_https_private_key_type: Literal["PEM", "DER"] = option(
        "PEM", "PEM or DER", parse=_encoding(_HTTPS + "private-key-type")
    )

    def settings(self, protocol: str, *, secure: bool) -> TlsSettings | None:
        """Return the TLS settings for connections of a protocol; None if they are plaintext.

        `secure` is True if the URL asks for TLS. Raises UsageError for options that would have no
        effect.
        """
        https, grpc = self._https, self._grpc
        if protocol == "grpc":
            used = self.ssl_grpc_use_ssl or secure
            if grpc != TlsSettings() and not used:
                raise UsageError(
                    "--ssl-grpc-* files are given, but not --ssl-grpc-use-ssl, which makes use of them"
                )
            if https != TlsSettings():
                raise UsageError("--ssl-https-* options are given, but -i grpc goes by the --ssl-grpc-* ones")
            return grpc if used else None
        if self.ssl_grpc_use_ssl or grpc != TlsSettings():
            raise UsageError("--ssl-grpc-* options are given, but -i http goes by the --ssl-https-* ones")
        if https != TlsSettings() and not secure:
            raise UsageError("--ssl-https-* options are given, but the URL (-u) does not begin with https://")
        return https if secure else None

    @property
    def _https(self) -> TlsSettings:
        return TlsSettings(
            verify_peer=self.ssl_https_verify_peer != 0,
            verify_host=self.ssl_https_verify_host != 0,
            ca_file=self.ssl_https_ca_certificates_file,
            certificate_file=self.ssl_https_client_certificate_file,
            certificate_encoding=self.ssl_https_client_certificate_type,
            key_file=self.ssl_https_private_key_file,
            key_encoding=self.ssl_https_private_key_type,
        )

    @property
    def _grpc(self) -> TlsSettings:
        return TlsSettings(
            ca_file=self.ssl_grpc_root_certifications_file,
            certificate_file=self.ssl_grpc_certificate_chain_file,
            key_file=self.ssl_grpc_private_key_file,
        )
