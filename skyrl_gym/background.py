"""Between synchronous and asynchronous code: an event loop in a thread, and hooks of either kind."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio
import anyio.to_thread

__all__ = ["BackgroundLoop", "call_hook"]

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines from synchronous code, all on one event loop, so that what they open stays usable.

    The thread is a daemon: a program that forgets to close its environments still ends.
    """

    def __init__(self, name: str) -> None:
        self._users = 1
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; an interrupt (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def share(self) -> BackgroundLoop:
        """The same for one more user, who is to close it too."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Stops the loop and its thread, once all of its users have closed it."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def call_hook(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a hook: an async one here, a plain one in a thread, where it can't block the event loop."""
    if inspect.iscoroutinefunction(hook):
        return await hook(*arguments)
    value = await anyio.to_thread.run_sync(lambda: hook(*arguments), limiter=anyio.CapacityLimiter(1))
    return await value if inspect.isawaitable(value) else value
