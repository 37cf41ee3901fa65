"""Lines of batches: they begin behind all other requests, and leave rows free."""

from tests.server.control.admission.crowd import Crowd


def crowd_of(rows: int = 8, background: int = 6, **more: int) -> Crowd:
    return Crowd(total=rows + 2, rows=rows, background=background, **more)


async def batch(crowd: Crowd, count: int = 20, key: str | None = None) -> None:
    for number in range(count):
        await crowd.come(f"line {key} {number}", key=key, is_background=True)


async def test_lines_leave_rows_free_and_another_request_starts_at_once() -> None:
    crowd = crowd_of()
    await batch(crowd)
    assert crowd.slots.in_use == 6
    for number in range(4):
        await crowd.come(f"other {number}")
        assert crowd.started[-1] == f"other {number}"
    # Lines fill no row that another request has left while the rest is not free.
    await crowd.leave("other 0", "other 1", "line None 0", "line None 1")
    assert crowd.slots.in_use == 6
    await crowd.leave("other 2", "other 3", "line None 2")
    assert crowd.slots.in_use == 6
    assert crowd.started[-3:] == ["line None 6", "line None 7", "line None 8"]


async def test_no_line_begins_while_another_request_waits() -> None:
    crowd = crowd_of(rows=4, background=4)
    for number in range(6):
        await crowd.come(f"other {number}")
    await batch(crowd, 2)
    await crowd.come("wide", slots=2)
    assert crowd.slots.in_use == 6
    await crowd.leave("other 0", "other 1", "other 2")
    # Two slots were for the wide request, and lines leave none to spare.
    assert crowd.started[6:] == ["wide"]
    await crowd.leave("other 3", "other 4", "other 5")
    assert crowd.started[7:] == ["line None 0", "line None 1"]


async def test_lines_are_neither_in_the_queue_nor_counted_for_their_key() -> None:
    crowd = crowd_of(reserved=2)
    await batch(crowd, key="a")
    assert (crowd.slots.num_queued, crowd.slots.queue.num_requests) == (0, 0)
    assert crowd.slots.queue_rate.seconds_for(1) is None
    # The key's own requests have what a key without any has.
    assert crowd.slots.room("a") == crowd.slots.room("b")
    await crowd.come("own", key="a")
    await crowd.come("other", key="b")
    assert crowd.started[-2:] == ["own", "other"]
    await crowd.leave(*crowd.tickets)
    assert crowd.slots.in_use == 0


async def test_keys_share_what_lines_may_have() -> None:
    crowd = crowd_of()
    await batch(crowd, key="a")
    await batch(crowd, key="b")
    await crowd.leave(*(f"line a {number}" for number in range(3)))
    assert crowd.started[6:] == [f"line b {number}" for number in range(3)]


async def test_a_wide_line_has_what_lines_may_have() -> None:
    crowd = crowd_of(rows=4, background=3, of_request=4)
    ticket = await crowd.come("wide", slots=5, is_background=True)
    assert (ticket.slots, crowd.started) == (3, ["wide"])


async def test_a_drain_holds_lines_too() -> None:
    crowd = crowd_of()
    crowd.slots.close()
    await batch(crowd, 3)
    assert crowd.started == []
    crowd.slots.open()
    await crowd.leave()
    assert len(crowd.started) == 3
