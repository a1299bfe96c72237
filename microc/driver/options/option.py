"""What an option of a compilation says of itself: for Python, the command line, ``--help``, the documentation and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from microc.driver import accepted
from microc.driver.accepted import Check
from microc.driver.options import words as meaning
from microc.frozen import frozen

READING, COMPILING, STREAMING = (
    "the model",
    "compilation",
    "streaming: a network over a whole sequence, run frame by frame",
)
"""Groups of options. A graph is read under those of the first; functions are made under all."""
READ, WRITTEN, RUN = "read", "written", "run"
"""Uses of the file or folder that an option names. A file of others (``microc.toml``) names those that are written below its own
folder, and those that run only where its user trusts that folder."""


@frozen
class Option:
    """An option.

    - ``check``: what callers may give; its result is the value.
    - ``help``: one text for ``--help`` and for docs/options.md.
    - ``group``: where it stands in both.
    - ``applies``: the models or boards that it says something about; empty: all.
    - ``flag``: its name on the command line; empty: Python alone has it.
    - ``word``: what a word behind the flag means; ValueError says what is wrong with it.
    - ``words``: the words that there are, where they are few, and what each means.
    - ``metavar``: how ``--help`` shows such a word.
    - ``default``: what holds where nothing is said, in words.
    - ``path``: of an option that names a file or folder, what is done with it: READ, WRITTEN or RUN.
    """

    check: Check
    help: str
    group: str = COMPILING
    applies: str = ""
    flag: str = ""
    word: Callable[[str], Any] = str
    words: Mapping[str, Any] = field(default_factory=dict)
    metavar: str = ""
    default: str = ""
    path: str = ""

    @property
    def text(self) -> str:
        """The help with the default behind it."""
        return f"{self.help} (default: {self.default})" if self.default else self.help


def option(value: Any, check: Check, help: str, **more: Any) -> Any:
    """A dataclass field that is an option; ``value``: its default, a mapping's class for an empty one; ``more``: as in
    :class:`Option`."""
    described = {"option": Option(check, help, **more)}
    if (more.get("word") in meaning.PATHS) != (more.get("path") in (READ, WRITTEN, RUN)):
        raise TypeError(f"{more.get('flag')}: an option that names a file declares path=READ, WRITTEN or RUN")
    if isinstance(value, type):
        return field(default_factory=value, metadata=described)
    return field(default=value, metadata=described)


def choice(value: Any, known: Sequence[Any], help: str, name: str, **more: Any) -> Any:
    """A field of one of few values, which are spelled alike in Python and on the command line."""

    def check(_: str, given: Any) -> Any:
        return accepted.choice(name, given, known)

    words = {str(each): each for each in known}
    return option(value, check, help, words=words, default=str(value), **more)


def joined(default: Any, parts: Iterable[Any]) -> Any:
    """What the words behind a flag say together that may be given several times: pairs are a mapping, all else a sequence."""
    return dict(parts) if isinstance(default, Mapping) else tuple(each for part in parts for each in part)
