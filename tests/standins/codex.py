"""Answers `codex app-server` as 0.169.0 was recorded to, out of a file of threads.

`mode` in that file: "old" knows no lastTurnId, "odd" speaks of other things, "dies" ends.
"""

from __future__ import annotations

import json
import os
import sys

PAGE = 2
path = os.path.join(os.environ["CODEX_HOME"], "threads.json")


def turns_list(known, asked):
    turns, start = known["threads"][asked["threadId"]]["turns"], int(asked.get("cursor", 0))
    end = min(start + PAGE, start + asked["limit"], len(turns))
    return {"data": turns[start:end], "nextCursor": str(end) if end < len(turns) else None}


def fork(known, asked):
    old, name = known["threads"][asked["threadId"]], f"fork-{len(known['threads'])}"
    ids = [turn["id"] for turn in old["turns"]]
    end = len(ids) if known["mode"] == "old" else ids.index(asked["lastTurnId"]) + 1
    made = {"cwd": old["cwd"], "turns": old["turns"][:end], "config": asked["config"]}
    known["threads"][name] = made
    return {"thread": {"id": name, "cwd": old["cwd"], "turns": []}}


def read(known, asked):
    return {"thread": {"id": asked["threadId"], "cwd": known["threads"][asked["threadId"]]["cwd"]}}


METHODS = {
    "initialize": lambda known, asked: {"userAgent": "turnmark/0.169.0"},
    "thread/read": read,
    "thread/turns/list": turns_list,
    "config/read": lambda known, asked: {"config": {"model": "m", "mcp_servers": {"a.b": {}}}},
    "thread/fork": fork,
    "thread/delete": lambda known, asked: known["threads"].pop(asked["threadId"]) and {},
}


def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main():
    for line in sys.stdin:
        request = json.loads(line)
        with open(path) as file:
            known = json.load(file)
        number, mode = request["id"], known["mode"]
        if mode == "dies":
            return
        say(method="configWarning", params={})
        say(id=number, method="item/tool/requestUserInput", params={})
        if mode == "odd":
            say(id=number, result={"something": "else"})
            continue
        try:
            say(id=number, result=METHODS[request["method"]](known, request["params"]))
        except KeyError as error:
            say(id=number, error={"code": -32600, "message": f"thread not loaded: {error}"})
        with open(path, "w") as file:
            json.dump(known, file)


assert sys.argv[1:] == ["app-server"], sys.argv
main()
