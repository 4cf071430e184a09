"""Life cycle of a model's process: import the model, initialize it, execute, finalize."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import inspect
import json
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpx.serving.backends.python.worker import frames, triton_python_backend_utils
from tpx.serving.backends.python.worker.calls import Calls
from tpx.serving.backends.python.worker.channel import Channel, ServerGone
from tpx.serving.backends.python.worker.errors import described
from tpx.serving.backends.python.worker.execution import Execution
from tpx.serving.backends.python.worker.model_config import ModelConfig
from tpx.serving.backends.python.worker.runtime import RUNTIME
from tpx.serving.backends.python.worker.services import Reports
from tpx.serving.transport.memory import BlockMemory


def main(descriptor: int, lifeline: int, questions: int, from_server: int, to_server: int) -> None:
    """Serve until the server ends this process or disappears; `lifeline` makes the kernel enforce the
    latter.

    All are descriptors: of a socket, of two pipes, and of the memory for tensors in both directions. A byte
    in the pipe `questions` asks whether the model is ready.
    """
    if sys.platform == "linux":
        # the kernel kills this process group when the other end closes, even if the model holds the GIL
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    for end in (descriptor, lifeline, questions):
        os.set_inheritable(end, False)  # programs that the model starts must not hold them open
    sock = socket.socket(fileno=descriptor)
    incoming, outgoing = BlockMemory(from_server), BlockMemory(to_server)
    os.close(from_server)
    os.close(to_server)
    os.register_at_fork(after_in_child=incoming.abandon)
    threading.Thread(target=_die_with_server, args=(descriptor,), name="tpx-watch", daemon=True).start()
    for name in ("triton_python_backend_utils", "c_python_backend_utils"):
        sys.modules[name] = triton_python_backend_utils
    with suppress(ServerGone):
        _ModelProcess(sock, questions, incoming, outgoing).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of the model may never end


def _die_with_server(descriptor: int) -> None:
    """Exit when the server has gone, whatever the model is doing."""
    gone = select.poll()
    gone.register(descriptor, 0)  # reports only that the other end has closed
    gone.poll()
    os.kill(os.getpid(), signal.SIGKILL)


class _ModelProcess:
    """Handles frames one after another."""

    def __init__(
        self, sock: socket.socket, questions: int, incoming: BlockMemory, outgoing: BlockMemory
    ) -> None:
        self._questions = questions
        self._channel = Channel(sock, incoming, outgoing, self._handle_frame)
        self._calls = Calls(self._channel)
        self._work: deque[tuple[int, Any]] = deque()
        self._execution: Execution | None = None
        self._reports = Reports()
        self._module: Any = None

    def _handle_frame(self, kind: int, body: memoryview) -> None:
        """Handle a frame on the thread that read it; executions are queued for the main thread."""
        if kind == frames.EXECUTE:
            assert self._execution is not None
            self._work.append((kind, self._execution.take(body)))
        elif kind == frames.REPLY:
            self._calls.replied(body)
        elif kind == frames.RESULT:
            self._calls.answered(body)
        elif kind == frames.CANCEL:
            assert self._execution is not None
            self._execution.cancel(frames.NUMBER.unpack(body)[0])
        elif kind == frames.CREDIT:
            assert self._execution is not None
            self._execution.credit(*frames.CREDIT_BODY.unpack(body))
        else:
            self._work.append((kind, bytes(body)))

    def serve(self) -> None:
        work, channel = self._work, self._channel
        verbs = {
            frames.COMPLETE_CONFIG: self._complete_config,
            frames.INITIALIZE: self._initialize,
        }
        half = 0
        while True:
            if not work:
                channel.flush()
                self._step()
                channel.wait(lambda: bool(work))
                half = len(work) // 2
            kind, body = work.popleft()
            if kind == frames.EXECUTE:
                # the server answers the first half while the second is computed
                more = bool(work) and len(work) != half
                self._execution.run(*body, more=more)  # type: ignore[union-attr]
                del body
            elif kind == frames.FINALIZE:
                self._finalize()
                return
            else:
                verbs[kind](body)

    def _step(self) -> None:
        """Let a model compute on this thread while no frame waits: engines of language models."""
        step = None if self._execution is None else getattr(self._execution.model, "tpx_step", None)
        while step is not None and not self._work and step():
            self._channel.read_arrived()

    def _import_model(self, words: frames.Words) -> Any:
        if self._module is not None:
            return self._module
        path = Path(words["file"])
        if not path.is_file():
            raise FileNotFoundError(f"Python model file not found in '{path}'")
        for entry in (path.parent, path.parent.parent):
            if str(entry) not in sys.path:
                sys.path.append(str(entry))
        RUNTIME.start(self._calls, words["directory"])
        if words["based"]:
            # by path: its directory may have the name of an importable package
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            self._module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(self._module)
            return self._module
        # as in Triton: `from <version> import x` and `import x` both find files beside the model
        self._module = importlib.import_module(f"{path.parent.name}.{path.stem}")
        return self._module

    def _complete_config(self, body: bytes) -> None:
        words = json.loads(body)
        self._reports.name(words["name"], words["version"])
        answer: frames.Words = {}
        try:
            model = self._import_model(words).TritonPythonModel
            if hasattr(model, "auto_complete_config"):
                given = ModelConfig(words["config"], words["name"])
                config = model.auto_complete_config(given)
                if not isinstance(config, ModelConfig):
                    raise TypeError(
                        f"auto_complete_config function in model '{words['name']}' must return a valid "
                        "pb.ModelConfig object."
                    )
                answer["config"] = config.as_dict()
        except ServerGone:
            raise
        except BaseException as exc:  # noqa: BLE001 (whatever a model raises is the answer)
            self._reports.raised(f"Failed to complete the configuration of model '{words['name']}'", exc)
            answer = {"error": described(exc)}
        self._channel.send(frames.COMPLETED, [json.dumps(answer).encode()])

    def _initialize(self, body: bytes) -> None:
        words = json.loads(body)
        self._reports.name(words["args"]["model_name"], words["args"]["model_version"])
        answer: frames.Words = {}
        try:
            module = self._import_model(words)
            execution = Execution(
                self._channel, words["instance"], self._reports, decoupled=words["decoupled"]
            )
            self._channel.waiting.spin_for(words["spin_ns"])
            execution.model = module.TritonPythonModel()
            if hasattr(execution.model, "initialize"):
                execution.model.initialize(words["args"])
            if not callable(getattr(execution.model, "execute", None)):
                raise AttributeError("the class TritonPythonModel has no function 'execute'")
            self._execution = execution
            self._calls.open = True
            answer["asks_ready"] = callable(getattr(execution.model, "is_ready", None))
            if answer["asks_ready"]:
                threading.Thread(target=self._answer_questions, name="tpx-readiness", daemon=True).start()
        except ServerGone:
            raise
        except BaseException as exc:  # noqa: BLE001
            self._reports.raised(f"Failed to initialize model '{words['instance']}'", exc)
            answer = {"error": described(exc)}
        self._channel.send(frames.INITIALIZED, [json.dumps(answer).encode()])

    def _answer_questions(self) -> None:
        """Call `is_ready` on its own thread: the main thread may execute for long."""
        with suppress(ServerGone):
            while os.read(self._questions, 1):
                self._send_ready()

    def _send_ready(self) -> None:
        assert self._execution is not None
        try:
            ready = self._execution.model.is_ready()
            if inspect.iscoroutine(ready):
                ready = self._execution.await_here(ready)
        except ServerGone:
            raise
        except BaseException as exc:  # noqa: BLE001 (whatever a model raises, it is not ready)
            ready = None
            self._reports.raised(f"is_ready of model '{self._execution.name}' failed", exc)
        self._channel.send(frames.READY, [b"\1" if ready is True else b"\0"])

    def _finalize(self) -> None:
        self._calls.open = False
        execution = self._execution
        if execution is not None and hasattr(execution.model, "finalize"):
            try:
                execution.model.finalize()
            except Exception as exc:  # noqa: BLE001 (the process exits anyway; the log has the reason)
                self._reports.raised(f"finalize of model '{execution.name}' failed", exc)
        self._channel.send(frames.FINALIZED, [b""])
        self._channel.finish()
