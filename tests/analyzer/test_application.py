"""Applying a configuration and rolling it back: what is written, what is kept, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tpx.analyzer.application import carry_out, changes_back, changes_to
from tpx.analyzer.results.measurement import Configuration, Variant
from tpx.analyzer.variants import configure, fingerprint
from tpx.errors import ConfigError, MeasurementError, UsageError
from tpx.protocol import model_config

ORIGINAL = """# Owned by the vision team.
backend: "onnxruntime"
max_batch_size: 8
instance_group { count: 1 kind: KIND_CPU }
"""
DEFAULT = {
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models" / "net" / "1").mkdir(parents=True)
    (tmp_path / "models" / "net" / "1" / "model.onnx").write_bytes(b"weights")
    (tmp_path / "models" / "net" / "config.pbtxt").write_text(ORIGINAL)
    return tmp_path / "models"


def variant(**delta: Any) -> Configuration:
    return configure(Variant(models=("net",), name="net_config_3", delta=delta), DEFAULT)


@pytest.mark.parametrize(
    ("delta", "written"),
    [
        ({"instance_group": [{"count": 4, "kind": "KIND_CPU"}]}, ["instance_group"]),
        ({"max_batch_size": 16}, ["max_batch_size"]),
        ({"dynamic_batching": {}}, ["max_batch_size", "dynamic_batching"]),
    ],
)
def test_a_new_file_says_only_what_differs_from_the_default(
    repository: Path, delta: dict[str, Any], written: list[str]
) -> None:
    (repository / "net" / "config.pbtxt").unlink()
    [change] = changes_to(variant(**delta), repository, {"net": fingerprint(repository / "net")})
    assert change.after is not None
    message = model_config.parse(change.after, "config.pbtxt")
    assert [field.name for field, _ in message.ListFields()] == written


WINNER = variant(instance_group=[{"count": 4, "kind": "KIND_CPU"}], dynamic_batching={})


def test_only_what_the_variant_changes_is_changed_and_the_comment_stays(repository: Path) -> None:
    [change] = changes_to(WINNER, repository, {"net": fingerprint(repository / "net")})
    carry_out([change])
    text = (repository / "net" / "config.pbtxt").read_text()
    message = model_config.parse(text, "config.pbtxt")
    assert text.startswith("# Applied by tpx analyze: net_config_3; before: config.pbtxt.backup-1;")
    assert (message.max_batch_size, message.instance_group[0].count) == (8, 4)
    assert message.HasField("dynamic_batching")
    assert (repository / "net" / "config.pbtxt.backup-1").read_text() == ORIGINAL
    mark, _, rest = text.partition("\n")
    one, four = "instance_group { count: 1 kind", "instance_group { count: 4 kind"
    assert rest == ORIGINAL.replace(one, four) + "dynamic_batching {\n}\n"
    changed = [line for line in change.diff.splitlines() if line[0] in "+-"][2:]
    assert changed == [
        f"+{mark}",
        f"-{one}: KIND_CPU }}",
        f"+{four}: KIND_CPU }}",
        "+dynamic_batching {",
        "+}",
    ]


def test_what_cannot_be_edited_is_written_as_a_whole(repository: Path) -> None:
    path = repository / "net" / "config.pbtxt"
    path.write_text(ORIGINAL + "#" * (1 << 20))
    carry_out(changes_to(WINNER, repository, {}))
    _, _, rest = path.read_text().partition("\n")
    assert rest.startswith("# Owned by the vision team.\nmax_batch_size: 8\n")
    assert model_config.read(path).instance_group[0].count == 4


def test_what_was_applied_already_is_not_written_again(repository: Path) -> None:
    carry_out(changes_to(WINNER, repository, {}))
    assert changes_to(WINNER, repository, {}) == ()


def test_what_a_server_has_completed_is_not_written(repository: Path) -> None:
    path = repository / "net" / "config.pbtxt"
    path.write_text("# all else is completed\n")
    [change] = changes_to(variant(dynamic_batching={}), repository, {})
    assert change.after is not None
    assert change.after.partition("\n")[2] == "# all else is completed\ndynamic_batching {\n}\n"


@pytest.mark.parametrize(
    "text",
    [
        ORIGINAL.replace("\n", "\r\n"),
        ORIGINAL.rstrip("\n"),
        "\ufeff" + ORIGINAL,
        "",
        "# ü\r\n\n\tmax_batch_size:8;",
    ],
)
def test_a_rollback_restores_whatever_bytes_there_were(repository: Path, text: str) -> None:
    path = repository / "net" / "config.pbtxt"
    path.write_bytes(text.encode())
    carry_out(changes_to(WINNER, repository, {}))
    assert model_config.read(path).instance_group[0].count == 4
    carry_out(changes_back(["net"], repository))
    assert path.read_bytes() == text.encode()


def test_a_rollback_restores_the_very_bytes(repository: Path) -> None:
    carry_out(changes_to(WINNER, repository, {}))
    carry_out(changes_to(variant(max_batch_size=16), repository, {}))
    carry_out(changes_back(["net"], repository))
    assert "count: 4" in (repository / "net" / "config.pbtxt").read_text()
    carry_out(changes_back(["net"], repository))
    assert (repository / "net" / "config.pbtxt").read_text() == ORIGINAL
    assert [path.name for path in sorted((repository / "net").iterdir())] == ["1", "config.pbtxt"]


def test_a_model_without_a_configuration_gets_one_and_loses_it_again(repository: Path) -> None:
    (repository / "net" / "config.pbtxt").unlink()
    carry_out(changes_to(WINNER, repository, {}))
    message = model_config.read(repository / "net" / "config.pbtxt")
    assert (message.instance_group[0].count, message.max_batch_size) == (4, 8)
    carry_out(changes_back(["net"], repository))
    assert not (repository / "net" / "config.pbtxt").exists()


def test_the_default_configuration_changes_nothing(repository: Path) -> None:
    assert changes_to(variant(), repository, {}) == ()


@pytest.mark.parametrize("file", ["config.pbtxt", "1/model.onnx", "labels.txt"])
def test_a_model_that_changed_since_it_was_measured_is_refused(repository: Path, file: str) -> None:
    measured = {"net": fingerprint(repository / "net")}
    (repository / "net" / file).write_text("other")
    with pytest.raises(UsageError, match="has changed since it was measured"):
        changes_to(WINNER, repository, measured)


def test_a_backup_is_no_change_of_the_model(repository: Path) -> None:
    before = fingerprint(repository / "net")
    (repository / "net" / "config.pbtxt.backup-1").write_text("old")
    assert fingerprint(repository / "net") == before
    assert fingerprint(repository / "nothing") == ""


def test_large_files_are_judged_by_their_ends(tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(17 << 20)
    before = fingerprint(tmp_path)
    with (tmp_path / "weights").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert fingerprint(tmp_path) != before


def test_a_file_that_was_changed_after_it_was_applied_is_not_rolled_back(repository: Path) -> None:
    carry_out(changes_to(WINNER, repository, {}))
    path = repository / "net" / "config.pbtxt"
    path.write_text(path.read_text() + "# tuned by hand\n")
    with pytest.raises(UsageError, match="was changed after it was applied"):
        changes_back(["net"], repository)
    carry_out(changes_back(["net"], repository, force=True))
    assert path.read_text() == ORIGINAL


def test_what_was_not_applied_cannot_be_rolled_back(repository: Path) -> None:
    with pytest.raises(UsageError, match="was not written by tpx analyze apply"):
        changes_back(["net"], repository)
    carry_out(changes_to(WINNER, repository, {}))
    (repository / "net" / "config.pbtxt.backup-1").unlink()
    with pytest.raises(UsageError, match=r"the backup .* is gone"):
        changes_back(["net"], repository)


def test_a_missing_model_and_a_damaged_configuration_are_told(repository: Path) -> None:
    with pytest.raises(UsageError, match="has no model 'net'"):
        changes_to(WINNER, repository / "net", {})
    (repository / "net" / "config.pbtxt").write_text("max_batch: 4")
    with pytest.raises(ConfigError, match="max_batch"):
        changes_to(WINNER, repository, {})


def test_all_models_of_a_variant_are_written_or_none(repository: Path) -> None:
    for name in ("other", "calls"):
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text('backend: "x"\n')
    changes = changes_to(with_members({}), repository, {})
    assert [change.model for change in changes] == ["net", "other"]
    (repository / "other" / ".config.pbtxt.new").mkdir()  # the new file cannot be made
    with pytest.raises(MeasurementError, match="nothing was changed"):
        carry_out(changes)
    assert (repository / "net" / "config.pbtxt").read_text() == ORIGINAL
    assert not (repository / "net" / "config.pbtxt.backup-1").exists()


def test_business_logic_is_applied_with_the_models_that_it_calls(repository: Path) -> None:
    for name in ("other", "calls"):
        (repository / name).mkdir()
        (repository / name / "config.pbtxt").write_text('backend: "x"\n')
    changes = changes_to(with_members({"max_batch_size": 8}), repository, {})
    assert [change.model for change in changes] == ["calls", "net", "other"]
    assert changes[0].after is not None
    assert changes[0].after.endswith('backend: "x"\nmax_batch_size: 8\n')


def with_members(delta: dict[str, Any]) -> Configuration:
    """A variant of `calls`, with this change of its own, over variants of `net` and `other`."""
    default = {"backend": "x"}
    members = tuple(
        Variant(models=(name,), name=f"{name}_config_0", delta={"max_batch_size": 2})
        for name in ("net", "other")
    )
    variant_ = Variant(models=("calls",), name="calls_config_0", delta=delta, members=members)
    return configure(variant_, default, {"net": default, "other": default})


def test_another_configuration_of_the_same_run_takes_the_place_of_one_that_was_applied(
    repository: Path,
) -> None:
    """It is a change of the model as it was measured, with nothing left of the one applied before."""
    measured = {"net": fingerprint(repository / "net")}
    carry_out(changes_to(variant(max_batch_size=2, dynamic_batching={}), repository, measured))
    assert changes_to(variant(max_batch_size=2, dynamic_batching={}), repository, measured) == ()
    carry_out(changes_to(variant(max_batch_size=4), repository, measured))
    text = (repository / "net" / "config.pbtxt").read_text()
    assert text.endswith(ORIGINAL.replace("max_batch_size: 8", "max_batch_size: 4"))
    carry_out(changes_to(variant(), repository, measured))
    assert (repository / "net" / "config.pbtxt").read_text().endswith("\n" + ORIGINAL)
    for _ in range(3):
        carry_out(changes_back(["net"], repository))
    assert (repository / "net" / "config.pbtxt").read_text() == ORIGINAL


def test_what_was_edited_after_it_was_applied_is_not_the_measured_model(repository: Path) -> None:
    measured = {"net": fingerprint(repository / "net")}
    carry_out(changes_to(WINNER, repository, measured))
    config = repository / "net" / "config.pbtxt"
    config.write_text(config.read_text() + "# mine\n")
    with pytest.raises(UsageError, match="has changed since it was measured"):
        changes_to(variant(max_batch_size=4), repository, measured)
