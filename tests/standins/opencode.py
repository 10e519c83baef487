"""Serves sessions out of a file as `opencode serve` 1.18.33 was recorded to.

`mode` in that file: "old" copies all of a session, "dies" does not come up.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

path = os.path.join(os.environ["XDG_DATA_HOME"], "opencode.json")
word = f"{os.environ['OPENCODE_SERVER_USERNAME']}:{os.environ['OPENCODE_SERVER_PASSWORD']}"
allowed = "Basic " + base64.b64encode(word.encode()).decode()


def messages(ids):
    return [{"info": {"id": name, "role": "user"}, "parts": []} for name in ids]


def fork(known, old, asked):
    ids, name = known["sessions"][old]["messages"], f"ses_fork{len(known['sessions'])}"
    end = ids.index(asked["messageID"]) if asked["messageID"] in ids else len(ids)
    kept = ids if known["mode"] == "old" else ids[:end]
    made = {**known["sessions"][old], "messages": [f"{one}-copy" for one in kept]}
    known["sessions"][name] = made
    return {"id": name, "directory": made["directory"], "title": "t (fork #1)"}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        return

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def do_DELETE(self):
        self.answer()

    def answer(self):
        if self.headers.get("authorization") != allowed:
            return self.say(401, {})
        with open(path) as file:
            known = json.load(file)
        _, _, session, *rest = self.path.split("/")
        one = known["sessions"].get(session)
        if one is None:
            said = {"message": f"Session not found: {session}"}
            return self.say(404, {"name": "NotFoundError", "data": said})
        if self.command == "DELETE":
            result = known["sessions"].pop(session) and True
        elif rest == ["message"]:
            result = messages(one["messages"])
        elif rest == ["fork"]:
            size = int(self.headers["content-length"])
            result = fork(known, session, json.loads(self.rfile.read(size)))
        else:
            result = {"id": session, "directory": one["directory"]}
        with open(path, "w") as file:
            json.dump(known, file)
        return self.say(200, result)

    def say(self, code, value):
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


assert sys.argv[1:] == ["serve", "--pure", "--hostname", "127.0.0.1", "--port", "0"], sys.argv
assert os.listdir(os.environ["HOME"]) == [], "it would install into the user's settings"
assert not any(name.startswith(("XDG_CONFIG", "XDG_STATE")) for name in os.environ)
with open(path) as file:
    dies = json.load(file)["mode"] == "dies"
if not dies:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(
        f"warning\nopencode server listening on http://127.0.0.1:{server.server_port}\n"
    )
    sys.stdout.flush()
    server.serve_forever()
