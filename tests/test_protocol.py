"""The service's language: what is sent is what is read, and garbage is an error and no more."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher import protocol
from watcher.actions import ACTIONS
from watcher.protocol import (
    INVALID,
    PARAMS,
    PARSE,
    SAYS_NO,
    Fault,
    ProtocolError,
    Request,
    Response,
    decode_answer,
    decode_request,
    encode_event,
    encode_request,
    encode_response,
)

TEXT = st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
IDS = st.integers() | TEXT


@given(TEXT, OBJECTS, st.none() | IDS)
def test_a_request_is_read_as_it_was_sent(method, params, number):
    line = encode_request(Request(method, params, number))
    assert line.count(b"\n") == 1
    read = decode_request(line)
    assert read == Request(method, params, number, answered=number is not None)


@given(IDS, OBJECTS)
def test_an_answer_is_read_as_it_was_sent(number, result):
    assert decode_answer(encode_response(Response(number, result))) == Response(number, result)


@given(IDS, TEXT, TEXT, TEXT)
def test_an_error_is_read_as_it_was_sent(number, message, kind, hint):
    answer = Response(number, fault=Fault(SAYS_NO, message, kind, hint))
    assert decode_answer(encode_response(answer)) == answer


def test_an_event_is_a_request_that_nobody_answers():
    event = Request("event", {"event": "x"}, answered=False)
    assert decode_answer(encode_event({"event": "x"})) == event


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_an_error_of_the_protocol_or_a_message(line):
    for decode in (decode_request, decode_answer):
        with contextlib.suppress(ProtocolError):
            assert isinstance(decode(line), Request | Response)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", PARSE),
        (b"hello", PARSE),
        (b"\xff\xfe", PARSE),
        (b'{"method":"x","params":{"a":NaN}}', PARSE),
        (b"[" * 100_000, PARSE),
        (b'{"method":"x","params":{"n":' + b"9" * 10_000 + b"}}", PARSE),
        (b"[]", INVALID),
        (b"{}", INVALID),
        (b'{"method":7}', INVALID),
        (b'{"method":"x","id":true}', INVALID),
        (b'{"method":"x","id":{}}', INVALID),
        (b'{"method":"x","params":[1]}', PARAMS),
        (b'{"method":"x","params":' + b'{"a":' * 40 + b"1" + b"}" * 41, INVALID),
    ],
)
def test_what_is_wrong_has_its_code(line, code):
    with pytest.raises(ProtocolError) as caught:
        decode_request(line)
    assert caught.value.code == code


def test_unknown_fields_are_ignored():
    line = b'{"jsonrpc":"2.0","id":1,"method":"x","more":[1],"params":{}}'
    assert decode_request(line) == Request("x", {}, 1)


def test_every_method_is_documented():
    service = Path(protocol.__file__).with_name("service.py").read_text()
    table = service[service.index("self.methods = {") : service.index("self.upkeep = ")]
    methods = {line.split('"')[1] for line in table.splitlines() if line.strip().startswith('"')}
    assert {"hello", "status", "session.open", "shutdown"} <= methods
    words = (protocol.__doc__ or "").replace(",", " ").split()
    assert {method for method in methods | set(ACTIONS) if method not in words} <= {"hello"}
