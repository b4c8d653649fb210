"""Clocks that do what real ones do."""


def jump_clock(seconds: float) -> None:
    """Let virtual time pass without a turn for anyone: a blocked event loop, or a machine that was suspended."""
    try:
        import trio

        trio.lowlevel.current_clock().jump(seconds)
    except RuntimeError:
        import asyncio  # noqa: TID251 - the clock of the virtual loop is its own

        limits = asyncio.get_running_loop()._limits
        limits.advance(limits.now_s + seconds)
