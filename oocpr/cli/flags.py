"""Messages in the words of the command line.

All rooms name a parameter as Python has it: ``weight="kg"``, ``resume=True``, or, where there is no value, by
a name that no other word is, such as ``source_column``. Here they become the flags of the same names.
"""

from __future__ import annotations

import re
import shlex
from functools import cache

import click

# Not behind what a path, an address or a quoted word may have before it.
_WITH_VALUE = re.compile(r"""(?<![\w.'"/?&=-])([a-z_]+)=("[^"]*"|'[^']*'|[\w+-]+(?:\.\w+)*)""")
_NAME = re.compile(r"""(?<![\w.'"/?&=-])([a-z]+(?:_[a-z]+)+)(?![\w'"/=(-])""")
_SUBJECT = re.compile(r"([a-z_]+)(?= is )")


@cache
def _options() -> dict[str, click.Option]:
    """All options of all commands, by the names of their parameters."""
    from oocpr.cli.commands import cli

    commands: list[click.Command] = [cli]
    found: dict[str, click.Option] = {}
    for command in commands:
        if isinstance(command, click.Group):
            commands += command.commands.values()
        found |= {str(one.name): one for one in command.params if isinstance(one, click.Option)}
    return found


def in_flags(text: str) -> str:
    """Write a remedy or a notice with flags in place of parameters.

    Examples
    --------
    >>> in_flags('weight="net weight" takes them; or leave resume=True and source_column out.')
    "--weight 'net weight' takes them; or leave --resume and --source-column out."
    >>> in_flags("See http://a.org/?weight=3.")
    'See http://a.org/?weight=3.'
    """
    return _NAME.sub(_named, _WITH_VALUE.sub(_valued, text))


def cause_in_flags(text: str) -> str:
    """Write a cause, which may quote anything, with a flag where its first word is a parameter.

    Examples
    --------
    >>> cause_in_flags("max_passes is 0."), cause_in_flags("web.txt: weight=3 is there.")
    ('--max-passes is 0.', 'web.txt: weight=3 is there.')
    """
    return _SUBJECT.sub(_named, text, count=1) if _SUBJECT.match(text) else text


def _named(found: re.Match[str]) -> str:
    option = _options().get(found[1])
    return found[0] if option is None else max(option.opts, key=len)


def _valued(found: re.Match[str]) -> str:
    option = _options().get(found[1])
    if option is None:
        return found[0]
    flag = max(option.opts, key=len)
    if not option.is_flag:
        return f"{flag} {shlex.quote(found[2].strip(chr(34) + chr(39)))}"
    return flag if found[2] == "True" else next(iter(option.secondary_opts), found[0])
