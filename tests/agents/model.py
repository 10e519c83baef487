"""A scripted stand-in for the models' APIs on loopback, so that real agents can be driven offline.

Speaks as much as the agents need of Anthropic's Messages, OpenAI's Responses and Chat Completions,
and Gemini's generateContent. A prompt `... RUN [{"tool": NAME, "input": {...}}, ...]` has the model
call these tools one after the other and then say "done"; `{"hang": true}` in place of a tool makes
it say nothing until the agent goes away, and beside one until it is released.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
Step = dict[str, Any]
MARK = "RUN ["


@dataclass(frozen=True)
class Said:
    """One item of a conversation as the model is shown it."""

    role: str
    text: str


@dataclass
class Request:
    """What an agent asked for: the conversation so far, and the tools it offered."""

    api: str
    said: list[Said]
    tools: list[str]

    @property
    def prompts(self) -> list[str]:
        return [one.text for one in self.said if one.role == "user"]


@dataclass
class Model:
    """Owns the server and what it was asked."""

    requests: list[Request] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    hanging: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Model:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, api: str, body: Json) -> Step | None:
        """The next tool to be called; None when all are done."""
        request = READERS[api](body)
        self.requests.append(request)
        script, done = _script(request.said)
        if not request.tools or done >= len(script):
            return None
        step = script[done]
        if step.get("hang"):
            self.hanging.set()
            self.released.wait(60)
        return step if "tool" in step else None

    def _handler(model: Model) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                self.send(200, "application/json", b'{"data": [], "models": []}')

            def do_HEAD(self) -> None:
                self.send(200, "application/json", b"")

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                api = _api(self.path)
                if api is None:
                    model.other.append(self.path)
                    reply = {"input_tokens": 10, "totalTokens": 10}
                    self.send(200, "application/json", json.dumps(reply).encode())
                    return
                body = json.loads(raw)
                step = model.answer(api, body)
                streams = bool(body.get("stream")) or "streamGenerateContent" in self.path
                data = WRITERS[api](body, step, streams)
                kind = "text/event-stream" if streams else "application/json"
                self.send(200, kind, data)

            def send(self, code: int, kind: str, data: bytes) -> None:
                try:
                    self.send_response(code)
                    self.send_header("content-type", kind)
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:
                    return  # the agent was interrupted

        return Handler


def _api(path: str) -> str | None:
    path = path.split("?")[0]
    if path.endswith("/messages"):
        return "anthropic"
    if path.endswith("/responses"):
        return "responses"
    if path.endswith("/chat/completions"):
        return "chat"
    return "gemini" if path.endswith(("generateContent", "GenerateContent")) else None


def _script(said: Iterable[Said]) -> tuple[list[Step], int]:
    """The newest script, and how many of its tools have been run."""
    script: list[Step] = []
    done = 0
    for one in said:
        if one.role == "user" and MARK in one.text:
            script, done = _decoded(one.text[one.text.index(MARK) + len(MARK) - 1 :]), 0
        elif one.role == "tool":
            done += 1
    return script, done


def _decoded(raw: str) -> list[Step]:
    """OpenCode puts a prompt of several words in quotes, and a backslash before those in it."""
    for text in (raw, raw.replace('\\"', '"')):
        try:
            script, _ = json.JSONDecoder().raw_decode(text)
            return list(script)
        except ValueError:
            continue
    return []


# Reading what agents send


def _blocks(content: Any) -> Iterator[Json]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        yield from (block for block in content if isinstance(block, dict))


def _text(block: Json) -> str:
    return str(block.get("text") or block.get("content") or block.get("output") or "")


def _read_anthropic(body: Json) -> Request:
    said = []
    for message in body["messages"]:
        for block in _blocks(message["content"]):
            role = "tool" if block.get("type") == "tool_result" else message["role"]
            if block.get("type") in ("text", "tool_result"):
                said.append(Said(role, _text(block)))
    return Request("anthropic", said, [tool.get("name", "") for tool in body.get("tools", [])])


def _read_responses(body: Json) -> Request:
    said = []
    for item in body["input"]:
        if item.get("type", "message") == "message":
            said += [Said(item["role"], _text(block)) for block in _blocks(item["content"])]
        elif str(item.get("type")).endswith("_output"):
            said.append(Said("tool", _text(item)))
    names = [str(tool.get("name") or tool.get("type")) for tool in body.get("tools", [])]
    return Request("responses", said, names)


def _read_chat(body: Json) -> Request:
    said = []
    for message in body["messages"]:
        texts = " ".join(_text(block) for block in _blocks(message.get("content")))
        said.append(Said(message["role"], texts))
    return Request("chat", said, [tool["function"]["name"] for tool in body.get("tools", [])])


def _read_gemini(body: Json) -> Request:
    said = []
    for content in body["contents"]:
        for part in content["parts"]:
            if "functionResponse" in part:
                said.append(Said("tool", json.dumps(part["functionResponse"])))
            elif "text" in part:
                said.append(Said(content.get("role", "user"), part["text"]))
    declared = [
        one for tool in body.get("tools", []) for one in tool.get("functionDeclarations", [])
    ]
    return Request("gemini", said, [one["name"] for one in declared])


READERS: dict[str, Callable[[Json], Request]] = {
    "anthropic": _read_anthropic,
    "responses": _read_responses,
    "chat": _read_chat,
    "gemini": _read_gemini,
}


# Writing what models say


def _id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:20]


def _events(events: Iterable[tuple[str, Json]]) -> bytes:
    rows = (f"event: {n}\ndata: {json.dumps({'type': n, **data})}\n\n" for n, data in events)
    return "".join(rows).encode()


def _chunks(chunks: Iterable[Json], end: str = "") -> bytes:
    return ("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + end).encode()


def _write_anthropic(body: Json, step: Step | None, streams: bool) -> bytes:
    block: Json = {"type": "text", "text": "done"}
    if step:
        tool = {"id": _id("toolu_"), "name": step["tool"], "input": step["input"]}
        block = {"type": "tool_use", **tool}
    stop = "tool_use" if step else "end_turn"
    message = {
        "id": _id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "m"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }
    if not streams:
        return json.dumps({**message, "content": [block], "stop_reason": stop}).encode()
    empty: Json = {"type": "text", "text": ""}
    delta: Json = {"type": "text_delta", "text": "done"}
    if step:
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step["input"])}
    ended = {"stop_reason": stop, "stop_sequence": None}
    return _events(
        [
            ("message_start", {"message": message}),
            ("content_block_start", {"index": 0, "content_block": empty}),
            ("content_block_delta", {"index": 0, "delta": delta}),
            ("content_block_stop", {"index": 0}),
            ("message_delta", {"delta": ended, "usage": {"output_tokens": 5}}),
            ("message_stop", {}),
        ]
    )


def _write_responses(body: Json, step: Step | None, streams: bool) -> bytes:
    part = {"type": "output_text", "text": "done", "annotations": []}
    item: Json = {"type": "message", "id": _id("msg_"), "role": "assistant", "content": [part]}
    if step and isinstance(step["input"], str):
        named = {"call_id": _id("call_"), "name": step["tool"], "input": step["input"]}
        item = {"type": "custom_tool_call", "id": _id("ctc_"), **named}
    elif step:
        named = {"call_id": _id("call_"), "name": step["tool"]}
        arguments = json.dumps(step["input"])
        item = {"type": "function_call", "id": _id("fc_"), **named, "arguments": arguments}
    usage = {
        "input_tokens": 10,
        "input_tokens_details": None,
        "output_tokens": 5,
        "output_tokens_details": None,
        "total_tokens": 15,
    }
    response = {"id": _id("resp_"), "object": "response", "model": body.get("model", "m")}
    ended = {**response, "status": "completed", "output": [item], "usage": usage}
    if not streams:
        return json.dumps(ended).encode()
    return _events(
        [
            ("response.created", {"response": {**response, "status": "in_progress"}}),
            ("response.output_item.done", {"output_index": 0, "item": item}),
            ("response.completed", {"response": ended}),
        ]
    )


def _write_chat(body: Json, step: Step | None, streams: bool) -> bytes:
    said: Json = {"role": "assistant", "content": "done"}
    if step:
        function = {"name": step["tool"], "arguments": json.dumps(step["input"])}
        call = {"index": 0, "id": _id("call_"), "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [call]}
    stop = "tool_calls" if step else "stop"
    base = {"id": _id("chatcmpl-"), "created": 1, "model": body.get("model", "m")}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    if not streams:
        choice = {"index": 0, "message": said, "finish_reason": stop}
        whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        return json.dumps(whole).encode()
    chunk = {**base, "object": "chat.completion.chunk"}
    first = {**chunk, "choices": [{"index": 0, "delta": said, "finish_reason": None}]}
    last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}], "usage": usage}
    return _chunks([first, last], "data: [DONE]\n\n")


def _write_gemini(body: Json, step: Step | None, streams: bool) -> bytes:
    part: Json = {"text": "done"}
    if step:
        part = {"functionCall": {"name": step["tool"], "args": step["input"]}}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    reply = {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": usage,
        "modelVersion": "m",
    }
    return _chunks([reply]) if streams else json.dumps(reply).encode()


WRITERS: dict[str, Callable[[Json, Step | None, bool], bytes]] = {
    "anthropic": _write_anthropic,
    "responses": _write_responses,
    "chat": _write_chat,
    "gemini": _write_gemini,
}
