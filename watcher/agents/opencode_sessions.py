"""OpenCode's sessions: a fork of one that ends before a turn, made by OpenCode itself.

Its server, for a moment, on loopback with a password of its own: a session lies in a database that
changes with its versions, and only the server has a request to fork at a message. The session, and
the files that it could put back as well, are not touched.

Of the user's that server sees the data only. Into the directory of settings OpenCode installs at
each start, under a lock that its next start waits for by the minute if it was ended meanwhile.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from .borrowed import LONGEST, borrowed
from .model import Fork

USER = "opencode"
SERVE = ("serve", "--pure", "--hostname", "127.0.0.1", "--port", "0")
NOT_OURS = ("OPENCODE", "XDG_CONFIG_", "XDG_STATE_", "XDG_CACHE_")
WHERE = ("OPENCODE_DB", "OPENCODE_DISABLE_CHANNEL_DB")
OFFLINE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "npm_config_offline": "true",
}
_LISTENS = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")


def fork_before(program: str, env: Mapping[str, str], session: str, message: str) -> Fork:
    """A session with the messages before the one that began a turn."""
    password = secrets.token_urlsafe(24)
    with (
        TemporaryDirectory(prefix="turnmark-", ignore_cleanup_errors=True) as home,
        borrowed([program, *SERVE], _env(env, home, password), home) as process,
    ):
        server = Server(_port(process.lines()), password)
        try:
            return _fork(server, quote(session, safe=""), message)
        except (KeyError, TypeError) as error:
            raise ValueError(f"this version of it answers in another way ({error!r})") from error


def _env(env: Mapping[str, str], home: str, password: str) -> dict[str, str]:
    """A user with an empty home, who has the real one's sessions."""
    data = env.get("XDG_DATA_HOME") or f"{env.get('HOME', '')}/.local/share"
    kept = {k: v for k, v in env.items() if k in WHERE or not k.startswith(NOT_OURS)}
    own = {"OPENCODE_SERVER_USERNAME": USER, "OPENCODE_SERVER_PASSWORD": password}
    return {**kept, **own, **OFFLINE, "HOME": home, "XDG_DATA_HOME": data}


def _fork(server: Server, session: str, message: str) -> Fork:
    begun = server.ask("GET", f"/session/{session}")["directory"]
    ids = server.messages(session)
    if message not in ids:  # the whole session would be copied
        raise ValueError("the turn is not in the session")
    if ids[0] == message:
        return Fork(None, begun)
    made = server.ask("POST", f"/session/{session}/fork", {"messageID": message})
    if len(server.messages(made["id"])) != ids.index(message):
        server.ask("DELETE", f"/session/{made['id']}")
        raise ValueError("this version of it cannot fork at a message")
    return Fork(made["id"], made["directory"])


def _port(said: Iterator[bytes]) -> int:
    for line in said:
        if found := _LISTENS.search(line):
            return int(found[1])
    raise ValueError("its server did not start")


class Server:
    """Where one server is, and how to be let in."""

    def __init__(self, port: int, password: str) -> None:
        self.port = port
        word = base64.b64encode(f"{USER}:{password}".encode()).decode()
        self.headers = {"authorization": f"Basic {word}", "content-type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST)
        try:
            given = None if body is None else json.dumps(body)
            connection.request(method, path, given, self.headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(f"its server does not answer ({error!r})") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ValueError(_trouble(answer.status, data))
        return json.loads(data)

    def messages(self, session: str) -> list[str]:
        """The ids, oldest first."""
        return [one["info"]["id"] for one in self.ask("GET", f"/session/{session}/message")]


def _trouble(status: int, data: bytes) -> str:
    try:
        return f"OpenCode says: {json.loads(data)['data']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"OpenCode answers with {status}"
