"""TLS of the load generator: options for trusted certificates and the client certificate."""

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.errors import UsageError
from tpx.options import Options, option, refuse

Encoding = Literal["PEM", "DER"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How to check the server's certificate, and the certificate that the client presents.

    Without `ca_file` the system's certificates are trusted. `verify_host` has no effect unless
    `verify_peer` is set.
    """

    verify_peer: bool = True
    verify_host: bool = True
    ca_file: Path | None = None
    certificate_file: Path | None = None
    certificate_encoding: Encoding = "PEM"
    key_file: Path | None = None
    key_encoding: Encoding = "PEM"


def _make_file_option(name: str, help: str) -> Path | None:  # noqa: A002 (`option` names it so)
    """Return an option for an existing file; `name` is its flag without `--ssl-`."""

    def parse(text: str) -> Path:
        if not Path(text).is_file():
            refuse(f"--ssl-{name}", "The value must be a valid file path.")
        return Path(text)

    return option(None, help, metavar="FILE", parse=parse)


_ENCODINGS = "Unsupported type provided: '{}'. The available options are 'PEM' or 'DER'."


class TlsSpec(Options):
    """Options for the certificates that the client trusts, and the one that it presents."""

    ssl_grpc_use_ssl: bool = option(False, "use TLS for gRPC")
    ssl_grpc_root_certifications_file: Path | None = _make_file_option(
        "grpc-root-certifications-file", "PEM certificates of trusted authorities"
    )
    ssl_grpc_private_key_file: Path | None = _make_file_option(
        "grpc-private-key-file", "PEM private key of the client"
    )
    ssl_grpc_certificate_chain_file: Path | None = _make_file_option(
        "grpc-certificate-chain-file", "PEM certificate chain of the client"
    )
    ssl_https_verify_peer: Literal[0, 1] = option(
        1,
        "1 = verify the server's certificate; 0 = accept any",
        refusal="The value must be either 0 or 1.",
    )
    ssl_https_verify_host: Literal[0, 1, 2] = option(
        2,
        "1 or 2 = verify that the certificate matches the host; 0 = do not",
        refusal="The value must be either 0, 1, or 2.",
    )
    ssl_https_ca_certificates_file: Path | None = _make_file_option(
        "https-ca-certificates-file", "PEM certificates of trusted authorities"
    )
    ssl_https_client_certificate_file: Path | None = _make_file_option(
        "https-client-certificate-file", "certificate of the client"
    )
    ssl_https_client_certificate_type: Encoding = option("PEM", "PEM or DER", refusal=_ENCODINGS)
    ssl_https_private_key_file: Path | None = _make_file_option(
        "https-private-key-file", "private key of the client"
    )
    ssl_https_private_key_type: Encoding = option("PEM", "PEM or DER", refusal=_ENCODINGS)

    def settings(self, protocol: str, *, secure: bool) -> TlsSettings | None:
        """Return the TLS settings for connections of a protocol; None if they are plaintext.

        `secure` is True if the URL asks for TLS. Raises UsageError for options that would have no
        effect.
        """
        plain = TlsSettings()
        https = TlsSettings(
            verify_peer=self.ssl_https_verify_peer != 0,
            verify_host=self.ssl_https_verify_host != 0,
            ca_file=self.ssl_https_ca_certificates_file,
            certificate_file=self.ssl_https_client_certificate_file,
            certificate_encoding=self.ssl_https_client_certificate_type,
            key_file=self.ssl_https_private_key_file,
            key_encoding=self.ssl_https_private_key_type,
        )
        grpc = TlsSettings(
            ca_file=self.ssl_grpc_root_certifications_file,
            certificate_file=self.ssl_grpc_certificate_chain_file,
            key_file=self.ssl_grpc_private_key_file,
        )
        if protocol == "grpc":
            if grpc != plain and not (self.ssl_grpc_use_ssl or secure):
                raise UsageError(
                    "--ssl-grpc-* files are given, but not --ssl-grpc-use-ssl, which enables them"
                )
            if https != plain:
                raise UsageError("--ssl-https-* options are given, but -i grpc uses the --ssl-grpc-* ones")
            return grpc if self.ssl_grpc_use_ssl or secure else None
        if self.ssl_grpc_use_ssl or grpc != plain:
            raise UsageError("--ssl-grpc-* options are given, but -i http uses the --ssl-https-* ones")
        if https != plain and not secure:
            raise UsageError("--ssl-https-* options are given, but the URL (-u) does not begin with https://")
        return https if secure else None


def tls_context(settings: TlsSettings | None) -> ssl.SSLContext | None:
    """Return the TLS context for connections, None for those without TLS.

    Raises UsageError naming the file that cannot be used.
    """
    if settings is None:
        return None
    context = ssl.create_default_context()
    context.check_hostname = settings.verify_peer and settings.verify_host
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify_peer else ssl.CERT_NONE
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(settings.ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise UsageError(f"cannot use the CA certificates in '{settings.ca_file}': {exc}") from exc
    if settings.certificate_file is not None:
        key = settings.key_file or settings.certificate_file
        try:
            text = _read_as_pem(settings.certificate_file, settings.certificate_encoding, "CERTIFICATE")
            if settings.key_file is not None:
                label = (
                    _find_key_label(settings.key_file.read_bytes()) if settings.key_encoding == "DER" else ""
                )
                text += _read_as_pem(settings.key_file, settings.key_encoding, label)
            # load_cert_chain reads from files only
            with tempfile.NamedTemporaryFile(suffix=".pem") as file:
                file.write(text)
                file.flush()
                context.load_cert_chain(file.name, password=_refuse_password)
        except (OSError, ValueError, ssl.SSLError) as exc:
            raise UsageError(
                f"cannot use the client certificate '{settings.certificate_file}' with the key '{key}': {exc}"
            ) from exc
    elif settings.key_file is not None:
        raise UsageError(f"the private key '{settings.key_file}' is given without its certificate")
    return context


def _refuse_password() -> bytes:
    raise ValueError("the private key is encrypted; use an unencrypted one")


def _read_as_pem(path: Path, encoding: Encoding, label: str) -> bytes:
    data = path.read_bytes()
    if encoding == "PEM":
        return data + b"\n"
    lines = base64.encodebytes(data)
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label.encode(), lines, label.encode())


def _find_key_label(der: bytes) -> str:
    """Return the PEM label of a key: PKCS #8, or the older forms for RSA (RFC 8017 A.1.2) and elliptic
    curves (RFC 5915).

    All are a sequence that begins with a version; the type of the next element tells them apart.
    """
    # skip the sequence's tag and its length, which may take several bytes
    at = 2 + (der[1] & 127 if len(der) > 1 and der[1] > 127 else 0)
    labels = {0x30: "PRIVATE KEY", 0x02: "RSA PRIVATE KEY", 0x04: "EC PRIVATE KEY"}
    if len(der) < at + 4 or der[0] != 0x30 or der[at : at + 2] != b"\x02\x01" or der[at + 3] not in labels:
        raise ValueError("it is not a private key in DER form")
    return labels[der[at + 3]]
