"""Parallel execution of branches. Imported only by programs with parallel branches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context

from delegate.errors import DelegateError, KernelError, Stopped
from delegate.plugins import one_line
from delegate.runtime.steps import Step, run_steps
from delegate.runtime.workers import Workers

_POLL_SECONDS = 0.05  # a waiting thread checks for interrupts at this interval


class Stop:
    """A first step of every block inside a branch: it ends loops when the call is interrupted.

    Args:
        interrupts: end calls of delegates that may take forever.
    """

    def __init__(self, interrupts: Sequence[Callable[[], None]]) -> None:
        self._interrupts = tuple(interrupts)
        self._requested = False

    def __call__(self) -> None:
        if self._requested:
            raise Stopped("the call was interrupted")

    def failed(self, error: BaseException) -> DelegateError:
        """Return the error itself. It is not reported, because the interrupt is."""
        assert isinstance(error, Stopped)
        return error

    def request(self) -> None:
        """End the branches soon."""
        self._requested = True
        for interrupt in self._interrupts:
            interrupt()

    def reset(self) -> None:
        """Reset for a new run."""
        self._requested = False


class ParallelStep:
    """Runs branches, some of them in idle helper threads, and waits until all have ended.

    All run to their end, even if one fails. So the reported error is that of the first failing branch in order, as in
    sequential execution. After an interrupt they end early. It is raised after they have ended, because they use the
    memory of the context.

    Args:
        place: for messages.
        branches: the steps of each.
        stop: the first step of their blocks.
        workers: the helper threads.
    """

    __slots__ = ("branches", "place", "stop", "workers")

    def __init__(self, place: str, branches: Sequence[list[Step]], stop: Stop, workers: Workers) -> None:
        self.place, self.branches, self.stop, self.workers = place, branches, stop, workers

    def __call__(self) -> None:
        self.stop.reset()
        run = _Run(self.branches, self.stop)
        try:
            self.workers.request_help(run.help, len(self.branches) - 1)
            run.work()
        except BaseException:
            run.abandon()
            raise
        finally:
            run.finish()
        error = run.first_error()
        if error is not None:
            raise error

    def failed(self, error: BaseException) -> DelegateError:
        """Return the branch's own error."""
        if isinstance(error, DelegateError):
            return error
        return KernelError(f"branches failed: {one_line(error)}", where=self.place)


class _Helper:
    """A running helper thread, for the caller to wait for.

    An interrupt may occur anywhere in the caller's thread. It could leave the lock of a Condition held, or this one
    acquired. So a flag marks the end, too. And the system may deliver a signal to another thread, so that a wait goes
    on until the caller's thread runs Python again. So it waits for a short time, repeatedly.
    """

    __slots__ = ("_is_done", "_lock")

    def __init__(self) -> None:
        self._lock, self._is_done = threading.Lock(), False

    def __enter__(self) -> _Helper:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_done = True
        self._lock.release()

    def wait(self) -> None:
        """Wait until it is done."""
        while not self._is_done:
            self._lock.acquire(timeout=_POLL_SECONDS)


class _Run:
    """One run of the branches. Each working thread takes the next free branch."""

    def __init__(self, branches: Sequence[list[Step]], stop: Stop) -> None:
        # each branch has the caller's context variables, such as NumPy's error state
        self._left = deque((number, steps, copy_context()) for number, steps in enumerate(branches))
        self._stop = stop
        self.errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._helpers: list[_Helper] = []
        self._is_over = False

    def work(self) -> None:
        """Run branches until none is left; in the thread of the caller, where an interrupt ends it."""
        self._work(Exception)

    def help(self) -> None:
        """Run branches in another thread, where no exception may escape."""
        with _Helper() as helper:
            with self._lock:
                if self._is_over:
                    return
                self._helpers.append(helper)
            self._work(BaseException)  # of whatever kind: it is raised in the caller's thread

    def _work(self, caught: type[BaseException]) -> None:
        """Run branches until none is left. Errors of this class are stored for the caller."""
        while (taken := self._take()) is not None:
            number, steps, context = taken
            try:
                context.run(run_steps, steps)
            except caught as error:
                self.errors[number] = error

    def _take(self) -> tuple[int, list[Step], Context] | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None

    def first_error(self) -> BaseException | None:
        """Return the error of the first branch that failed, and clear all errors."""
        first = self.errors[min(self.errors)] if self.errors else None
        self.errors.clear()
        return first

    def abandon(self) -> None:
        """Start no more branches, and end the running ones soon."""
        self._left.clear()
        self._stop.request()

    def finish(self) -> None:
        """Wait for the running helpers, whatever happens. Later helpers do nothing."""
        interrupt: BaseException | None = None
        while True:
            try:
                with self._lock:
                    self._is_over = True
                for helper in self._helpers:
                    helper.wait()
                break
            except BaseException as error:  # an interrupt: wait on, but not for loops without end
                interrupt = error
                self.abandon()
        if interrupt is not None:
            raise interrupt
