"""How each real agent is set up against the scripted model, asked something, and where it is.

Installed below TURNMARK_AGENTS (see `python -m tests.agents`); nothing of the user's own is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.model import Model
from tests.live import COMMAND, Live, is_running

PREFIX = os.environ.get("TURNMARK_AGENTS", "")
"""Read before the fixtures take every TURNMARK_ variable away."""

SECONDS = 240.0
NOWHERE = "http://127.0.0.1:9"
QUIET = {
    "HTTP_PROXY": NOWHERE,
    "HTTPS_PROXY": NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "IS_SANDBOX": "1",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "TERM": "xterm-256color",
}
FOREIGN = (
    "ANTHROPIC_",
    "OPENAI_",
    "GEMINI_",
    "GOOGLE_",
    "CLAUDE",
    "CODEX_",
    "OPENCODE",
    "QWEN_",
    "COPILOT_",
    "CLINE_",
)

Step = dict[str, Any]


@dataclass(frozen=True)
class Real:
    """One agent: its package, how to ask it, and its tools' names."""

    name: str
    package: str
    program: str
    ask: Callable[[str, list[str]], list[str]]
    newest: tuple[str, ...]
    session: tuple[str, ...]
    """The words that go on with the newest session, and those before the id of another."""
    settings: Callable[[Path, str], dict[str, str]]
    shell: Callable[[str], Step]
    write: Callable[[Path, str], Step]

    @property
    def path(self) -> Path:
        return Path(PREFIX) / "node_modules/.bin" / self.program

    @property
    def missing(self) -> str:
        if not PREFIX:
            return "TURNMARK_AGENTS names no directory with agents; run `python -m tests.agents`"
        return "" if self.path.exists() else f"{self.package} is not installed in {PREFIX}"


def prompt(words: str, *steps: Step) -> str:
    return f"{words} RUN {json.dumps(list(steps))}" if steps else words


HANG: Step = {"hang": True}


@dataclass
class Driven:
    """Owns an agent's home and project, and the processes that were started in them."""

    real: Real
    live: Live
    model: Model
    project: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        user = self.live.base / "user"
        env = {k: v for k, v in self.live.env.items() if not k.startswith(FOREIGN)}
        xdg = {"XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local", "XDG_CACHE_HOME": ".cache"}
        env |= {name: str(user / path) for name, path in xdg.items()}
        env |= QUIET | self.real.settings(user, self.model.url)
        env["PATH"] = f"{self.real.path.parent}:{env['PATH']}"
        # OpenCode believes this rather than its directory, and would work in ours.
        env["PWD"] = str(self.project)
        env.pop("OLDPWD", None)
        self.live.env = env

    def start(
        self, words: str, *, again: bool = False, session: str = "", run: bool = False
    ) -> Any:
        more = [*self.real.session, session] if session else list(self.real.newest) * again
        command = [str(self.real.path), *self.real.ask(words, more)]
        if run:
            command = [*COMMAND, "run", "--", self.real.program, *command[1:]]
        process = subprocess.Popen(
            command,
            cwd=self.project,
            env=self.live.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def ask(self, words: str, **how: Any) -> str:
        process = self.start(words, **how)
        out, _ = process.communicate(timeout=SECONDS)
        said = out.decode(errors="replace")
        assert process.returncode == 0, said
        return str(said)

    def init(self) -> None:
        code, out, err = self.live.run("init", self.real.name)
        assert code == 0, out + err

    def points(self, *more: str) -> list[dict[str, Any]]:
        return [p for p in self.live.points(self.project, *more) if p["kind"] == "turn"]

    def close(self) -> None:
        """All that was started here, by whomever: a hook of an agent that was killed may be about
        to start a service. What knows our directory is ours; two looks, as one may miss a fork."""
        missed = 0
        while missed < 2:
            found = list(self._ours())
            missed = 0 if found else missed + 1
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.communicate()

    def _ours(self) -> Iterator[int]:
        """Processes in whose command line or environment the directory of this test is."""
        base = os.fsencode(f"{self.live.base}/")
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
                if base in words and is_running(int(place.name)):
                    yield int(place.name)


def _json_file(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


# Claude Code


def _ask_claude(words: str, more: list[str]) -> list[str]:
    return ["-p", "--dangerously-skip-permissions", *more, words]


def _set_claude(user: Path, url: str) -> dict[str, str]:
    _json_file(user / ".claude/settings.json", {"theme": "dark", "hooks": {}})
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"}


# Codex


def _ask_codex(words: str, more: list[str]) -> list[str]:
    free = ["--dangerously-bypass-hook-trust", "--dangerously-bypass-approvals-and-sandbox"]
    return ["exec", "--skip-git-repo-check", *free, *more, words]


def _set_codex(user: Path, url: str) -> dict[str, str]:
    (user / ".codex").mkdir()
    (user / ".codex/config.toml").write_text(
        'model = "m"\nmodel_provider = "here"\n\n[model_providers.here]\nname = "here"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "NO_KEY"\n'
    )
    return {"NO_KEY": "none"}


# OpenCode


def _ask_opencode(words: str, more: list[str]) -> list[str]:
    return ["run", "--model", "here/m", *more, words]


def _set_opencode(user: Path, url: str) -> dict[str, str]:
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "here", "options": options}
    config = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "small_model": "here/m",
        "provider": {"here": {**provider, "models": {"m": {"name": "m", "tool_call": True}}}},
        "permission": {"bash": "allow", "edit": "allow"},
    }
    _json_file(user / ".config/opencode/opencode.json", config)
    # With a plugin it asks npm for its types, and waits up to a minute for an answer.
    return {"XDG_STATE_HOME": str(user / ".state"), "npm_config_registry": url}


