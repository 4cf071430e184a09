"""Threads of sessions: pools of their own, as many as are told, or one for all models of a process."""

from pathlib import Path

import onnxruntime
import pytest

from tests.e2e.child import serve, tpx
from tests.serving import onnx_files
from tests.serving.backends.onnxruntime.opening import opened, parameters
from tests.serving.onnx_files import write_model

GROUP = "instance_group [{ name: 'net' kind: KIND_CPU count: 1 }]"


def threads(pid: int | str = "self") -> set[str]:
    """The threads of a process."""
    return {task.name for task in Path(f"/proc/{pid}/task").iterdir()}


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({"intra_op_thread_count": "1"}, 0),
        ({"intra_op_thread_count": "6"}, 5),
        ({"intra_op_thread_count": "1", "inter_op_thread_count": "4"}, 0),
        ({"intra_op_thread_count": "1", "inter_op_thread_count": "4", "execution_mode": "1"}, 3),
        ({"intra_op_thread_count": "3", "inter_op_thread_count": "4", "execution_mode": "1"}, 5),
    ],
)
def test_a_session_has_the_threads_that_it_was_told(tmp_path: Path, given: dict[str, str], more: int) -> None:
    onnx_files.save(onnx_files.doubling(), tmp_path / "model.onnx")
    before = threads()
    model = opened(tmp_path, parameters(given) + GROUP)
    assert len(threads() - before) == more
    model.close()


POOL = "--backend-config=onnxruntime,"


@pytest.mark.e2e
@pytest.mark.skipif(not hasattr(onnxruntime, "set_global_thread_pool_sizes"), reason="an older ONNX Runtime")
def test_models_share_the_threads_of_the_process_if_they_are_told_to(tmp_path: Path) -> None:
    for number in range(3):
        write_model(tmp_path, f"net{number}", config="instance_group [{ kind: KIND_CPU count: 2 }]")
    counts = []
    for shared in (0, 1):
        words = (f"enable-global-threadpool={shared}", "intra_op_thread_count=5", "inter_op_thread_count=1")
        with serve("--model-repository", tmp_path, *(POOL + word for word in words)) as child:
            child.ready()
            counts.append(len(threads(child.pid)))
            assert child.stop() == 0
    # six sessions with four more threads each, or one pool; loader threads come and go
    assert counts[0] - counts[1] == pytest.approx(6 * 4 - 4, abs=3)


def test_threads_of_a_model_are_reported_where_all_models_share_theirs(tmp_path: Path) -> None:
    write_model(tmp_path, "net", config=parameters({"intra_op_thread_count": "2"}))
    words = ("enable-global-threadpool=1", "intra_op_thread_count=-1")
    out = tpx("serve", "--model-repository", str(tmp_path), *(POOL + word for word in words))
    assert out.returncode == 1
    assert "'intra_op_thread_count' of model 'net' has no effect" in out.stdout + out.stderr
    wrong = (
        "parameter 'intra_op_thread_count' of --backend-config onnxruntime must be a whole number from 0 to"
    )
    assert wrong in out.stdout + out.stderr
