"""Model repositories in a real S3 API: what is there, what is fetched, and what is left."""

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import serving
from tests.serving.repository.controlled import controlled, write
from tests.serving.repository.places import repositories, scan
from tests.serving.repository.stores.s3 import ENVIRONMENT, Bucket
from tpx.errors import UsageError
from tpx.serving.model_id import ModelId
from tpx.serving.repository.stores.addresses import StoreAddress, address_of
from tpx.serving.repository.stores.store import StoreRepository


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """Where models are fetched to."""
    directory = tmp_path / "mount"
    directory.mkdir()
    return directory


def repository(s3: Bucket, path: str, mount: Path) -> StoreRepository:
    address = address_of(f"{s3.url}/{path}")
    assert isinstance(address, StoreAddress)
    return StoreRepository(
        address, ENVIRONMENT | {"TRITON_AWS_MOUNT_DIRECTORY": str(mount)}, Path("/nowhere")
    )


def upload(s3: Bucket, tmp_path: Path, path: str, factor: float, version: int = 1, name: str = "net") -> None:
    file = write(tmp_path / "made", factor, version, name)
    s3.put(f"{path}/{name}/{version}/model.onnx", file.read_bytes())


def left(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def only(directory: Path) -> Path:
    """What alone lies in a directory."""
    (entry,) = directory.iterdir()
    return entry


def size_bytes(path: Path) -> int:
    return path.stat().st_size


async def test_a_model_is_fetched_when_it_is_loaded_and_removed_when_it_is_unloaded(
    s3: Bucket, tmp_path: Path, mount: Path
) -> None:
    upload(s3, tmp_path, "plain", 2)
    upload(s3, tmp_path, "plain", 5, name="other")
    s3.put("plain/net/config.pbtxt", b"max_batch_size: 8")
    async with controlled(repository(s3, "plain", mount)) as it:
        assert await it.control.names_on_disk() == {ModelId("net"): "", ModelId("other"): ""}
        assert left(mount) == []
        await it.load()
        assert await it.factor() == 2
        assert it.repository.get("net").config.max_batch_size == 8
        assert [path.partition("/")[2] for path in left(mount)] == ["1/model.onnx", "config.pbtxt"]
        await it.unload()
        await it.until(lambda: not any(mount.iterdir()))


async def test_what_has_not_changed_is_not_loaded_again_and_what_has_is(
    s3: Bucket, tmp_path: Path, mount: Path
) -> None:
    upload(s3, tmp_path, "changes", 2)
    async with controlled(repository(s3, "changes", mount)) as it:
        await it.load()
        before = it.repository.get("net")
        await it.load()
        assert it.repository.get("net") is before
        upload(s3, tmp_path, "changes", 3)
        await it.load()
        assert await it.factor() == 3
        await it.until(lambda: len(list(mount.iterdir())) == 1)


async def test_polling_sees_what_comes_changes_and_goes(s3: Bucket, tmp_path: Path, mount: Path) -> None:
    upload(s3, tmp_path, "polled", 2)
    async with controlled(repository(s3, "polled", mount), mode="poll", poll_s=60) as it:
        assert await it.factor() == 2
        one = it.repository.get("net")
        await it.control.poll()
        assert it.repository.get("net") is one
        upload(s3, tmp_path, "polled", 3)
        upload(s3, tmp_path, "polled", 7, name="new")
        await it.control.poll()
        assert await it.factor() == 3
        assert await it.factor(name="new") == 7
        s3.delete("polled/net/")
        await it.control.poll()
        await it.until(lambda: "net:1" not in it.states or "UNAVAILABLE" in it.states["net:1"])


async def test_only_versions_that_are_wanted_are_fetched(s3: Bucket, tmp_path: Path, mount: Path) -> None:
    for version in (1, 2, 3):
        upload(s3, tmp_path, "versions", version, version)
    async with controlled(repository(s3, "versions", mount)) as it:
        await it.load()
        assert await it.factor() == 3
        assert [v for v in (1, 2, 3) if size_bytes(only(mount) / str(v) / "model.onnx")] == [3]


async def test_a_failed_load_leaves_what_served_and_no_files(s3: Bucket, tmp_path: Path, mount: Path) -> None:
    upload(s3, tmp_path, "broken", 2)
    async with controlled(repository(s3, "broken", mount)) as it:
        await it.load()
        s3.put("broken/net/1/model.onnx", b"broken")
        assert "version 1 is at UNAVAILABLE state" in await it.refusal(it.load())
        assert await it.factor() == 2
        assert only(mount).is_dir()


async def test_markers_of_directories_and_configurations_by_name(
    s3: Bucket, tmp_path: Path, mount: Path
) -> None:
    s3.put("marks/net/")
    s3.put("marks/net/1/")
    s3.put("marks/net/configs/big.pbtxt", b"max_batch_size: 16")
    s3.put("marks/top.txt", b"no model")
    upload(s3, tmp_path, "marks", 2)
    s3.put("marks/ensemble/1/")
    s3.put("marks/ensemble/config.pbtxt", b"platform: 'ensemble'")
    found = {source.name: source for source in scan([repository(s3, "marks", mount)])}
    assert sorted(found) == ["ensemble", "net"]
    assert list(found["ensemble"].versions) == [1]
    async with controlled(repository(s3, "marks", mount), model_config_name="big") as it:
        await it.load()
        assert it.repository.get("net").config.max_batch_size == 16


@pytest.mark.parametrize(
    "key",
    [
        "hostile/evil/../../out",
        "hostile/evil/1/./x",
        "hostile/evil//etc/x",
        "hostile/evil/1/control\x01",
        "hostile/evil/1/a\\b",
        "hostile/evil/" + "x" * 300,
    ],
)
async def test_no_name_leads_out_of_the_directory_and_the_other_models_are_served(
    s3: Bucket, tmp_path: Path, mount: Path, key: str
) -> None:
    upload(s3, tmp_path, "hostile", 2)
    upload(s3, tmp_path, "hostile", 2, name="evil")
    s3.put(key, b"x")
    before = left(tmp_path)
    try:
        async with controlled(repository(s3, "hostile", mount), mode="none") as it:
            assert await it.factor() == 2
            assert it.states["evil:-"].startswith("UNAVAILABLE")
            assert it.repository.failures() == ["evil"]
            assert left(mount) == [f"{only(mount).name}/1/model.onnx"]
    finally:
        s3.delete("hostile/")
    assert [path for path in left(tmp_path) if not path.startswith("made/")] == [
        path for path in before if not path.startswith("made/")
    ]


def test_large_files_come_in_parts(
    s3: Bucket, tmp_path: Path, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpx.serving.repository.stores.store._PART_BYTES", 1000)
    data = os.urandom(12_345)
    s3.put("large/net/1/model.onnx", data)
    source = repositories(repository(s3, "large", mount)).find(ModelId("net"))
    assert source is not None
    assert source.origin is not None
    source.origin.fetch(mount)
    source.origin.fetch_version(mount, 1)
    assert (mount / "1" / "model.onnx").read_bytes() == data


def test_a_file_that_changes_while_it_is_fetched_fails_the_load(
    s3: Bucket, tmp_path: Path, mount: Path
) -> None:
    s3.put("moving/net/1/model.onnx", b"first")
    source = repositories(repository(s3, "moving", mount)).find(ModelId("net"))
    assert source is not None
    assert source.origin is not None
    s3.put("moving/net/1/model.onnx", b"other")
    with pytest.raises(Exception, match="changed during the download"):
        source.origin.fetch_version(mount, 1)


@pytest.mark.parametrize("url", ["s3://http://127.0.0.1:9/models", "{}/../no-such-bucket/x"])
def test_a_store_that_cannot_be_read_is_an_error_that_says_why(
    s3: Bucket, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpx.serving.repository.stores.store._RETRY", {"max_retries": 0})
    address = address_of(url.format("").replace("/../", f"{s3.url.rpartition('/')[0]}/"))
    assert isinstance(address, StoreAddress)
    with pytest.raises(UsageError, match=r"cannot read model repository 's3://http://127\.0\.0\.1") as caught:
        StoreRepository(address, ENVIRONMENT, Path("/nowhere")).scan()
    assert "\n" not in caught.value.message


def test_without_the_library_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(UsageError, match=r"pip install 'tpx\[cloud\]'"):
        StoreRepository(StoreAddress(scheme="gs", bucket="b"), {}, Path("/nowhere"))


def test_a_mount_directory_that_is_none_is_refused() -> None:
    environment = ENVIRONMENT | {"TRITON_AWS_MOUNT_DIRECTORY": "/no/such"}
    with pytest.raises(UsageError, match="TRITON_AWS_MOUNT_DIRECTORY '/no/such' is not a directory"):
        StoreRepository(StoreAddress(scheme="s3", bucket="b"), environment, Path("/nowhere"))


def test_a_server_serves_from_a_store(
    s3: Bucket, tmp_path: Path, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(s3, tmp_path, "served", 4)
    for name, value in {**ENVIRONMENT, "TRITON_AWS_MOUNT_DIRECTORY": str(mount)}.items():
        monkeypatch.setenv(name, value)
    before = threading.active_count()
    address: Any = address_of(f"{s3.url}/served")
    with serving([address]) as live:
        request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        assert live.infer("net", request).json["outputs"][0]["data"] == [4, 8]
        assert live.get("/v2/health/ready").status == 200
    assert list(mount.iterdir()) == []
    assert threading.active_count() <= before + 1
