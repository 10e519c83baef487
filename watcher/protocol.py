"""The service's language: newline-delimited JSON-RPC 2.0 over a Unix socket, both ways, as values.

Written so that another language can speak it. One JSON object per line, UTF-8 (in practice ASCII
with escapes: a name that is not UTF-8 is a string with lone surrogates, as Python's
`surrogateescape` makes them). A request has `id`, `method` and `params` (an object); its answer has
the same `id` and `result` or `error`. Requests of one connection are answered one after the other;
open a second connection for what must not wait. A request line has at most 1 MiB and 32 levels,
and must be complete 10 seconds after its first byte; an answer may be longer. Unknown fields are
ignored. Only connections of the service's own user, or root, are answered.

    -> {"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":[1],"client_version":"0.1.0"}}
    <- {"jsonrpc":"2.0","id":1,"result":{"protocol":1,"version":"0.1.0","pid":4711,"store":"/..."}}

`hello` is optional, and may be sent together with what follows; without it protocol 1 is spoken.

Errors: `code` is -32700 (no JSON), -32600 (no request), -32601 (no such method), -32602 (params),
-32603 (a bug; the connection stays), -32000 (turnmark says no) or -32001 (too many connections,
too slow, too long: the connection is closed). `data` has `kind` (a class of core.errors: Busy,
BadInput, Refused, ...; or Unavailable, NotWatched) and `hint`.

Methods. DIR is an absolute path; every writing method takes one `dir`, the root of a workspace,
answers as the command of its name does with --json, plus `people`: what the command line prints.
It waits for a barrier, so its snapshot holds everything written before the request; `wait` is how
many seconds it may take (default 600), after which it is not done at all (kind Busy).

    status                                   as `turnmark status --json`
    roots                                    {"roots":[DIR...]}, those that are watched
    watch {dirs} / unwatch {dirs}            {"workspaces":[...]} as in status
    progress {dirs}                          {"workspaces":[{"root","state","reason","ready",
                                             "dirs_done","dirs_known","files"}]}
    snapshot {dir}
    mark {dir, label, agent, always}         `always` false: none where the newest state is a point
                                             already; then `marked` says if one was made
    rollback {dir, point, paths, plan, dry_run, mine_stays}      undo, redo {dir, plan, dry_run}
    rollback.together {dirs, points, plans, mine_stays, dry_run}     all of them, or none: a point
                                             (and a plan, if one was shown) for each of the dirs,
                                             watched or not: {"workspaces":[...],"reason":""}, the
                                             reason being why nothing came of it
    revert {dir, turns, session, side, plan, dry_run}     `side`: "", markers, mine or theirs
                                             `plan` as shown by a dry run, "" to go without
    pin {dir, point}                         unpin {dir, point}
    turn.begin {dirs, session, turn_id, prompt, messages, agent, pid, run, late_after_ns}
                                             `run`: the session of `turnmark run` around it, whose
                                             directories are marked too; `own`: a turn that gives
                                             way to the next one of its session or its parts
    turn.end {dirs, session, turn_id, messages, status}      no dirs: all of the session's
                                             {"marks":[...],"errors":[{"dir","error","hint","kind"}]}
    session.open {dirs, session, agent, pid} watches the dirs as long as the session lasts:
                                             {"workspaces":[...],"errors":[...]}
    session.pid {session, pid}               one more process that keeps the session open
    session.close {session, status}          {"known":bool,"turns":N,"files":N,"errors":[...]}
    hook {agent, event, payload, env, cwd, pid, time_ns, wait_ms}    from watcher/hook.py: an event
                                             of an agent, its payload in base64; {"out":what the
                                             hook is to print, in base64}
    subscribe                                {}, then `event` notifications until the end
    stay                                     does not end by itself when nobody needs it
    reload                                   reads the configuration again: {"error":""}
    shutdown                                 {"pid":N}; the service ends when all is committed

    <- {"jsonrpc":"2.0","method":"event","params":{"event":"snapshot","workspace":ID,"id":COMMIT,
        "seq":N,"changed":N}}

A follower that does not read loses its connection, never an event in the middle. Other events than
`snapshot` (`turn`, `rollback`, `state`, ...) may come; ignore those that you do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSIONS = (1,)
MAX_REQUEST = 1 << 20
MAX_ANSWER = 1 << 28
MAX_DEPTH = 32
LINE_SECONDS = 10.0

PARSE, INVALID, NO_METHOD, PARAMS, INTERNAL = -32700, -32600, -32601, -32602, -32603
SAYS_NO, CLOSED = -32000, -32001


class ProtocolError(Exception):
    """A line that is no message, or one that cannot be served; told to the other side."""

    def __init__(self, code: int, message: str, request: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.request = request if isinstance(request, int | str) else None


@dataclass(frozen=True, slots=True)
class Request:
    """What one side asks of the other; without an id, be it null, nobody waits for an answer."""

    method: str
    params: Mapping[str, Any]
    id: int | str | None = None
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as it crosses the socket."""

    code: int
    message: str
    kind: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request: a result or a fault."""

    id: int | str | None
    result: Mapping[str, Any] | None = None
    fault: Fault | None = None


def encode_request(request: Request) -> bytes:
    message: dict[str, Any] = {"method": request.method, "params": request.params}
    if request.id is not None:
        message["id"] = request.id
    return _line(message)


def encode_event(event: Mapping[str, Any]) -> bytes:
    return encode_request(Request("event", event))


def encode_response(response: Response) -> bytes:
    fault = response.fault
    if fault is None:
        return _line({"id": response.id, "result": response.result})
    data = {"kind": fault.kind, "hint": fault.hint}
    error = {"code": fault.code, "message": fault.message, "data": data}
    return _line({"id": response.id, "error": error})


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def decode_request(line: bytes) -> Request:
    message = _object(line)
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if isinstance(number, bool) or not isinstance(number, int | str | None):
        raise ProtocolError(INVALID, "The id is neither a number nor a string.")
    if not isinstance(method, str):
        raise ProtocolError(INVALID, "There is no method.", number)
    if not isinstance(params, dict):
        raise ProtocolError(PARAMS, "The params are not an object.", number)
    return Request(method, params, number, answered="id" in message)


def decode_answer(line: bytes) -> Response | Request:
    """What a client reads: the answer to a request, or an event."""
    message = _object(line)
    if "method" in message:
        return decode_request(line)
    number, result, error = message.get("id"), message.get("result"), message.get("error")
    if isinstance(error, dict):
        return Response(number, fault=_fault(error))
    if not isinstance(result, dict):
        raise ProtocolError(INVALID, "The answer has neither a result nor an error.", number)
    return Response(number, result)


def _fault(error: dict[str, Any]) -> Fault:
    data = error.get("data")
    more = data if isinstance(data, dict) else {}
    code = error.get("code")
    return Fault(
        code if isinstance(code, int) else INTERNAL,
        str(error.get("message", "")),
        str(more.get("kind", "")),
        str(more.get("hint", "")),
    )


def _object(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(PARSE, f"This line is not JSON: {_short(error)}.") from error
    if not isinstance(message, dict):
        raise ProtocolError(INVALID, "A message is a JSON object.")
    if _is_deep(message):
        raise ProtocolError(INVALID, f"More than {MAX_DEPTH} levels.", message.get("id"))
    return message


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if isinstance(error, ValueError) else "nested too deep"


def _is_deep(message: object) -> bool:
    level: list[object] = [message]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _inner(one)]
        if not level:
            return False
    return True


def _inner(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
