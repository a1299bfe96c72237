# SPDX-License-Identifier: Apache-2.0
"""Files for shells and man(1), generated from the declarations of all commands: completion scripts and the manual page.

The scripts do not call microc. A metavar tells what the value of an argument may be: ``F.html`` is a file of that suffix."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from microc import __version__
from microc.base.immutable import frozen
from microc.cli import show
from microc.cli.declared.board_commands import CompletionArguments, ManArguments
from microc.cli.declared.declarations import EVERYWHERE, HELP, VERSION, Argument, Arguments, Command
from microc.cli.parser import COMMANDS, DESCRIPTION, EXIT_CODES
from microc.document.blocks import Code, document

# ---- The values of arguments.

FILES, FOLDERS = "files", "folders"
_MODEL_SUFFIXES = (".tflite", ".onnx", ".keras", ".pt2", ".mcg", ".txt")
_FILE_SUFFIXES = (".npz", ".npy", ".csv", ".html", ".json", ".jsonl", ".py", ".toml")


@frozen
class Value:
    """The value of an argument, for completion: which names, files or folders it may be.

    ``name``: the metavar; ``choices``: names that the value may be; ``path_type``: :data:`FILES` or :data:`FOLDERS` if it may be
    a path, else empty; ``suffixes``: suffixes of these files, empty for all files; ``is_list``: True if the value may be several
    names, separated by commas."""

    name: str
    choices: tuple[str, ...] = ()
    path_type: str = ""
    suffixes: tuple[str, ...] = ()
    is_list: bool = False


def value_of_argument(argument: Argument) -> Value:
    """Derive the value of an argument from its choices, names and metavar."""
    metavar = argument.metavar or argument.metavars[0]
    if argument.choices:
        return Value(metavar, tuple(map(str, argument.choices)))
    if argument.names is not None:
        return Value(metavar, tuple(argument.names()), FILES, (".toml",), is_list=metavar.endswith(",..."))
    value = metavar.removeprefix("[NAME=]")
    if "|" in value and value != metavar:
        return Value(metavar, tuple(value.split("|")))
    if re.fullmatch("[a-z]+(,[a-z]+)+", metavar):
        return Value(metavar, tuple(metavar.split(",")), is_list=True)
    upper = metavar.upper()
    if "MODEL" in upper and argument.word is Path:
        return Value(metavar, (), FILES, _MODEL_SUFFIXES)
    if upper == "DIR":
        return Value(metavar, (), FOLDERS)
    if argument.word is Path or any(part in upper for part in ("FILE", "PATH", "PORT")):
        return Value(metavar, (), FILES, tuple(end for end in _FILE_SUFFIXES if upper.endswith(end.upper())))
    return Value(metavar)


def list_options(arguments: type[Arguments]) -> list[Argument]:
    """List the options of a command that ``--help`` shows, ``--help`` first."""
    sections = arguments.sections().values()
    return [
        HELP,
        *(argument for section in sections for argument in section.values() if argument.flags and argument.help),
    ]


def list_positionals(arguments: type[Arguments]) -> list[Argument]:
    """List the positional arguments of a command."""
    return [argument for argument in arguments.own_arguments().values() if not argument.flags]


_PROGRAM_OPTIONS = [HELP, VERSION, *list_options(Arguments)[1:]]
"""Options of the program itself, in front of a command."""


# ---- Completion for bash 3.2 and newer: a shell function that does not call microc.

_BASH_HEAD = r"""# Completion of microc for bash. Once: source <(microc completion bash). For good: microc completion bash >
# ~/.local/share/bash-completion/completions/microc
_microc_words() {  # those of the first argument that the word begins as
    COMPREPLY+=($(compgen -W "$1" -- "$cur"))
}
_microc_list() {  # the same behind the last comma
    local done=""
    [[ $cur == *,* ]] && done="${cur%,*},"
    COMPREPLY=($(compgen -P "$done" -W "$1" -- "${cur##*,}"))
}
_microc_files() {  # folders, and the files that end as one of the arguments; all of them without any
    local path end
    while IFS= read -r path; do
        if [[ -d $path || $# -eq 0 ]]; then
            COMPREPLY+=("$path")
            continue
        fi
        for end in "$@"; do
            [[ $path == *"$end" ]] && COMPREPLY+=("$path")
        done
    done < <(compgen -f -- "$cur")
    compopt -o filenames 2>/dev/null
}
_microc_folders() {
    local path
    while IFS= read -r path; do
        COMPREPLY+=("$path")
    done < <(compgen -d -- "$cur")
    compopt -o filenames 2>/dev/null
}
_microc() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command="" k
    COMPREPLY=()
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((k = 1; k < COMP_CWORD; ++k)); do
        if [[ ${COMP_WORDS[k]} != -* ]]; then
            command=${COMP_WORDS[k]}
            break
        fi
    done
"""


def bash_script(commands: Mapping[str, Command]) -> str:
    """Return the completion script for bash."""
    lines = [_BASH_HEAD.rstrip("\n"), '    case "$command" in']
    lines += ["    '')", *_bash_option_lines(_PROGRAM_OPTIONS)]
    lines += [f"        _microc_words {shlex.quote(' '.join(commands))}", "        ;;"]
    for name, command in commands.items():
        lines += [f"    {name})", *_bash_option_lines(list_options(command.arguments))]
        lines += [f"        {_bash_value_completion(word)}" for word in list_positionals(command.arguments)]
        lines += ["        ;;"]
    lines += ["    esac", "}", "complete -F _microc microc"]
    return "\n".join(lines) + "\n"


def _bash_option_lines(options: Sequence[Argument]) -> list[str]:
    """Return the lines of the bash script that complete options: their values, and their flags."""
    cases = [
        f"        {flag}) {_bash_value_completion(option)}; return ;;"
        for option in options
        if not option.is_switch
        for flag in option.flags
    ]
    flags = " ".join(flag for option in options for flag in option.flags)
    return [
        *(['        case "$prev" in', *cases, "        esac"] if cases else ()),
        f"        if [[ $cur == -* ]]; then _microc_words {shlex.quote(flags)}; return; fi",
    ]


def _bash_value_completion(argument: Argument) -> str:
    """Return the shell code that completes the value of an argument in bash."""
    value, calls = value_of_argument(argument), []
    if value.choices:
        calls.append(f"_microc_{'list' if value.is_list else 'words'} {shlex.quote(' '.join(value.choices))}")
    if value.path_type == FOLDERS:
        calls.append("_microc_folders")
    elif value.path_type:
        calls.append(" ".join(("_microc_files", *map(shlex.quote, value.suffixes))))
    return "; ".join(calls) or ":"


# ---- Completion for fish: one ``complete`` line per command and option.

_FISH_HEAD = """# Completion of microc for fish. Once: microc completion fish | source. For good: microc completion fish >
# ~/.config/fish/completions/microc.fish
complete -c microc -f
"""


def fish_script(commands: Mapping[str, Command]) -> str:
    """Return the completion script for fish."""
    at_command = "__fish_use_subcommand"
    lines = [_FISH_HEAD.rstrip("\n")]
    lines += [_fish_complete_line(at_command, *_fish_option_arguments(option)) for option in _PROGRAM_OPTIONS]
    for name, command in commands.items():
        lines.append(_fish_complete_line(at_command, f"-a {name}", f"-d {_fish_quote(command.summary)}"))
        inside = f"__fish_seen_subcommand_from {name}"
        values = (_fish_value_completion(word) for word in list_positionals(command.arguments))
        lines += [_fish_complete_line(inside, f"-a {_fish_quote(value)}") for value in values if value]
        options = list_options(command.arguments)
        lines += [_fish_complete_line(inside, *_fish_option_arguments(option)) for option in options]
    return "\n".join(lines) + "\n"


def _fish_option_arguments(option: Argument) -> list[str]:
    """Return the arguments with which fish's ``complete`` declares an option: flags, values and help."""
    parts = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if not option.is_switch:
        values = _fish_value_completion(option)
        parts += ["-x", *([f"-a {_fish_quote(values)}"] if values else ())]
    return [*parts, f"-d {_fish_quote(option.help)}"]


def _fish_value_completion(argument: Argument) -> str:
    """Return the text that fish evaluates to list the possible values of an argument."""
    value = value_of_argument(argument)
    choices = " ".join(value.choices)
    if value.is_list and choices:
        choices = f"(__fish_append , {choices})"
    files = ""
    if value.path_type == FOLDERS:
        files = "(__fish_complete_directories)"
    elif value.suffixes:
        files = " ".join(f"(__fish_complete_suffix {end})" for end in value.suffixes)
    elif value.path_type:
        files = "(__fish_complete_path)"
    return " ".join(filter(None, (choices, files)))


def _fish_complete_line(condition: str, *parts: str) -> str:
    """Return a line of the fish script, a call of ``complete`` that applies under a condition."""
    return " ".join(("complete -c microc -n", _fish_quote(condition), *parts))


def _fish_quote(text: str) -> str:
    """Quote a word for fish with single quotes, within which only backslashes and single quotes are escaped."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# ---- Completion for zsh by its function ``_arguments``, with help for every option.

_ZSH_HEAD = """#compdef microc
# Completion of microc for zsh. Once: source <(microc completion zsh). For good: microc completion zsh > a folder of $fpath
# /_microc
_microc_either() {  # the names that are given, or a file
    _alternative "names:name:($*)" "files:file:_files"
}
"""
_MAX_HELP = 80
"""Largest number of characters of a help text in the list that zsh prints."""


def zsh_script(commands: Mapping[str, Command]) -> str:
    """Return the completion script for zsh."""
    lines = [_ZSH_HEAD.rstrip("\n"), "_microc() {", "    local -a commands", "    commands=("]
    lines += [f"        {_zsh_quote(f'{name}:{_shorten_help(each.summary)}')}" for name, each in commands.items()]
    lines += ["    )", "    local curcontext=$curcontext state line", "    typeset -A opt_args"]
    lines += ["    _arguments -C \\"]
    lines += [f"        {spec} \\" for option in _PROGRAM_OPTIONS for spec in _zsh_option_specs(option)]
    lines += ["        '1:command:->command' '*::argument:->argument'", "    case $state in", "    command)"]
    lines += ["        _describe command commands", "        ;;", "    argument)", "        case $words[1] in"]
    for name, command in commands.items():
        specs = [spec for option in list_options(command.arguments) for spec in _zsh_option_specs(option)]
        words = list_positionals(command.arguments)
        specs += [_zsh_positional_spec(k, word, last=k == len(words)) for k, word in enumerate(words, 1)]
        lines += [f"        {name})", "            _arguments \\"]
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


def _zsh_option_specs(option: Argument) -> list[str]:
    """Return the specs of an option for zsh's ``_arguments``, one for each flag. Each begins with ``*``, because options may be
    repeated."""
    help = _shorten_help(option.help).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    values, equals = "", ""
    if not option.is_switch:
        value = value_of_argument(option)
        values = f":{_zsh_escape(value.name)}:{_zsh_value_action(value)}" * len(option.metavars)
        equals = "=" if len(option.metavars) == 1 else ""
    return [_zsh_quote(f"*{flag}{equals if flag.startswith('--') else ''}[{help}]{values}") for flag in option.flags]


def _zsh_positional_spec(position: int, argument: Argument, *, last: bool) -> str:
    """Return the spec of a positional argument for zsh's ``_arguments``.

    ``position``: number of the argument, from 1; ``last``: True for the last argument, which may be repeated."""
    value = value_of_argument(argument)
    return _zsh_quote(f"{'*' if last else position}:{_zsh_escape(value.name)}:{_zsh_value_action(value)}")


def _zsh_value_action(value: Value) -> str:
    """Return the action that completes the value of an argument, as part of a spec for zsh's ``_arguments``."""
    choices = " ".join(map(_zsh_escape, value.choices))
    files = "_files -/" if value.path_type == FOLDERS else "_files"
    if value.suffixes:
        files += ' -g "*.(' + "|".join(end[1:] for end in value.suffixes) + ')"'
    if value.is_list:
        return f"_sequence compadd - {choices}"
    if choices and value.path_type:
        return f"_microc_either {choices}"
    return f"({choices})" if choices else files if value.path_type else " "


def _shorten_help(text: str) -> str:
    """Shorten a help text to :data:`_MAX_HELP` characters, one line of a terminal."""
    return text if len(text) <= _MAX_HELP else text[: _MAX_HELP - 3] + "..."


def _zsh_escape(text: str) -> str:
    """Escape colons, which separate the parts of a spec for zsh's ``_arguments``, and backslashes."""
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _zsh_quote(text: str) -> str:
    """Quote a word for zsh with single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


# ---- The manual page, as troff with the macros of man(7).


def manual_page_lines(commands: Mapping[str, Command]) -> Iterator[str]:
    """Yield the lines of the manual page in troff.

    An option whose description is the same as for an earlier command is listed by its name only."""
    yield f'.TH MICROC 1 "" "microc {_escape_troff(__version__)}" "User Commands"'
    yield from (".SH NAME", "microc \\- compile trained networks to plain C for microcontrollers")
    yield from (".SH SYNOPSIS", ".B microc", ".I COMMAND", "[options]")
    yield from (".SH DESCRIPTION", _escape_troff(DESCRIPTION))
    yield from (".SH OPTIONS", *_option_entries(_PROGRAM_OPTIONS))
    yield ".SH COMMANDS"
    described: set[tuple[tuple[str, ...], str]] = set()
    for command in commands.values():
        yield from (f".SS {_escape_troff(command.synopsis)}", _escape_troff(command.description))
        for word in list_positionals(command.arguments):
            yield from (".TP", f".I {_escape_troff(value_of_argument(word).name)}", _escape_troff(word.help))
        options = [o for o in list_options(command.arguments)[1:] if o.section != EVERYWHERE]
        yield from _option_entries([o for o in options if (o.flags, o.help) not in described])
        repeated = [o.flags[-1] for o in options if (o.flags, o.help) in described]
        if repeated:
            yield from (".PP", _escape_troff("As above: " + ", ".join(repeated) + "."))
        described |= {(o.flags, o.help) for o in options}
        examples = [*command.example_lines, *(("", *command.notes.splitlines()) if command.notes else ())]
        yield from (".PP", ".nf", ".RS", *map(_escape_troff, examples), ".RE", ".fi")
    codes = EXIT_CODES.splitlines()[1:]
    yield from (".SH EXIT STATUS", ".nf", *(_escape_troff(line.strip()) for line in codes), ".fi")
    yield from (
        ".SH ENVIRONMENT",
        ".TP",
        ".B MICROC_CACHE",
        "the folder where compiled networks and chosen schedules are kept; empty: nothing is kept",
    )
    yield from (".SH SEE ALSO", ".BR gcc (1),", ".BR make (1)")


def _option_entries(options: Sequence[Argument]) -> Iterator[str]:
    """Yield the troff lines that describe options in the manual page."""
    for option in options:
        flags = ", ".join(f"\\fB{_escape_troff(flag)}\\fR" for flag in option.flags)
        words = "" if option.is_switch else f" \\fI{_escape_troff(value_of_argument(option).name)}\\fR"
        yield from (".TP", flags + words, _escape_troff(option.help))


def _escape_troff(text: str) -> str:
    """Escape a text so that troff prints it literally. Hyphens become plain ``-``, which can be searched for and copied."""
    plain = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("~", "\\(ti")
    )
    plain = plain.replace("^", "\\(ha")
    return f"\\&{plain}" if plain.startswith(".") else plain


# ---- The commands.


def run_completion_command(arguments: CompletionArguments) -> show.Answer:
    """Run ``microc completion SHELL``: print the completion script of a shell."""
    scripts = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    text = scripts[arguments.shell](COMMANDS)
    return show.Answer({"shell": arguments.shell, "script": text}, document(Code(text)))


def run_man_command(arguments: ManArguments) -> show.Answer:
    """Run ``microc man``: print the manual page."""
    text = "\n".join(manual_page_lines(COMMANDS)) + "\n"
    return show.Answer({"page": text}, document(Code(text)))
