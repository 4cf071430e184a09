"""Models that are loaded, unloaded and replaced while everything else goes on."""

import itertools
import time
from collections.abc import Iterator

import numpy as np

from tests.soak.kinds.over_grpc import TIMEOUT_S, channel_to, infer_call, message, output_of
from tests.soak.kinds.over_http import Connection, check_double, random_rows
from tests.soak.models import COMING, SWAPPED, write_swapped
from tests.soak.traffic import Target, expect
from tpx.protocol import messages

_BETWEEN_S = 0.2
"""Between two loads: a load costs as much as hundreds of requests."""
_GONE_S = 10


def coming_and_going(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """A model is loaded, answers, is unloaded, and is gone."""
    connection = Connection(target)
    try:
        while True:
            connection.ask("POST", f"/v2/repository/models/{COMING}/load")
            rows = random_rows(rng)
            check_double(connection.infer(COMING, rows), rows, "a model just loaded")
            connection.ask("POST", f"/v2/repository/models/{COMING}/unload")
            _wait_until_gone(connection)
            yield 2  # it ends here, so that no thread is counted at one rest and not at the other
            time.sleep(_BETWEEN_S)
    finally:
        connection.close()


def _wait_until_gone(connection: Connection) -> None:
    ends = time.perf_counter() + _GONE_S
    while True:
        status, _ = connection.outcome("GET", f"/v2/models/{COMING}/ready")
        if status == 400:
            return
        expect(status == 200, f"the readiness of a model that goes is {status}")
        expect(time.perf_counter() < ends, f"'{COMING}' was ready {_GONE_S} s after it was unloaded")
        time.sleep(0.01)


def replacing(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """A model's file changes and it is loaded again: from then on its answers are the new ones."""
    connection = Connection(target)
    try:
        for factor in itertools.cycle((3, 2)):
            write_swapped(target.repository, factor)
            connection.ask("POST", f"/v2/repository/models/{SWAPPED}/load")
            rows = random_rows(rng)
            got = connection.infer(SWAPPED, rows)
            expect(np.array_equal(got, rows * factor), f"after its load by {factor}, it made {got} of {rows}")
            yield 1
            time.sleep(_BETWEEN_S)
    finally:
        connection.close()


def meanwhile(target: Target, rng: np.random.Generator) -> Iterator[int]:
    """Who uses the model that is replaced gets an answer of the old one or of the new one, always."""
    connection = Connection(target)
    try:
        with channel_to(target) as channel:
            infer = infer_call(channel)
            while True:
                rows = random_rows(rng)
                data = infer(message(SWAPPED, rows), timeout=TIMEOUT_S)
                over_grpc = output_of(messages.ModelInferResponse.FromString(data))
                for got in (over_grpc, connection.infer(SWAPPED, rows)):
                    either = np.array_equal(got, rows * 2) or np.array_equal(got, rows * 3)
                    expect(either, f"a model that is being replaced made {got} of {rows}")
                yield 2
    finally:
        connection.close()
