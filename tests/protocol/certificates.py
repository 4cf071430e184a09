"""Certificates of an authority of our own, for tests of TLS."""

import ssl
from dataclasses import dataclass
from functools import cache

import trustme


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """An authority, a server that it signed, and a client that it signed."""

    authority: trustme.CA
    server: trustme.LeafCert
    client: trustme.LeafCert

    def server_context(self, *alpn: str, mutual: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.configure_cert(context)
        context.set_alpn_protocols(list(alpn))
        if mutual:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self, *alpn: str, certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if certificate:
            self.client.configure_cert(context)
        return context

    @property
    def authority_pem(self) -> bytes:
        return self.authority.cert_pem.bytes()


@cache
def certificates() -> Certificates:
    """Made once in a run: making keys takes its time."""
    authority = trustme.CA()
    return Certificates(
        authority=authority,
        server=authority.issue_cert("127.0.0.1", "localhost"),
        client=authority.issue_cert("client.example"),
    )


def key_and_chain(leaf: trustme.LeafCert) -> tuple[bytes, bytes]:
    """PEM of the private key and of the certificate chain."""
    return leaf.private_key_pem.bytes(), b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
