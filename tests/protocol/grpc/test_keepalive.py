"""The clock of one connection, and what the server does when it rings."""

import pytest

from tests.protocol.grpc.service import ECHO, HOLD, serving
from tests.protocol.http2.raw import RawPeer
from tests.protocol.turns import pause
from tpx.protocol.grpc.limits import GrpcLimits, Keepalive, KeepaliveAction, KeepaliveLimits
from tpx.protocol.http2 import frames
from tpx.protocol.http2.frames import ACK, MAX_STREAM_ID, ErrorCode

SECOND = 10**9


def looks(clock: Keepalive, ticks: range, *, calls: bool = True) -> dict[int, KeepaliveAction]:
    """What the clock asked for, by tick."""
    seen = {tick: clock.check(tick, calls=calls) for tick in ticks}
    return {tick: action for tick, action in seen.items() if action is not KeepaliveAction.NOTHING}


def test_a_silent_client_is_pinged_and_given_up_when_it_does_not_answer() -> None:
    clock = Keepalive(KeepaliveLimits(time_s=10, timeout_s=5), 100)
    assert looks(clock, range(100, 120)) == {
        110: KeepaliveAction.PING,
        116: KeepaliveAction.DEAD,
        117: KeepaliveAction.DEAD,
    } | {
        118: KeepaliveAction.DEAD,
        119: KeepaliveAction.DEAD,
    }


def test_any_byte_shows_that_the_client_lives() -> None:
    clock = Keepalive(KeepaliveLimits(time_s=10, timeout_s=5), 0)
    assert looks(clock, range(12)) == {10: KeepaliveAction.PING}
    clock.heard = 12
    assert looks(clock, range(12, 30)) == {
        22: KeepaliveAction.PING,
        28: KeepaliveAction.DEAD,
        29: KeepaliveAction.DEAD,
    }


def test_without_calls_there_are_no_pings_unless_they_are_permitted() -> None:
    assert looks(Keepalive(KeepaliveLimits(time_s=10), 0), range(100), calls=False) == {}
    permitted = Keepalive(KeepaliveLimits(time_s=10, timeout_s=500, permit_without_calls=True), 0)
    assert looks(permitted, range(100), calls=False) == {10: KeepaliveAction.PING}


def test_pings_without_data_become_rare_and_data_makes_them_frequent_again() -> None:
    clock = Keepalive(KeepaliveLimits(time_s=10, max_pings_without_data=2), 0)
    seen = []
    for tick in range(200):
        action = clock.check(tick, calls=True, wrote=tick == 150)
        if action is KeepaliveAction.PING:
            seen.append(tick)
            clock.heard = tick
    assert seen == [10, 20, 80, 140, 150, 160]


def test_data_excuses_the_next_ping_however_long_ago_it_was_sent() -> None:
    clock = Keepalive(KeepaliveLimits(max_ping_strikes=1), 0)
    assert pings(clock, 1, 2) == 2
    clock.check(5, calls=True, wrote=True)
    clock.check(6, calls=True)
    assert clock.ping_received(10 * SECOND, calls=True, wrote=False)
    assert clock.ping_received(20 * SECOND, calls=True, wrote=False)
    assert not clock.ping_received(21 * SECOND, calls=True, wrote=False)


