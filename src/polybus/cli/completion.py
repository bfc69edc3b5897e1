"""`polybus completion`: the script that lets a shell complete verbs, flags and values."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(polybus completion bash)"     in ~/.bashrc
    zsh:   eval "$(polybus completion zsh)"      in ~/.zshrc, after compinit
    fish:  polybus completion fish > ~/.config/fish/completions/polybus.fish
    """
    script = get_completion_class(shell)
    assert script is not None, "click knows each of the choices"
    # Not `source()`, which asks the bash on the path for its version: the script may be for another machine.
    made = script(ctx.find_root().command, {}, "polybus", "_POLYBUS_COMPLETE")
    click.echo(made.source_template % made.source_vars())
