"""TLS settings of the load generator: trusted certificates and the client certificate."""

import base64
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpx.errors import UsageError

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


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the TLS context for connections. Raises UsageError naming the file that cannot be used."""
    context = ssl.create_default_context()
    context.check_hostname = settings.verify_peer and settings.verify_host
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify_peer else ssl.CERT_NONE
    if settings.ca_file is not None:
        try:
            context.load_verify_locations(settings.ca_file)
        except (OSError, ssl.SSLError) as exc:
            raise UsageError(f"cannot use the CA certificates in '{settings.ca_file}': {exc}") from exc
    if settings.certificate_file is not None:
        _present(context, settings, settings.certificate_file)
    elif settings.key_file is not None:
        raise UsageError(f"the private key '{settings.key_file}' is given without its certificate")
    return context


def _present(context: ssl.SSLContext, settings: TlsSettings, certificate: Path) -> None:
    """Load the client certificate; its key may be in the same file."""
    try:
        text = _as_pem(certificate, settings.certificate_encoding, "CERTIFICATE")
        if settings.key_file is not None:
            label = _key_label(settings.key_file.read_bytes()) if settings.key_encoding == "DER" else ""
            text += _as_pem(settings.key_file, settings.key_encoding, label)
        # load_cert_chain reads from files only
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(text)
            file.flush()
            context.load_cert_chain(file.name, password=_no_password)
    except (OSError, ValueError, ssl.SSLError) as exc:
        raise UsageError(
            f"cannot use the client certificate '{certificate}' with the key "
            f"'{settings.key_file or certificate}': {exc}"
        ) from exc


def _no_password() -> bytes:
    raise ValueError("the private key is encrypted; give one that is not")


def _as_pem(path: Path, encoding: Encoding, label: str) -> bytes:
    data = path.read_bytes()
    if encoding == "PEM":
        return data + b"\n"
    lines = base64.encodebytes(data)
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label.encode(), lines, label.encode())


def _key_label(der: bytes) -> str:
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
