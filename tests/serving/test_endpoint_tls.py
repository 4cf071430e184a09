"""TLS of the endpoints, from the options."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from tpx.errors import UsageError
from tpx.options import build
from tpx.serving.endpoints import grpc_tls, http_tls
from tpx.serving.options import ServeConfig


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate, its key, and the authority that signed it."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    paths = {name: directory / f"{name}.pem" for name in ("cert", "key", "root")}
    certificate.cert_chain_pems[0].write_to_path(str(paths["cert"]))
    certificate.private_key_pem.write_to_path(str(paths["key"]))
    authority.cert_pem.write_to_path(str(paths["root"]))
    return paths


def http_config(files: dict[str, Path], **changes: Any) -> ServeConfig:
    """HTTPS with these files."""
    fields: dict[str, Any] = {
        "http_use_ssl": True,
        "http_server_cert": files["cert"],
        "http_server_key": files["key"],
    }
    return build(ServeConfig, fields | changes)


def grpc_config(files: dict[str, Path], **changes: Any) -> ServeConfig:
    """gRPC over TLS with these files."""
    fields: dict[str, Any] = {
        "grpc_use_ssl": True,
        "grpc_server_cert": files["cert"],
        "grpc_server_key": files["key"],
    }
    return build(ServeConfig, fields | changes)


def test_without_a_word_nothing_is_encrypted() -> None:
    assert http_tls(ServeConfig()) is None
    assert grpc_tls(ServeConfig()) is None


@pytest.mark.parametrize("field", ["http_server_cert", "http_server_key", "http_root_cert"])
def test_certificates_that_would_not_be_used_are_refused(field: str) -> None:
    with pytest.raises(UsageError, match="certificates are given for http, but not --http-use-ssl"):
        http_tls(build(ServeConfig, {field: Path("/c")}))
    with pytest.raises(UsageError, match="certificates are given for grpc, but not --grpc-use-ssl"):
        grpc_tls(build(ServeConfig, {field.replace("http", "grpc"): Path("/c")}))


def test_old_versions_are_not_spoken(files: dict[str, Path]) -> None:
    for context in (http_tls(http_config(files)), grpc_tls(grpc_config(files))):
        assert context is not None
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
        assert context.verify_mode is ssl.CERT_NONE


def test_with_a_root_clients_must_show_a_certificate(files: dict[str, Path]) -> None:
    http = http_tls(http_config(files, http_root_cert=files["root"]))
    grpc = grpc_tls(grpc_config(files, grpc_use_ssl_mutual=True, grpc_root_cert=files["root"]))
    for context in (http, grpc):
        assert context is not None
        assert context.verify_mode is ssl.CERT_REQUIRED


def test_mutual_tls_is_tls(files: dict[str, Path]) -> None:
    config = grpc_config(files, grpc_use_ssl=False, grpc_use_ssl_mutual=True, grpc_root_cert=files["root"])
    assert grpc_tls(config) is not None


@pytest.mark.parametrize("missing", ["http_server_cert", "http_server_key"])
def test_certificate_and_key_belong_together(files: dict[str, Path], missing: str) -> None:
    with pytest.raises(UsageError, match="--http-use-ssl needs --http-server-cert and --http-server-key"):
        http_tls(http_config(files, **{missing: None}))


def test_mutual_tls_needs_a_root(files: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="--grpc-use-ssl-mutual needs --grpc-root-cert"):
        grpc_tls(grpc_config(files, grpc_use_ssl_mutual=True))


@pytest.mark.parametrize("wrong", ["grpc_server_cert", "grpc_server_key"])
def test_files_that_are_no_certificates_are_named(files: dict[str, Path], wrong: str) -> None:
    for path in (Path("/nowhere.pem"), Path(__file__)):
        with pytest.raises(UsageError, match="cannot use the grpc certificate") as caught:
            grpc_tls(grpc_config(files, **{wrong: path}))
        assert str(path) in caught.value.message
        assert "None" not in caught.value.message
        assert ("there is no file '/nowhere.pem'" in caught.value.message) == (path == Path("/nowhere.pem"))


def test_a_key_of_another_certificate_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))
    with pytest.raises(UsageError, match="cannot use the http certificate"):
        http_tls(http_config(files, http_server_key=other))
