"""The pool of connections: order, limits, expiry, and requests that are cancelled while they wait."""

import asyncio  # noqa: TID251 - only asyncio has a native `Task.cancel`

import anyio
import pytest
from anyio.lowlevel import checkpoint

from sampling._http import pool as pool_module
from sampling._http.pool import Pool
from sampling.errors import ConnectFailed

SERVER = "a"


class Line:
    """A connection that remembers what happened to it."""

    def __init__(self):
        self.closed = False
        self.usable = True

    def is_usable(self):
        return self.usable

    def close(self):
        self.closed = True


async def opened(pool, key=SERVER):
    assert await pool.acquire(key) is None
    line = Line()
    pool.opened(line)
    return line


@pytest.fixture
def clock(monkeypatch):
    """The pool's clock, which a test sets."""
    now = [1_000.0]
    monkeypatch.setattr(pool_module, "monotonic", lambda: now[0])
    return now


async def test_the_connection_that_was_used_last_is_used_first(anyio_backend):
    """The others may then expire."""
    pool = Pool(10, 30.0)
    first, second = await opened(pool), await opened(pool)
    pool.release(SERVER, first)
    pool.release(SERVER, second)
    assert await pool.acquire(SERVER) is second
    assert await pool.acquire(SERVER) is first
    assert await pool.acquire(SERVER) is None


async def test_a_connection_that_ended_while_idle_is_passed_over(anyio_backend):
    """It is not reused, and makes room for a new one."""
    pool = Pool(2, 30.0)
    good, ended = await opened(pool), await opened(pool)
    pool.release(SERVER, good)
    pool.release(SERVER, ended)
    ended.usable = False
    assert await pool.acquire(SERVER) is good
    assert ended.closed
    assert await pool.acquire(SERVER) is None


async def test_a_connection_expires(anyio_backend, clock):
    """All idle connections expire, not only the one to use next."""
    pool = Pool(10, 30.0)
    old, newer, newest = [await opened(pool) for _ in range(3)]
    pool.release(SERVER, old)
    clock[0] += 29
    pool.release(SERVER, newer)
    assert not old.closed
    clock[0] += 2
    pool.release(SERVER, newest)
    assert old.closed
    assert not newer.closed
    clock[0] += 31
    assert await pool.acquire(SERVER) is None
    assert newer.closed
    assert newest.closed


async def test_those_who_wait_are_served_in_the_order_in_which_they_came(anyio_backend):
    """A newcomer does not overtake them."""
    pool = Pool(1, 30.0)
    line = await opened(pool)
    served = []

    async def want(name):
        got = await pool.acquire(SERVER)
        served.append(name)
        await checkpoint()
        pool.release(SERVER, got)

    async with anyio.create_task_group() as tasks:
        for name in range(5):
            tasks.start_soon(want, name)
            await anyio.wait_all_tasks_blocked()
        assert "1 active, 5 queued | Connections: 1 active, 0 idle" in repr(pool)
        pool.release(SERVER, line)
    assert served == [0, 1, 2, 3, 4]
    assert "Requests: 0 active, 0 queued | Connections: 0 active, 1 idle" in repr(pool)


@pytest.mark.parametrize("give_back", ["release", "discard"])
async def test_requests_that_are_cancelled_while_they_wait_lose_nothing(anyio_backend, give_back):
    """Row 25: whether they are cancelled before they are granted a connection or in the same moment."""
    pool = Pool(1, 30.0)
    line = await opened(pool)
    served = []

    async def want(name, scope):
        with scope:
            got = await pool.acquire(SERVER)
            served.append(name)
            if got is None:
                pool.discard(None)
            else:
                pool.release(SERVER, got)

    async with anyio.create_task_group() as tasks:
        scopes = {name: anyio.CancelScope() for name in ("before", "meanwhile", "never")}
        for name, scope in scopes.items():
            tasks.start_soon(want, name, scope)
            await anyio.wait_all_tasks_blocked()
        scopes["before"].cancel()
        await anyio.wait_all_tasks_blocked()
        assert "2 queued" in repr(pool)
        if give_back == "release":
            pool.release(SERVER, line)
        else:
            pool.discard(line)
        scopes["meanwhile"].cancel()
    assert "before" not in served
    assert served[-1] == "never"
    assert "Requests: 0 active, 0 queued | Connections: 0 active" in repr(pool)


def test_a_grant_that_comes_with_the_cancellation_of_its_task_goes_to_the_next():
    """`Task.cancel` of asyncio may end a wait that was granted already."""
    pool = Pool(1, 30.0)

    async def main():
        line = await opened(pool)
        first = asyncio.ensure_future(pool.acquire(SERVER))
        second = asyncio.ensure_future(pool.acquire(SERVER))
        await anyio.wait_all_tasks_blocked()
        pool.release(SERVER, line)
        first.cancel()
        assert await second is line
        assert first.cancelled()

    anyio.run(main)


async def test_an_idle_connection_to_another_server_makes_room(anyio_backend):
    """The limit is for all servers together."""
    pool = Pool(1, 30.0)
    line = await opened(pool)
    pool.release(SERVER, line)
    other = await opened(pool, "b")
    assert line.closed
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opened, pool)
        await anyio.wait_all_tasks_blocked()
        pool.release("b", other)
    assert other.closed


async def test_a_fresh_connection_takes_the_place_of_an_idle_one_if_the_pool_is_full(anyio_backend):
    """Whoever asks for one does not trust the idle ones."""
    pool = Pool(2, 30.0)
    first, second = await opened(pool), await opened(pool)
    pool.release(SERVER, first)
    pool.release(SERVER, second)
    assert await pool.acquire(SERVER, fresh=True) is None
    assert (first.closed, second.closed) == (True, False)
    pool.discard(None)
    assert await pool.acquire(SERVER) is second


async def test_closing_closes_all_and_lets_nobody_wait(anyio_backend):
    """Connections in use are closed too, and so is one that is released later."""
    pool = Pool(2, 30.0)
    idle, busy = await opened(pool), await opened(pool)
    failed = []

    async def want():
        try:
            await pool.acquire(SERVER)
        except ConnectFailed as error:
            failed.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(want)
        await anyio.wait_all_tasks_blocked()
        pool.close()
    assert len(failed) == 1
    assert idle.closed
    assert busy.closed
    pool.release(SERVER, busy)
    pool.discard(idle)
    assert pool.connections == []
    assert "Requests: 0 active, 0 queued | Connections: 0 active, 0 idle" in repr(pool)
