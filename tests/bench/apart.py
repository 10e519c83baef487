"""A row in a process of its own, from a parent that has done nothing yet: as small as a service."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import TypeVar

from watcher.memory import keep_some

from .bench import Bench

T = TypeVar("T")
Rows = Callable[[Bench], Iterator[T]]


class Failed(Exception):
    """The row's process told of an error, or died."""


def apart(rows: Rows[T], bench: Bench) -> Iterator[T]:
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(rows, bench, send))
    process.start()
    send.close()
    try:
        while True:
            found = receive.recv()
            if isinstance(found, Failed):
                raise found
            yield found
    except EOFError:
        process.join()
        if process.exitcode:
            raise Failed(f"the row's process ended with {process.exitcode}") from None
    finally:
        receive.close()
        process.terminate()  # where nobody asks for the rest
        process.join()


def _measure(rows: Rows[T], bench: Bench, send: Connection) -> None:
    keep_some()
    try:
        for found in rows(bench):
            send.send(found)
    except Exception as error:  # noqa: BLE001 - told to whoever waits
        send.send(Failed(f"{type(error).__name__}: {error}"))
    finally:
        bench.close()
        send.close()
