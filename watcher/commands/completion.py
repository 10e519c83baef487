"""`turnmark completion`: what a shell has to read to complete turnmark's words."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from ..context import Context, pass_context
from ..output import answer


@click.command(
    epilog='For bash: eval "$(turnmark completion bash)" in ~/.bashrc; zsh and fish likewise.'
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_context
def command(context: Context, shell: str) -> None:
    """Print the completion script for SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.Command("turnmark"), {}, "turnmark", "_TURNMARK_COMPLETE")
    # Not kind.source: that one starts a bash to ask for its version.
    answer(
        context,
        {"shell": shell, "script": ShellComplete.source(script)},
        ShellComplete.source(script),
    )
