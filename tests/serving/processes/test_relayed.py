import asyncio
from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import replace

from tpx.errors import TpxError
from tpx.protocol.grpc.server_call import Method, ServerCall
from tpx.protocol.grpc.status import Status
from tpx.protocol.tensors import Buffer
from tpx.serving.frontends.grpc_verbs import Rpc
from tpx.serving.frontends.http_verbs import route
from tpx.serving.frontends.openai import openai
from tpx.serving.processes import wire
from tpx.serving.processes.channel import ReceivedFrame
from tpx.serving.processes.relayed import VerbRelay
from tpx.serving.processes.remote import OnAnswer, OnError
from tpx.serving.processes.wire import FrameKind

MANY = 100


class SlowEngine:
    """Implements Engine: keeps what it is asked until `answer`."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, OnAnswer]] = []
        self.most = 0
        self.total = 0

    def ask_engine(
        self,
        kind: FrameKind,
        meta: bytes,
        payload: Buffer,
        done: OnAnswer,
        failed: OnError,
    ) -> Callable[[], None]:
        entry = bytes(payload), done
        self.asked.append(entry)
        self.most = max(self.most, len(self.asked))
        self.total += 1

        def call_off() -> None:
            self.asked.remove(entry)
            failed(TpxError("called off"))

        return call_off

    def answer(self) -> bytes:
        message, done = self.asked.pop(0)
        meta = wire.encode(wire.VerbAnswer(0, b""))
        done(ReceivedFrame(FrameKind.ANSWER, 0, 0, 0, 0, meta, message))
        return message


class Call:
    """A unary call of one of the connections, as far as the relay uses it."""

    method = Method("/a/b")

    def __init__(self, connection: object) -> None:
        self.connection = connection
        self.answers: list[bytes] = []
        self.on_gone: Callable[[], None] = lambda: None

    def respond(self, parts: list[Buffer]) -> None:
        self.answers.append(b"".join(parts))

    def fail(self, status: Status, message: str) -> None:
        self.answers.append(message.encode())


def relay_to(engine: SlowEngine) -> Callable[[Call, bytes], None]:
    [rpc] = VerbRelay(engine).relayed_rpcs([Rpc(category="health", method=Method("/a/b", unary=_never))])
    unary = rpc.method.unary
    assert unary is not None
    return lambda call, message: unary(cast("ServerCall", call), message)


def _never(*_: Any) -> None:
    raise AssertionError


def test_calls_of_one_connection_leave_room_for_those_of_others() -> None:
    async def run() -> None:
        engine = SlowEngine()
        relay = relay_to(engine)
        calls = [Call("a") for _ in range(MANY)]
        for number, call in enumerate(calls):
            relay(call, b"%d" % number)
        assert engine.most < 10
        other = Call("b")
        relay(other, b"other")
        assert b"other" in [message for message, _ in engine.asked]
        while engine.asked:
            engine.answer()
            await asyncio.sleep(0)
        assert [call.answers for call in calls] == [[b"%d" % number] for number in range(MANY)]
        assert other.answers == [b"other"]

    asyncio.run(run())


def test_calls_of_a_connection_that_has_gone_do_not_reach_the_engine() -> None:
    async def run() -> None:
        engine = SlowEngine()
        relay = relay_to(engine)
        calls = [Call("a") for _ in range(MANY)]
        for call in calls:
            relay(call, b"")
        begun = engine.total
        for call in calls:
            call.on_gone()
        for _ in range(3):
            await asyncio.sleep(0)
        assert (engine.total, engine.asked) == (begun, [])
        assert all(len(call.answers) == 1 for call in calls)
        again = Call("a")
        relay(again, b"again")
        assert engine.answer() == b"again"
        assert again.answers == [b"again"]

    asyncio.run(run())


def test_a_relayed_route_keeps_what_its_access_depends_on() -> None:
    routes = [
        openai(route("/v1/models", "metadata", GET=lambda request, match: None)),
        route("/v2/health/live", "health", GET=lambda request, match: None),
    ]
    relayed = VerbRelay(SlowEngine()).relayed_routes(routes)
    for before, after in zip(routes, relayed, strict=True):
        assert after.verbs.keys() == before.verbs.keys()
        assert after.verbs != before.verbs
        assert replace(after, verbs=before.verbs) == before
