"""Coroutines that run at once until they wait. A task would run only after other events, and cost more than a request.

Python has this from version 3.12 on, as `asyncio.eager_task_factory`.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import Any


def run_until_it_waits(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
) -> asyncio.Task[None] | None:
    """Run a coroutine, which has no task meanwhile; return the task of its rest, None if it has ended.

    Args:
        coroutine: The coroutine to run, which must not need `asyncio.current_task` before it waits.
        loop: the running loop.
    """
    context = copy_context()
    try:
        awaited = context.run(coroutine.send, None)
    except StopIteration:
        return None
    return loop.create_task(_rest(coroutine, awaited), context=context)


async def _rest(coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _continue_call(coroutine, awaited)


@types.coroutine
def _continue_call(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Wait for what a coroutine awaits, and then for its rest."""
    with suppress(StopIteration):  # the end of the coroutine
        while True:
            try:
                value = yield awaited
            except BaseException as error:  # such as the end of the task
                awaited = coroutine.throw(error)
            else:
                awaited = coroutine.send(value)