# Gemini CLI


def _ask_gemini(words: str, more: list[str]) -> list[str]:
    return ["--yolo", "--skip-trust", "-m", "gemini-2.5-flash", *more, "-p", words]


def _set_gemini(user: Path, url: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
    }
    _json_file(user / ".gemini/settings.json", settings)
    return {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": url}


# Copilot CLI


def _ask_copilot(words: str, more: list[str]) -> list[str]:
    free = ["--allow-all-tools", "--allow-all-paths", "--no-auto-update"]
    return [*free, *more, "-p", words]


def _set_copilot(user: Path, url: str) -> dict[str, str]:
    return {
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "none",
        "COPILOT_MODEL": "m",
    }


# Qwen Code


def _ask_qwen(words: str, more: list[str]) -> list[str]:
    return ["--yolo", "--auth-type", "openai", *more, "-p", words]


def _set_qwen(user: Path, url: str) -> dict[str, str]:
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True},
    }
    _json_file(user / ".qwen/settings.json", settings)
    # It sends also what is meant for loopback through a proxy.
    env = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "m"}
    return {**env, "HTTP_PROXY": "", "HTTPS_PROXY": ""}


# Cline


def _ask_cline(words: str, more: list[str]) -> list[str]:
    return ["--auto-approve", "true", "-P", "openai-compatible", "-m", "m", *more, words]


def _set_cline(user: Path, url: str) -> dict[str, str]:
    name = "openai-compatible"
    settings = {"provider": name, "apiKey": "none", "model": "m", "baseUrl": f"{url}/v1"}
    here = {"settings": settings, "tokenSource": "manual", "updatedAt": "2026-01-01T00:00:00.000Z"}
    known = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: here}}
    _json_file(user / ".cline/data/settings/providers.json", known)
    return {}


def _tool(name: str, **given: object) -> Step:
    return {"tool": name, "input": given}


def _patch(path: Path, text: str) -> Step:
    """Codex edits by apply_patch, which it also knows in a shell command."""
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {path.name}\n{lines}*** End Patch\n"
    return _tool("exec_command", cmd=f"apply_patch <<'EOF'\n{patch}EOF\n")


REAL = {
    real.name: real
    for real in (
        Real(
            "claude-code",
            "@anthropic-ai/claude-code",
            "claude",
            _ask_claude,
            ("--continue",),
            ("--resume",),
            _set_claude,
            lambda line: _tool("Bash", command=line, description="d"),
            lambda path, text: _tool("Write", file_path=str(path), content=text),
        ),
        Real(
            "codex",
            "@openai/codex",
            "codex",
            _ask_codex,
            ("resume", "--last"),
            ("resume",),
            _set_codex,
            lambda line: _tool("exec_command", cmd=line),
            _patch,
        ),
        Real(
            "opencode",
            "opencode-ai",
            "opencode",
            _ask_opencode,
            ("--continue",),
            ("--session",),
            _set_opencode,
            lambda line: _tool("bash", command=line, description="d"),
            lambda path, text: _tool("write", filePath=str(path), content=text),
        ),
        Real(
            "gemini",
            "@google/gemini-cli",
            "gemini",
            _ask_gemini,
            ("--resume", "latest"),
            ("--resume",),
            _set_gemini,
            lambda line: _tool("run_shell_command", command=line),
            lambda path, text: _tool("write_file", file_path=str(path), content=text),
        ),
        Real(
            "copilot",
            "@github/copilot",
            "copilot",
            _ask_copilot,
            ("--continue",),
            ("--resume",),
            _set_copilot,
            lambda line: _tool("bash", command=line, description="d"),
            lambda path, text: _tool("create", path=str(path), file_text=text),
        ),
        Real(
            "qwen",
            "@qwen-code/qwen-code",
            "qwen",
            _ask_qwen,
            ("--continue",),
            ("--resume",),
            _set_qwen,
            lambda line: _tool("run_shell_command", command=line, is_background=False),
            lambda path, text: _tool("write_file", file_path=str(path), content=text),
        ),
        Real(
            "cline",
            "cline",
            "cline",
            _ask_cline,
            (),
            ("--id",),
            _set_cline,
            lambda line: _tool("run_commands", commands=[line]),
            lambda path, text: _tool("editor", path=str(path), new_text=text),
        ),
    )
}
