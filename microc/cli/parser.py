"""Words of a command line: what argparse makes of them, and how it tells of mistakes."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from microc.errors import UsageError, suggestion


class Parser(argparse.ArgumentParser):
    """Mistakes become the one kind of error message that microc has."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, which names what is missing before what is misspelt."""
        if self._subparsers is None:
            self._check_options(list(args or ()))
        return super().parse_known_args(args, namespace)

    def _check_options(self, words: list[str]) -> None:
        for word in words[: words.index("--")] if "--" in words else words:
            name, known = word.partition("=")[0], [each for each in self._option_string_actions if each[:2] == "--"]
            if name.startswith("--") and not any(each.startswith(name) for each in known):
                near = suggestion(name, known, "options")
                raise UsageError(f"{self.prog} has no option {name}", hint=f"{near} (all: {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            named = "/".join(action.option_strings) or action.metavar or action.dest
            what = "command" if named == "COMMAND" else f"choice for {named}"
            raise UsageError(
                f"{value!r} is no {what}",
                hint=suggestion(str(value), map(str, action.choices), "commands" if named == "COMMAND" else "choices"),
            )
