"""Foreign clients over TLS, with and without certificates of their own, against a real server."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from tests.e2e.child import serve
from tests.protocol.certificates import certificates, key_and_chain
from tpx.examples import write

pytestmark = pytest.mark.e2e

VALUES = np.arange(16, dtype=np.float32).reshape(1, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """A server that wants certificates on both endpoints, and the files of a client that has one."""

    http: str
    grpc: str
    authority: Path
    key: Path
    chain: Path


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    write(folder / "models", ["identity"])
    made = certificates()
    files = {"root.pem": made.authority_pem}
    files["server.key"], files["server.pem"] = key_and_chain(made.server)
    files["client.key"], files["client.pem"] = key_and_chain(made.client)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    words = ["--http-use-ssl", "--grpc-use-ssl", "--grpc-use-ssl-mutual"]
    for service in ("http", "grpc"):
        for option, name in (
            ("server-cert", "server.pem"),
            ("server-key", "server.key"),
            ("root-cert", "root.pem"),
        ):
            words.append(f"--{service}-{option}={folder / name}")
    with serve("--model-repository", folder / "models", *words) as child:
        child.ready()
        yield Secured(
            http=f"127.0.0.1:{child.port('HTTPService')}",
            grpc=f"127.0.0.1:{child.port('GRPCInferenceService')}",
            authority=folder / "root.pem",
            key=folder / "client.key",
            chain=folder / "client.pem",
        )
        assert child.stop() == 0
        assert child.err == []


def infer(module: Any, client: Any) -> Any:
    (meta,) = _inputs(client)
    tensor = module.InferInput(meta, VALUES.shape, "FP32")
    tensor.set_data_from_numpy(VALUES)
    result = client.infer("identity", [tensor])
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    name = outputs[0]["name"] if isinstance(response, dict) else outputs[0].name
    return result.as_numpy(name)


def _inputs(client: Any) -> list[str]:
    metadata = client.get_model_metadata("identity")
    inputs = metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs
    return [item["name"] if isinstance(item, dict) else item.name for item in inputs]


def https_client(secured: Secured, *, certificate: bool) -> Any:
    def context() -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(secured.authority))
        if certificate:
            made.load_cert_chain(secured.chain, secured.key)
        return made

    return tritonclient.http.InferenceServerClient(secured.http, ssl=True, ssl_context_factory=context)


def grpcs_client(secured: Secured, *, certificate: bool) -> Any:
    files = {"private_key": str(secured.key), "certificate_chain": str(secured.chain)} if certificate else {}
    return tritonclient.grpc.InferenceServerClient(
        secured.grpc, ssl=True, root_certificates=str(secured.authority), **files
    )


def test_tritonclient_over_https(secured: Secured) -> None:
    with https_client(secured, certificate=True) as client:
        assert client.is_server_ready()
        np.testing.assert_array_equal(infer(tritonclient.http, client), VALUES)


def test_tritonclient_over_grpc_with_tls(secured: Secured) -> None:
    with grpcs_client(secured, certificate=True) as client:
        assert client.is_server_ready()
        np.testing.assert_array_equal(infer(tritonclient.grpc, client), VALUES)


def test_without_a_certificate_nobody_is_served(secured: Secured) -> None:
    with grpcs_client(secured, certificate=False) as client, pytest.raises(InferenceServerException):
        client.is_server_ready(client_timeout=5)
    with https_client(secured, certificate=False) as client, pytest.raises((OSError, HTTPConnectionClosed)):
        client.is_server_ready()


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_curl_agrees_on_the_protocol_by_alpn(secured: Secured, service: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl not found (Debian: curl)")
    address = secured.http if service == "http" else secured.grpc
    say = ["-sS", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"]
    files = ["--cacert", str(secured.authority), "--cert", str(secured.chain), "--key", str(secured.key)]
    done = subprocess.run(
        ["curl", *say, *files, f"https://{address}/v2/health/ready"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1.1 200" if service == "http" else "2 405", "")
