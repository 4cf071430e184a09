"""TLS of the load generator against tpx itself: whom it trusts, what it shows, in which forms."""

import asyncio
import base64
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.perf.clients.running import level
from tests.perf.parsing import parse
from tests.protocol.certificates import certificates, key_and_chain
from tests.serving.live import Live, serving, write_models
from tpx.cli.perf import main
from tpx.errors import UsageError, WireError
from tpx.perf.clients.tls import TlsSettings, tls_context
from tpx.protocol.http1.client import HttpConnector

CLIENTS = pytest.mark.parametrize("client", ["tpx", "library"])
FEW = ("-m", "double", "--request-count", "6", "--concurrency-range", "2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """PEM files of the authority, and of the client with its key; the same in DER."""

    authority: str
    certificate: str
    key: str
    certificate_der: str
    key_der: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory: Path = tmp_path_factory.mktemp("certificates")
    key, chain = key_and_chain(certificates().client)
    contents = {
        "authority": certificates().authority_pem,
        "certificate": chain,
        "key": key,
        "certificate_der": ssl.PEM_cert_to_DER_cert(chain.decode()),
        "key_der": base64.b64decode(b"".join(key.strip().split(b"\n")[1:-1])),
    }
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return Files(**{name: str(directory / name) for name in contents})


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that both sides of must show certificates to."""
    repository: Path = tmp_path_factory.mktemp("models")
    write_models(repository)
    key, chain = key_and_chain(certificates().server)
    for name, content in (("key", key), ("cert", chain), ("root", certificates().authority_pem)):
        (repository.parent / f"server-{name}.pem").write_bytes(content)
    cert, secret, root = (repository.parent / f"server-{name}.pem" for name in ("cert", "key", "root"))
    with serving(
        repository,
        http_use_ssl=True,
        http_server_cert=cert,
        http_server_key=secret,
        http_root_cert=root,
        grpc_use_ssl_mutual=True,
        grpc_server_cert=cert,
        grpc_server_key=secret,
        grpc_root_cert=root,
    ) as server:
        yield server


def https(live: Live) -> tuple[str, ...]:
    return (*FEW, "-u", f"https://127.0.0.1:{live.ports['HTTPService']}")


def shown(files: Files) -> tuple[str, ...]:
    certificate = "--ssl-https-client-certificate-file", files.certificate
    return (*certificate, "--ssl-https-private-key-file", files.key)


@CLIENTS
def test_https_checks_the_server_and_shows_the_client(live: Live, files: Files, client: str) -> None:
    trusting = ("--ssl-https-ca-certificates-file", files.authority)
    result = level(*https(live), *trusting, *shown(files), "--client", client)
    assert (result.requests, result.failed) == (6, 0)


def test_certificates_and_keys_may_be_der(live: Live, files: Files) -> None:
    result = level(
        *https(live),
        *("--ssl-https-ca-certificates-file", files.authority),
        *("--ssl-https-client-certificate-file", files.certificate_der),
        *("--ssl-https-client-certificate-type", "der"),
        *("--ssl-https-private-key-file", files.key_der, "--ssl-https-private-key-type", "DER"),
    )
    assert (result.requests, result.failed) == (6, 0)


def test_a_server_of_an_unknown_authority_is_refused_unless_told_otherwise(live: Live, files: Files) -> None:
    with pytest.raises(WireError, match="certificate verify failed"):
        level(*https(live), *shown(files))
    assert level(*https(live), *shown(files), "--ssl-https-verify-peer", "0").requests == 6


@CLIENTS
def test_who_trusts_nobody_is_told_how(live: Live, capfd: pytest.CaptureFixture[str], client: str) -> None:
    grpc = (*FEW, "-i", "grpc", "-u", f"127.0.0.1:{live.ports['GRPCInferenceService']}", "--ssl-grpc-use-ssl")
    for words in (https(live), grpc):
        assert main((*words, "--client", client)) == 99
        error = capfd.readouterr().err
        assert "certificate verify failed" in error.lower().replace("_", " ")
        assert "--ssl-https-ca-certificates-file, over gRPC --ssl-grpc-root-certifications-file)" in error


def test_the_name_in_the_certificate_is_checked_unless_told_otherwise(files: Files) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates().authority.issue_cert("elsewhere.example").configure_cert(server_side)

    async def connect(settings: TlsSettings) -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=server_side)
        port = server.sockets[0].getsockname()[1]
        try:
            (await HttpConnector("127.0.0.1", port, tls=tls_context(settings)).connect()).close()
        finally:
            server.close()

    trusting = TlsSettings(ca_file=Path(files.authority))
    with pytest.raises(WireError, match=r"(?i)ip address mismatch"):
        asyncio.run(connect(trusting))
    asyncio.run(connect(replace(trusting, verify_host=False)))


