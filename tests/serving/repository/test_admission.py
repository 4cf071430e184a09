"""So many at a time, and one more for each that only waits."""

import asyncio

from tpx.serving.repository.admission import Admission


def test_they_come_in_as_others_leave_in_the_order_in_which_they_came() -> None:
    async def scene() -> None:
        admission, within, may_leave = Admission(2), list[int](), asyncio.Event()

        async def visit(number: int) -> None:
            async with admission:
                within.append(number)
                await may_leave.wait()

        visits = [asyncio.ensure_future(visit(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert within == [0, 1]
        with admission.one_more():
            await asyncio.sleep(0)
            assert within == [0, 1, 2]
        may_leave.set()
        await asyncio.gather(*visits)
        assert within == [0, 1, 2, 3, 4]

    asyncio.run(scene())


def test_who_is_given_up_while_he_waits_keeps_nobody_out() -> None:
    async def scene() -> None:
        admission = Admission(1)

        async def visit() -> None:
            async with admission:
                await asyncio.sleep(0)

        async with admission:
            early, late = asyncio.ensure_future(visit()), asyncio.ensure_future(visit())
            await asyncio.sleep(0)
            early.cancel()
            await asyncio.wait([early])
        late.cancel()  # its turn has come, and it does not know yet
        await asyncio.wait([late])
        assert early.cancelled()
        assert late.cancelled()
        await asyncio.wait_for(visit(), 5)

    asyncio.run(scene())
