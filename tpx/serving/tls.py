"""TLS of the endpoints, from the options."""

import ssl
from pathlib import Path

from tpx.errors import UsageError
from tpx.serving.options import ServeConfig


def http_tls(config: ServeConfig) -> ssl.SSLContext | None:
    """The context of the HTTP endpoint; None where it speaks plainly. Raises UsageError."""
    if not config.http_use_ssl:
        _refuse_unused("http", config.http_server_cert, config.http_server_key, config.http_root_cert)
        return None
    return _tls("http", config.http_server_cert, config.http_server_key, config.http_root_cert, ["http/1.1"])


def grpc_tls(config: ServeConfig) -> ssl.SSLContext | None:
    """The context of the gRPC endpoint; None where it speaks plainly. Raises UsageError."""
    if not (config.grpc_use_ssl or config.grpc_use_ssl_mutual):
        _refuse_unused("grpc", config.grpc_server_cert, config.grpc_server_key, config.grpc_root_cert)
        return None
    if config.grpc_use_ssl_mutual and config.grpc_root_cert is None:
        raise UsageError("--grpc-use-ssl-mutual needs --grpc-root-cert")
    root = config.grpc_root_cert if config.grpc_use_ssl_mutual else None
    return _tls("grpc", config.grpc_server_cert, config.grpc_server_key, root, ["h2"])


def _refuse_unused(what: str, *files: Path | None) -> None:
    """Who names certificates believes that they are used."""
    if any(files):
        raise UsageError(
            f"certificates are given for {what}, but not --{what}-use-ssl, which makes use of them"
        )


def _tls(
    what: str, cert: Path | None, key: Path | None, root: Path | None, protocols: list[str]
) -> ssl.SSLContext:
    """A server's context; with `root`, clients must present a certificate that it signed."""
    if cert is None or key is None:
        raise UsageError(f"--{what}-use-ssl needs --{what}-server-cert and --{what}-server-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(protocols)
    try:
        context.load_cert_chain(cert, key)
        if root is not None:
            context.load_verify_locations(root)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as exc:
        files = [f"certificate '{cert}'", f"key '{key}'", *([f"root '{root}'"] if root is not None else [])]
        missing = [file for file in (cert, key, root) if file is not None and not file.is_file()]
        why = f"there is no file '{missing[0]}'" if missing else exc
        raise UsageError(f"cannot use the {what} {' or '.join(files)}: {why}") from exc
    return context
