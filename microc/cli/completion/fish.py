"""Completion for fish: a line for every command and option."""

from __future__ import annotations

from collections.abc import Sequence

from microc.cli.tree import FOLDERS, Command, Option, Word

_HEAD = """# Completion of microc for fish. Once: microc completion fish | source. For good: microc completion fish >
# ~/.config/fish/completions/microc.fish
complete -c microc -f
"""


def script(commands: Sequence[Command]) -> str:
    """The whole text."""
    program, *others = commands
    lines = [_HEAD.rstrip("\n")]
    lines += [_line("__fish_use_subcommand", *_option(option)) for option in program.options]
    for command in others:
        lines.append(_line("__fish_use_subcommand", f"-a {command.name}", f"-d {_quoted(command.help)}"))
        inside = f"__fish_seen_subcommand_from {command.name}"
        lines += [_line(inside, f"-a {_quoted(offered)}") for word, _ in command.words if (offered := _offered(word))]
        lines += [_line(inside, *_option(option)) for option in command.options]
    return "\n".join(lines) + "\n"


def _option(option: Option) -> list[str]:
    """The flags, what follows, the help."""
    parts = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.word is not None:
        parts.append("-x")
        offered = _offered(option.word)
        parts += [f"-a {_quoted(offered)}"] if offered else []
    return [*parts, *([f"-d {_quoted(option.help)}"] if option.help else [])]


def _offered(word: Word) -> str:
    """What fish is to evaluate for the words that may stand here."""
    choices = " ".join(word.choices)
    if word.list and choices:
        choices = f"(__fish_append , {choices})"
    files = ""
    if word.kind == FOLDERS:
        files = "(__fish_complete_directories)"
    elif word.ends:
        files = " ".join(f"(__fish_complete_suffix {end})" for end in word.ends)
    elif word.kind:
        files = "(__fish_complete_path)"
    return " ".join(filter(None, (choices, files)))


def _line(condition: str, *parts: str) -> str:
    return " ".join(("complete -c microc -n", _quoted(condition), *parts))


def _quoted(text: str) -> str:
    """A word in single quotes, where fish knows two escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