def test_a_client_that_still_reads_what_was_sent_may_measure_its_bandwidth() -> None:
    clock = Keepalive(KeepaliveLimits(), 0)
    assert clock.ping_received(SECOND, calls=True, wrote=True)
    for number in range(90):
        assert clock.ping_received(SECOND + number * SECOND // 10, calls=True, wrote=False)


def test_without_a_limit_pings_go_on() -> None:
    clock = Keepalive(KeepaliveLimits(time_s=10, max_pings_without_data=0), 0)
    seen = []
    for tick in range(60):
        if clock.check(tick, calls=True) is KeepaliveAction.PING:
            seen.append(tick)
            clock.heard = tick
    assert seen == [10, 20, 30, 40, 50]


def test_a_connection_without_calls_is_drained() -> None:
    clock = Keepalive(KeepaliveLimits(max_connection_idle_s=10), 0)
    asked = {}
    for tick in range(60):
        # a call that is there for long, then one that comes and goes between two looks
        asked[tick] = clock.check(tick, calls=tick < 20, last_stream=3 if tick >= 25 else 1)
    assert {tick for tick, action in asked.items() if action is not KeepaliveAction.NOTHING} == {36}
    assert asked[36] is KeepaliveAction.DRAIN


def test_times_below_a_second_ring_at_the_next_one() -> None:
    clock = Keepalive(KeepaliveLimits(time_s=0.5, timeout_s=0.1), 0)
    assert looks(clock, range(1, 3)) == {1: KeepaliveAction.PING, 2: KeepaliveAction.DEAD}


def test_an_old_connection_is_drained_once_and_ended_after_its_grace() -> None:
    clock = Keepalive(KeepaliveLimits(max_connection_age_s=100, max_connection_age_grace_s=20), 0)
    asked = looks(clock, range(200))
    drained = min(asked)
    assert asked[drained] is KeepaliveAction.DRAIN
    assert 90 <= drained <= 111
    assert set(asked.values()) == {KeepaliveAction.DRAIN, KeepaliveAction.END}
    ended = min(tick for tick, action in asked.items() if action is KeepaliveAction.END)
    assert 20 <= ended - drained <= 21


def test_without_a_grace_an_old_connection_has_all_the_time_it_needs() -> None:
    clock = Keepalive(KeepaliveLimits(max_connection_age_s=10), 0)
    assert list(looks(clock, range(1000)).values()) == [KeepaliveAction.DRAIN]


def test_connections_opened_together_do_not_end_together() -> None:
    limits = KeepaliveLimits(max_connection_age_s=1000)
    ends = {min(looks(Keepalive(limits, 0), range(1200))) for _ in range(30)}
    assert len(ends) > 10
    assert min(ends) >= 900
    assert max(ends) <= 1101


def pings(clock: Keepalive, every_s: float, count: int, *, calls: bool = True, wrote: bool = False) -> int:
    """How many pings are taken before the client is sent away."""
    for number in range(count):
        now_ns = int((1 + number * every_s) * SECOND)
        if not clock.ping_received(now_ns, calls=calls, wrote=wrote):
            return number
    return count


@pytest.mark.parametrize(
    ("every_s", "calls", "wrote", "taken"),
    [
        (300, True, False, 20),  # as often as allowed
        (299, True, False, 3),  # the third strike is one too many
        (1, True, True, 20),  # we had something to send: the ping may have measured it
        (300, False, False, 3),  # without calls two hours are the least
        (7200, False, False, 20),
    ],
)
def test_a_client_that_pings_too_often_is_sent_away(
    every_s: float, calls: bool, wrote: bool, taken: int
) -> None:
    assert pings(Keepalive(KeepaliveLimits(), 0), every_s, 20, calls=calls, wrote=wrote) == taken


def test_no_limit_of_strikes_forgives_all() -> None:
    assert pings(Keepalive(KeepaliveLimits(max_ping_strikes=0), 0), 0.001, 100) == 100


def test_permitted_pings_without_calls_may_come_as_often_as_others() -> None:
    limits = KeepaliveLimits(permit_without_calls=True, min_ping_interval_s=10)
    assert pings(Keepalive(limits, 0), 10, 20, calls=False) == 20


async def test_too_many_pings_end_the_connection() -> None:
    async with serving() as server, await RawPeer.connect(server.port) as peer:
        for _ in range(4):
            peer.send(frames.PING, payload=bytes(8))
        goaway = await peer.goaway()
        assert (ErrorCode(goaway.code), goaway.reason) == (ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        assert await peer.closed()


async def test_the_server_pings_a_silent_client_and_hangs_up_without_an_answer() -> None:
    limits = GrpcLimits(keepalive=KeepaliveLimits(time_s=3, timeout_s=2))
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        await peer.sync()
        server.pass_seconds(3)
        ping = await peer.next(frames.PING)
        peer.send(frames.PING, ACK, 0, ping.payload)
        await peer.sync()
        server.pass_seconds(3)
        await peer.next(frames.PING)
        server.pass_seconds(2)
        assert server.listener.connections == 1
        server.pass_seconds(1)
        await server.empty()
        assert server.service.gone == [1]


async def test_an_old_connection_takes_no_new_calls_and_ends_the_old_ones() -> None:
    limits = GrpcLimits(keepalive=KeepaliveLimits(max_connection_age_s=10))
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        await peer.sync()
        while not any(frame.kind == frames.GOAWAY for frame in peer.seen):
            server.pass_seconds(1)
            await peer.sync()
        (warning,) = (frame for frame in peer.seen if frame.kind == frames.GOAWAY)
        assert int.from_bytes(warning.payload[:4], "big") == MAX_STREAM_ID
        peer.call(3, ECHO, b"on its way before the warning was read")
        (ping,) = (frame for frame in peer.seen if frame.kind == frames.PING)
        peer.send(frames.PING, ACK, 0, ping.payload)
        final = await peer.goaway()
        assert (int.from_bytes(final.payload[:4], "big"), final.code) == (3, ErrorCode.NO_ERROR)
        peer.call(5, ECHO, b"too late")
        assert (await peer.answer(5)).reset == ErrorCode.REFUSED_STREAM
        assert peer.answers[3].message == b"on its way before the warning was read"
        server.service.release()
        assert (await peer.answer(1)).message == b"done"
        assert await peer.closed()


async def test_the_grace_of_an_old_connection_ends() -> None:
    limits = GrpcLimits(keepalive=KeepaliveLimits(max_connection_age_s=10, max_connection_age_grace_s=5))
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, HOLD, b"x")
        await peer.sync()
        server.pass_seconds(18)
        await server.empty()
        assert server.service.gone == [1]


async def test_an_idle_connection_is_asked_to_end_and_a_busy_one_is_not() -> None:
    limits = GrpcLimits(keepalive=KeepaliveLimits(max_connection_idle_s=3))
    async with (
        serving(limits) as server,
        await RawPeer.connect(server.port) as idle,
        await RawPeer.connect(server.port) as busy,
    ):
        busy.call(1, HOLD, b"x")
        await busy.sync()
        await idle.sync()
        server.pass_seconds(4)
        goaway = await idle.goaway()
        assert ErrorCode(goaway.code) is ErrorCode.NO_ERROR
        server.pass_seconds(2)
        assert await idle.closed()
        idle.writer.close()
        await pause(0.02)
        assert server.listener.connections == 1
        server.service.release()
        assert (await busy.answer(1)).message == b"done"


async def test_after_an_answer_a_silent_client_is_pinged_twice_and_then_rarely() -> None:
    limits = GrpcLimits(keepalive=KeepaliveLimits(time_s=3, timeout_s=500))
    async with serving(limits) as server, await RawPeer.connect(server.port) as peer:
        peer.call(1, ECHO, b"data")
        await peer.answer(1)
        peer.call(3, HOLD, b"x")
        await peer.sync()
        server.pass_seconds(3)
        ping = await peer.next(frames.PING)
        peer.send(frames.PING, ACK, 0, ping.payload)
        await peer.sync()
        server.pass_seconds(4)
        ping = await peer.next(frames.PING)
        peer.send(frames.PING, ACK, 0, ping.payload)
        await peer.sync()
        server.pass_seconds(50)
        await peer.sync()
        assert len([frame for frame in peer.seen if frame.kind == frames.PING]) == 2
        server.pass_seconds(15)
        await peer.next(frames.PING)
