"""Raises where the first element of its input says, or a file beside it."""

import asyncio
import threading
from pathlib import Path

import triton_python_backend_utils as pb_utils

TOLD = Path(__file__).with_name("raise")


def fail(where):
    if TOLD.exists() and TOLD.read_text() == where:
        raise ValueError(f"in {where}")


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        fail("auto_complete_config")
        return config

    def initialize(self, args):
        fail("initialize")

    def is_ready(self):
        fail("is_ready")
        return True

    def finalize(self):
        fail("finalize")

    async def execute(self, requests):
        for request in requests:
            x = request.inputs()[0]
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        if x.as_numpy()[0] == 1:
            raise ValueError("after the final flag")
        if x.as_numpy()[0] == 2:
            thread = threading.Thread(target=fail_there, name="mine")
            thread.start()
            thread.join()
        if x.as_numpy()[0] == 3:
            self.task = asyncio.get_running_loop().create_task(fail_later())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.task = None


def fail_there():
    raise ValueError("in a thread")


async def fail_later():
    raise ValueError("in a task")
