"""A process that follows commands from a pipe: a Python worker without Spark."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.state import helpers
from tests.state.helpers import Changes, Contents
from tidemill.state.local_store import LocalReader, LocalStore
from tidemill.state.partition_files import PartitionFiles
from tidemill.state.partition_state import OperatorState, attempt, reading

_views: list[tuple[ExitStack, LocalReader]] = []


class Worker:
    """The test's end of the pipe."""

    def __init__(self, local: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, local), daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, command: Callable[..., Any], *args: Any) -> None:
        self._pipe.send((command, args))

    def answer(self) -> Any:
        assert self._pipe.poll(60), "no answer"
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ask(self, command: Callable[..., Any], *args: Any) -> Any:
        self.tell(command, *args)
        return self.answer()

    def go_on(self) -> Any:
        self._pipe.send(None)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, local: Path) -> None:
    helpers.on_executor(local)
    while True:
        try:
            command, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(command(*args) if command not in BLOCKING else command(pipe, *args))
        except Exception as error:
            pipe.send(error)


# -- commands ------------------------------------------------------------------------------------


def on_executor(local: Path) -> None:
    helpers.on_executor(local)


def run(state: OperatorState, base: str | None, batch_id: int, changes: Changes) -> str:
    return helpers.run(state, base, batch_id, changes, batch_id).version


def read(state: OperatorState, version: str | None) -> Contents:
    return helpers.read(state, version)


def read_again_and_again(
    state: OperatorState, version: str, times: int
) -> set[tuple[tuple[bytes, tuple[bytes, int]], ...]]:
    return {tuple(sorted(helpers.read(state, version).items())) for _ in range(times)}


def open_view(state: OperatorState, version: str | None) -> None:
    stack = ExitStack()
    _views.append((stack, stack.enter_context(reading(state, 0, version))))


def look() -> list[Contents]:
    return [helpers.contents(reader) for _, reader in _views]


def close_views() -> None:
    for stack, _ in _views:
        stack.close()
    _views.clear()


def read_in_a_fork(state: OperatorState, before: str, version: str) -> list[Contents]:
    """Fork like PySpark's daemon: the child must not use the stores that its parent has open."""
    mine = helpers.read(state, before)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            sender.send(helpers.read(state, version))
        finally:
            os._exit(0)
    theirs = receiver.recv()
    os.waitpid(child, 0)
    return [mine, theirs, helpers.read(state, before), helpers.read(state, version)]


def load_and_stop(
    pipe: Connection, state: OperatorState, version: str, steps: int, in_transaction: bool
) -> Contents:
    """Pause in the middle of loading a version, until told to continue, or killed."""
    left = steps

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            pipe.send(os.getpid())
            pipe.recv()

    apply, opened = LocalStore._apply, PartitionFiles.opened

    def apply_and_stop(store: LocalStore, *args: Any, **kwargs: Any) -> None:
        apply(store, *args, **kwargs)
        step()

    @contextmanager
    def opened_with_stops(files: PartitionFiles, name: str) -> Iterator[Any]:
        with opened(files, name) as (header, batches):
            yield header, ((step(), records)[1] for records in batches)

    with pytest.MonkeyPatch.context() as patch:
        if in_transaction:
            patch.setattr(LocalStore, "_apply", apply_and_stop)
        else:
            patch.setattr(PartitionFiles, "opened", opened_with_stops)
        return helpers.read(state, version)


def run_and_stop(pipe: Connection, state: OperatorState, base: str | None, batch_id: int) -> None:
    """Pause in the middle of a batch, to be killed."""
    with attempt(state, 0, base, batch_id, False) as current:
        for n in range(20_000):
            current.transaction.put(b"half %d" % n, bytes(100), 0)
        pipe.send(os.getpid())
        pipe.recv()


BLOCKING = (load_and_stop, run_and_stop)
