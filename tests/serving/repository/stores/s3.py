"""A real S3 API on loopback, and buckets in it."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Bucket:
    """One bucket of a running server."""

    def __init__(self, client: Any, endpoint: str, name: str) -> None:
        self._client = client
        self._name = name
        self.url = f"s3://{endpoint}/{name}"

    def put(self, key: str, data: bytes = b"") -> None:
        self._client.put_object(Bucket=self._name, Key=key, Body=data)

    def delete(self, prefix: str) -> None:
        for item in self._client.list_objects_v2(Bucket=self._name, Prefix=prefix).get("Contents", ()):
            self._client.delete_object(Bucket=self._name, Key=item["Key"])

    def upload(self, directory: Path, prefix: str) -> None:
        """All files of a directory."""
        for path in directory.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(directory).as_posix()}", path.read_bytes())


@contextmanager
def storage() -> Iterator[Bucket]:
    """An S3 server of this process with the bucket `models`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client("s3", endpoint_url=endpoint, **_boto(ENVIRONMENT))
        client.create_bucket(Bucket="models")
        yield Bucket(client, endpoint, "models")
        client.close()
    finally:
        server.stop()


def _boto(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        "aws_access_key_id": environment["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
        "region_name": environment["AWS_DEFAULT_REGION"],
    }
