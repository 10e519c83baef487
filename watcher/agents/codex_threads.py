"""Codex's threads: a fork of one that ends before a turn, made by Codex itself.

Its rollout files name one another and are mirrored in databases, all of which change with its
versions; its app server has a request for it: thread/fork up to a turn. The thread is not touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .borrowed import Borrowed, borrowed
from .model import Fork

Json = dict[str, Any]

PAGE = 100
NAMED = {"name": "turnmark", "title": "turnmark", "version": "1"}


def fork_before(
    program: str,
    env: Mapping[str, str],
    directory: str,
    thread: str,
    turn_id: str | None,
    begun_ns: int,
) -> Fork:
    """A thread with the turns before one; that one is known by its id, else by when it began."""
    with borrowed([program, "app-server"], env, directory) as process:
        server = Server(process)
        try:
            server.ask("initialize", clientInfo=NAMED)
            return _fork(server, thread, turn_id, begun_ns)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this version of it answers in another way ({error!r})") from error
        finally:
            process.dismiss()


def _fork(server: Server, thread: str, turn_id: str | None, begun_ns: int) -> Fork:
    begun = server.ask("thread/read", threadId=thread)["thread"]["cwd"]
    turns = server.turns(thread)
    before = [turn["id"] for turn in turns[: place_of(turns, turn_id, begun_ns)]]
    if not before:
        return Fork(None, begun)
    made = server.ask(
        "thread/fork",
        threadId=thread,
        lastTurnId=before[-1],
        excludeTurns=True,
        config=server.without_tools(begun),
    )["thread"]
    # A version that does not know `lastTurnId` copies everything.
    if [turn["id"] for turn in server.turns(made["id"])] != before:
        server.ask("thread/delete", threadId=made["id"])
        raise ValueError("this version of it cannot fork at a turn")
    return Fork(made["id"], made["cwd"])


def place_of(turns: list[Json], turn_id: str | None, begun_ns: int) -> int:
    """How many turns were before: without an id, those that were over when it began."""
    if turn_id is None:
        ends = [turn.get("completedAt") or turn.get("startedAt") or 0 for turn in turns]
        return sum(1 for end in ends if end <= begun_ns // 1_000_000_000)
    found = next((n for n, turn in enumerate(turns) if turn["id"] == turn_id), None)
    if found is None:
        raise ValueError("the turn is not in the thread")
    return found


class Server:
    """Owns the talk with one app server: JSON-RPC, a line each way."""

    def __init__(self, process: Borrowed) -> None:
        self.process = process
        self.number = 0

    def ask(self, method: str, **params: Any) -> Json:
        self.number += 1
        said = {"id": self.number, "method": method, "params": params}
        try:
            self.process.say(json.dumps(said).encode())
            answer = self._answer()
        except OSError as error:
            raise ValueError(f"its app server does not answer ({error})") from error
        if "error" in answer:
            raise ValueError(f"Codex says: {answer['error'].get('message')}")
        return dict(answer["result"])

    def _answer(self) -> Json:
        """Between the answers come notes, and requests of its own, which we do not know."""
        for line in self.process.lines():
            said: Json = json.loads(line)
            if said.get("id") == self.number and "method" not in said:
                return said
        raise BrokenPipeError("it has ended")

    def turns(self, thread: str) -> list[Json]:
        """Oldest first, without what was said in them."""
        wanted = {"threadId": thread, "sortDirection": "asc", "itemsView": "notLoaded"}
        page = self.ask("thread/turns/list", **wanted, limit=PAGE)
        turns: list[Json] = page["data"]
        while page.get("nextCursor"):
            cursor = page["nextCursor"]
            page = self.ask("thread/turns/list", **wanted, limit=PAGE, cursor=cursor)
            turns += page["data"]
        return turns

    def without_tools(self, directory: str) -> Json:
        """A fork is at once a thread at work, which would start the user's MCP servers."""
        names = self.ask("config/read", cwd=directory)["config"].get("mcp_servers")
        return {"mcp_servers": {name: {"enabled": False} for name in names or ()}}