@CLIENTS
@pytest.mark.parametrize("streaming", [(), ("--streaming",)])
def test_grpc_over_tls(live: Live, files: Files, streaming: tuple[str, ...], client: str) -> None:
    result = level(
        *("--client", client),
        *(*FEW, "-i", "grpc", "-u", f"127.0.0.1:{live.ports['GRPCInferenceService']}", *streaming),
        *("--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", files.authority),
        *("--ssl-grpc-certificate-chain-file", files.certificate),
        *("--ssl-grpc-private-key-file", files.key),
    )
    assert (result.requests, result.failed) == (6, 0)


def settings_of(directory: Path, data: bytes, certificate: str) -> TlsSettings:
    (directory / "key").write_bytes(data)
    return TlsSettings(certificate_file=Path(certificate), key_file=directory / "key", key_encoding="DER")


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_every_form_of_a_der_key_is_read(
    tmp_path: Path, files: Files, kind: str, form: PrivateFormat
) -> None:
    key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
    data = key.private_bytes(Encoding.DER, form, NoEncryption())
    # it is read, and then found to be another certificate's
    with pytest.raises(UsageError, match=r"(?i)mismatch|no certificate assigned"):
        tls_context(settings_of(tmp_path, data, files.certificate))


def test_what_is_no_key_is_named(tmp_path: Path, files: Files) -> None:
    with pytest.raises(UsageError, match="it is not a private key in DER form"):
        tls_context(settings_of(tmp_path, b"nonsense", files.certificate))


def test_an_encrypted_key_is_refused_instead_of_asking_for_its_password(tmp_path: Path, files: Files) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "key").write_bytes(locked)
    with pytest.raises(UsageError, match="encrypted"):
        tls_context(TlsSettings(certificate_file=Path(files.certificate), key_file=tmp_path / "key"))


def test_a_file_that_holds_no_authority_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    with pytest.raises(UsageError, match="cannot use the CA certificates in"):
        tls_context(TlsSettings(ca_file=tmp_path / "ca"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--ssl-https-verify-peer", "0"), "does not begin with https://"),
        (("--ssl-grpc-use-ssl",), "-i http uses the --ssl-https-* ones"),
        (("-i", "grpc", "--ssl-https-verify-host", "0"), "-i grpc uses the --ssl-grpc-* ones"),
        (("-i", "grpc", "--ssl-grpc-root-certifications-file", __file__), "not --ssl-grpc-use-ssl"),
        (
            ("--ssl-https-verify-peer", "2"),
            "Failed to parse --ssl-https-verify-peer. The value must be either",
        ),
        (("--ssl-https-verify-host", "x"), "either 0, 1, or 2."),
        (("--ssl-https-private-key-file", "/nowhere"), "The value must be a valid file path."),
        (("--ssl-https-private-key-type", "P12"), "The available options are 'PEM' or 'DER'."),
        (("-u", "https://h:1", "--ssl-https-private-key-file", __file__), ""),
    ],
)
def test_a_setting_of_tls_that_nothing_would_use_is_an_error(words: tuple[str, ...], text: str) -> None:
    if not text:
        config = parse(*words)
        assert config.tls.settings("http", secure=True) == TlsSettings(key_file=Path(__file__))
        return
    with pytest.raises(UsageError) as caught:
        parse(*words)
    assert text in caught.value.message
