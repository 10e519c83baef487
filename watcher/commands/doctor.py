"""`turnmark doctor`: what is wrong, and how to mend it."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..checkup import look
from ..cli import FAILED, OK
from ..context import Context, pass_context
from ..output import answer

SIGNS = {"ok": "ok     ", "hint": "hint   ", "problem": "PROBLEM"}


@click.command()
@pass_context
def command(context: Context) -> int:
    """Look for what is wrong, with one line of cure each; exit 1 if there is something."""
    findings = list(look(context))
    lines = []
    for one in findings:
        lines.append(f"{SIGNS[one.level]}  {one.what}")
        if one.cure:
            lines.append(f"         -> {one.cure}")
    sick = any(one.level == "problem" for one in findings)
    data = {"ok": not sick, "findings": [asdict(one) for one in findings]}
    answer(context, data, "\n".join(lines))
    return FAILED if sick else OK
