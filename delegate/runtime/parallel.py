"""Branches that may run in parallel: their execution, its helper threads, and the CPU threads of their delegates.

The caller runs its branches itself, and waits only for helpers that are running one. Without helpers it runs all of
them. So a caller never waits for a missing thread, from however many threads it is called.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING
from weakref import finalize

from delegate.errors import BackendError, DelegateError, KernelError, Stopped
from delegate.plugins import one_line
from delegate.program.cores import cores
from delegate.program.instructions import walk
from delegate.program.model import DelegateCall, Program, Structure, StructuredCall
from delegate.registry import Registry
from delegate.runtime.call_lock import CallLock, wait_for_this_thread
from delegate.runtime.steps import Step, run_steps

if TYPE_CHECKING:
    from queue import SimpleQueue

_POLL_SECONDS = 0.05  # a waiting thread checks for interrupts at this interval
THREADS = "threads"  # of `BackendRuntime.load_options`: the number of threads of a call; absent or 0 means all
Help = Callable[[], None]  # the work of a helper; it raises nothing


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
        lock: held by the call; its branches may not use what it uses.
    """

    __slots__ = ("branches", "lock", "place", "stop", "workers")

    def __init__(
        self,
        place: str,
        branches: Sequence[list[Step]],
        stop: Stop,
        workers: Workers,
        lock: CallLock | None = None,
    ) -> None:
        self.place, self.branches, self.stop, self.workers, self.lock = place, branches, stop, workers, lock

    def __call__(self) -> None:
        self.stop.reset()
        run = _Run(self.branches, self.stop, self.lock)
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

    def __init__(self, branches: Sequence[list[Step]], stop: Stop, lock: CallLock | None = None) -> None:
        # each branch has the caller's context variables, such as NumPy's error state
        self._left = deque((number, steps, copy_context()) for number, steps in enumerate(branches))
        self._lock_of_call = lock
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
                context.run(self._run_branch, steps)
            except caught as error:
                self.errors[number] = error

    def _run_branch(self, steps: list[Step]) -> None:
        if self._lock_of_call is not None:
            wait_for_this_thread(self._lock_of_call)
        run_steps(steps)

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


class Workers:
    """The helpers of one program, whose contexts share them. They end with it.

    Args:
        most: the maximum number; None for one less than the number of cores, because the caller works too.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = max(cores() - 1, 1) if most is None else most
        self._helpers: _HelperThreads | None = None
        self._lock = threading.RLock()  # a signal handler, or a garbage collection, may take it again

    def request_help(self, help_: Help, count: int) -> None:
        """Call a function in up to `count` helpers that are idle or can be started; return immediately."""
        with self._lock:
            if self._helpers is None:
                self._helpers = _HelperThreads(self._most)
                # not at the end of the process: its locks may be held by threads that are gone, after a fork
                finalize(self, self._helpers.close).atexit = False
            helpers = self._helpers
        helpers.request_help(help_, count)

    def close(self) -> None:
        """End the helpers after their current work, and start no more."""
        with self._lock:
            helpers, self._helpers, self._most = self._helpers, None, 0
        if helpers is not None:
            helpers.close()


class _HelperThreads:
    """The threads of helpers. They refer to this object, not to the program."""

    def __init__(self, most: int) -> None:
        from queue import SimpleQueue  # not needed by most programs

        self._most, self._threads, self._idle = most, 0, 0
        self._queue: SimpleQueue[Help | None] = SimpleQueue()
        self._lock = threading.RLock()  # as that of `Workers`

    def request_help(self, help_: Help, count: int) -> None:
        with self._lock:
            idle = min(count, self._idle)
            self._idle -= idle
            started = max(min(count - idle, self._most - self._threads), 0)
            self._threads += started
        for _ in range(idle):
            self._queue.put(help_)
        for _ in range(started):
            try:
                threading.Thread(target=self._serve, args=(help_,), name="delegate-branch", daemon=True).start()
            except RuntimeError:  # no more threads: there are fewer helpers
                with self._lock:
                    self._threads -= 1

    def close(self) -> None:
        with self._lock:
            threads, self._most, self._idle = self._threads, 0, 0
        for _ in range(threads):
            self._queue.put(None)

    def _serve(self, help_: Help | None) -> None:
        while help_ is not None:
            help_()
            help_ = None  # free its references while this thread waits
            with self._lock:
                self._idle += 1
            help_ = self._queue.get()


def split_threads(program: Program, registry: Registry) -> Program:
    """Return the program with a number of threads for each delegate that may run in parallel with others.

    Branches that run in parallel get equal shares of the cores, if they have a delegate with a thread option. A number
    set at lowering or at load stays.
    """
    parallel = list(_branches(program))
    if not parallel:
        return program
    configurable = {n for n, spec in enumerate(program.delegates) if _has_thread_option(spec.backend, registry)}
    shares: dict[int, int] = {}
    for branches in parallel:
        sharing = [configurable & branch for branch in branches if configurable & branch]
        share = max(cores() // max(len(sharing), 1), 1)
        for number in set().union(*sharing):
            shares[number] = min(shares.get(number, share), share)
    delegates = list(program.delegates)
    for number, share in shares.items():
        specs = delegates[number].compile_specs
        if not specs.get(THREADS):
            delegates[number] = delegates[number]._replace(compile_specs={**specs, THREADS: share})
    return program._replace(delegates=tuple(delegates))


def _branches(program: Program) -> Iterator[list[set[int]]]:
    """Yield the delegates of each branch, for all branches that may run in parallel."""
    for method in program.methods:
        for call in walk(method.instructions):
            if isinstance(call, StructuredCall) and call.kind is Structure.PARALLEL:
                inner = (walk(block.instructions) for block in call.blocks)
                yield [{c.delegate for c in calls if isinstance(c, DelegateCall)} for calls in inner]


def _has_thread_option(backend: str, registry: Registry) -> bool:
    try:
        return THREADS in registry.runtime(backend).load_options
    except BackendError:  # reported when its delegate is created
        return False
