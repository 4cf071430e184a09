"""Names of models to load that are none."""

from pathlib import Path

import pytest

from tests.serving.onnx_files import write_model
from tests.serving.repository.controlled import controlled


@pytest.mark.parametrize("name", ["..", "../etc", "a/b", " ..", "/"])
async def test_a_name_that_is_a_path_is_refused(tmp_path: Path, name: str) -> None:
    async with controlled(tmp_path) as it:
        assert await it.refusal(it.load(name)) == (
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
        await it.unload(name)


@pytest.mark.parametrize("name", ["", " ", "\t"])
async def test_no_name_is_refused(tmp_path: Path, name: str) -> None:
    async with controlled(tmp_path) as it:
        assert (
            await it.refusal(it.load(name))
            == "Model name cannot be empty. Please enter a valid name to deploy."
        )


@pytest.mark.parametrize("name", ["...", "a..b", "..a", ".hidden"])
async def test_a_name_of_dots_is_a_name_like_any_other_to_clients_that_know_it(
    tmp_path: Path, name: str
) -> None:
    write_model(tmp_path, name)
    async with controlled(tmp_path) as it:
        await it.load(name)
        assert it.repository.is_ready(name)


@pytest.mark.parametrize(
    "name", ["$(touch x)", "; rm -rf .", "a\nb", "x" * 300, "a\0b", "\ud800", ".", "~", "*"]
)
async def test_a_name_that_no_model_has_is_not_found(tmp_path: Path, name: str) -> None:
    async with controlled(tmp_path) as it:
        for _ in range(2):
            assert await it.refusal(it.load(name)) == (
                f"failed to load '{name}', failed to poll from model repository"
            )
        assert it.states == {}
