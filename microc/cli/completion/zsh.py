"""Completion for zsh, by its own ``_arguments``, with a line of help for everything."""

from __future__ import annotations

from collections.abc import Sequence

from microc.cli.tree import FOLDERS, Command, Option, Word

_HEAD = """#compdef microc
# Completion of microc for zsh. Once: source <(microc completion zsh). For good: microc completion zsh > a folder of $fpath
# /_microc
_microc_either() {  # the names that are given, or a file
    _alternative "names:name:($*)" "files:file:_files"
}
"""
_LONGEST = 80


def script(commands: Sequence[Command]) -> str:
    """The whole text."""
    program, *others = commands
    lines = [_HEAD.rstrip("\n"), "_microc() {", "    local -a commands", "    commands=("]
    lines += [f"        {_quoted(command.name + ':' + _short(command.help))}" for command in others]
    lines += ["    )", "    local curcontext=$curcontext state line", "    typeset -A opt_args"]
    lines += ["    _arguments -C \\"]
    lines += [f"        {spec} \\" for option in program.options for spec in _specs(option)]
    lines += ["        '1:command:->command' '*::argument:->argument'", "    case $state in", "    command)"]
    lines += ["        _describe command commands", "        ;;", "    argument)", "        case $words[1] in"]
    for command in others:
        specs = [spec for option in command.options for spec in _specs(option)]
        specs += [_place(k, word, last=k == len(command.words)) for k, (word, _) in enumerate(command.words, 1)]
        lines += [f"        {command.name})", "            _arguments \\"]
        lines += [f"                {spec} \\" for spec in specs[:-1]]
        lines += [f"                {specs[-1]}", "            ;;"]
    lines += ["        esac", "        ;;", "    esac", "}"]
    lines += [
        "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then",
        '    _microc "$@"',
        "else",
        "    compdef _microc microc",
        "fi",
    ]
    return "\n".join(lines) + "\n"


def _specs(option: Option) -> list[str]:
    """An option as ``_arguments`` takes it, once for each of its flags; it may come again."""
    help = _short(option.help).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    values = "" if option.word is None else f":{_escaped(option.word.name)}:{_action(option.word)}" * option.count
    equals = "=" if option.count == 1 and option.word is not None else ""
    return [_quoted(f"*{flag}{equals if flag.startswith('--') else ''}[{help}]{values}") for flag in option.flags]


def _place(number: int, word: Word, *, last: bool) -> str:
    return _quoted(f"{'*' if last else number}:{_escaped(word.name)}:{_action(word)}")


def _action(word: Word) -> str:
    """What is offered."""
    choices = " ".join(map(_escaped, word.choices))
    files = "_files -/" if word.kind == FOLDERS else "_files"
    if word.ends:
        files += ' -g "*.(' + "|".join(end[1:] for end in word.ends) + ')"'
    if word.list:
        return f"_sequence compadd - {choices}"
    if choices and word.kind:
        return f"_microc_either {choices}"
    return f"({choices})" if choices else files if word.kind else " "


def _short(text: str) -> str:
    """Help of one line that a terminal has room for."""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _quoted(text: str) -> str:
    """A word in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"
