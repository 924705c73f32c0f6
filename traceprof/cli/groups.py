"""A group of commands that suggests the closest one for an unknown name."""

from __future__ import annotations

import click

from traceprof.errors import closest


class SuggestingGroup(click.Group):
    """A group that suggests the closest of its commands, including those created on demand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, its name, and the other arguments."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            meant = closest(name, self.list_commands(ctx))
            suggestion = "" if meant is None else f" Did you mean {meant!r}?"
            ctx.fail(f"No such command {name!r}.{suggestion}")
        return super().resolve_command(ctx, args)
