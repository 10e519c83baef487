"""Claude Code's transcripts: a copy of a session that ends before one of its turns.

As the SDK's forkSession does it: messages get new ids and name those that they were made from, side
chains and file checkpoints are left out. The session itself is not touched.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .client import write

Entry = dict[str, Any]

MESSAGES = frozenset({"user", "assistant", "attachment", "system", "progress"})
# What belongs to the session that is copied, and to no other.
LEFT_OUT = (
    "teamName",
    "agentName",
    "sessionKind",
    "slug",
    "sourceToolAssistantUUID",
    "summarizedTurnPromptUuids",
    "droppedPromptUuids",
    "sentAsUuid",
    "turnAttributionKey",
)
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
TITLE_CHARS = 80


def find(folder: Path, session: str) -> Path | None:
    """The transcript of a session, in whichever project it is."""
    if not _ID.fullmatch(session):
        return None
    return next(iter(sorted(folder.glob(f"projects/*/{session}.jsonl"))), None)


def fork_before(path: Path, turn_id: str) -> str | None:
    """The id of a new session with what came before the turn; None if nothing did."""
    entries = list(_entries(path))
    kept = before_turn([one for one in entries if one.get("type") in MESSAGES], turn_id)
    if not any(one["type"] in ("user", "assistant") for one in kept):
        return None
    new, title = str(uuid.uuid4()), _title(entries, kept)
    lines = copied(kept, path.stem, new, datetime.now(UTC))
    more = [_copied_replacements(one, new) for one in entries if _is_replacement(one)]
    named = {"type": "custom-title", "sessionId": new, "customTitle": title}
    data = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in [*lines, *more, named])
    write(path.with_name(f"{new}.jsonl"), data.encode("utf-8", "surrogatepass"), 0o600)
    return new


def before_turn(messages: list[Entry], turn_id: str) -> list[Entry]:
    """The messages up to the one that the turn's prompt answered; a ValueError without such a turn.

    In the order of the file: Claude Code goes on from the last one of it.
    """
    main = [one for one in messages if isinstance(one.get("uuid"), str)]
    main = [one for one in main if not one.get("isSidechain")]
    prompt = next((one for one in main if _begins(one, turn_id)), None)
    if prompt is None:
        raise ValueError("the turn is not in the transcript")
    places = {one["uuid"]: n for n, one in enumerate(main)}
    parent = prompt.get("parentUuid")
    return main[: places[parent] + 1] if parent in places else []


def _begins(message: Entry, turn_id: str) -> bool:
    return message.get("type") == "user" and message.get("promptId") == turn_id


def copied(kept: list[Entry], old: str, new: str, now: datetime) -> list[Entry]:
    ids = {one["uuid"]: str(uuid.uuid4()) for one in kept}
    by_id = {one["uuid"]: one for one in kept}
    shown = [one for one in kept if one["type"] != "progress"]
    lines = [_copy(one, ids, by_id, old, new) for one in shown]
    if lines:
        lines[-1]["timestamp"] = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return lines


def _copy(
    one: Entry, ids: Mapping[str, str], by_id: Mapping[str, Entry], old: str, new: str
) -> Entry:
    logical = one.get("logicalParentUuid")
    more = {"logicalParentUuid": ids.get(logical)} if logical else {}
    return {
        **{name: value for name, value in one.items() if name not in LEFT_OUT},
        "uuid": ids[one["uuid"]],
        "parentUuid": ids.get(_parent(one, by_id)),
        **more,
        "sessionId": new,
        "isSidechain": False,
        "forkedFrom": {"sessionId": old, "messageUuid": one["uuid"]},
    }


def _parent(one: Entry, by_id: Mapping[str, Entry]) -> str:
    """The nearest message above that is copied: reports of progress are not."""
    above, seen = str(one.get("parentUuid")), set[str]()
    while above in by_id and by_id[above]["type"] == "progress" and above not in seen:
        seen.add(above)
        above = str(by_id[above].get("parentUuid"))
    return above


def _entries(path: Path) -> Iterator[Entry]:
    """A line that is cut off, as a killed session leaves it, is left out."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def _is_replacement(entry: Entry) -> bool:
    return entry.get("type") == "content-replacement" and not entry.get("agentId")


def _copied_replacements(entry: Entry, session: str) -> Entry:
    return {**entry, "sessionId": session, "uuid": str(uuid.uuid4())}


def _title(entries: list[Entry], kept: list[Entry]) -> str:
    """As the session was called, else its first prompt."""
    for key in ("customTitle", "aiTitle"):
        found = [one[key] for one in entries if isinstance(one.get(key), str) and one[key]]
        if found:
            return f"{found[-1]} (rolled back)"
    prompts = (one["message"].get("content") for one in kept if one["type"] == "user")
    first = next((said for said in prompts if isinstance(said, str)), "Session")
    return f"{' '.join(first.split())[:TITLE_CHARS]} (rolled back)"


def directory(path: Path) -> str:
    """Where the session was begun."""
    found = (one["cwd"] for one in _entries(path) if isinstance(one.get("cwd"), str))
    return next(found, "")
