"""``microc completion``: generate completion scripts for bash, fish and zsh from the argument parsers of the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from microc.cli import show
from microc.cli.arguments import FOLDERS, Arguments, CommandSyntax, OptionSyntax, ValueSyntax, iter_flags

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


def bash_script(commands: Sequence[CommandSyntax]) -> str:
    """Return the completion script for bash."""
    program, *others = commands
    lines = [_BASH_HEAD.rstrip("\n"), '    case "$command" in']
    lines += ["    '')", *_bash_command_lines(program, [each.name for each in others]), "        ;;"]
    for command in others:
        lines += [f"    {command.name})", *_bash_command_lines(command, []), "        ;;"]
    lines += ["    esac", "}", "complete -F _microc microc"]
    return "\n".join(lines) + "\n"


def _bash_command_lines(command: CommandSyntax, command_names: Sequence[str]) -> list[str]:
    """Return the lines of the bash script that complete the arguments of one command.

    Completed are flags, values of options, positional arguments and, for the program itself, the names of commands.
    ``command_names``: these names, empty for a command."""
    valued = {flag: option.value for flag, option in iter_flags(command) if option.value is not None}
    lines = []
    if valued:
        lines.append('        case "$prev" in')
        lines += [f"        {flag}) {_bash_value_completion(word)}; return ;;" for flag, word in valued.items()]
        lines.append("        esac")
    flags = " ".join(flag for flag, _ in iter_flags(command))
    lines.append(f"        if [[ $cur == -* ]]; then _microc_words {shlex.quote(flags)}; return; fi")
    if command_names:
        lines.append(f"        _microc_words {shlex.quote(' '.join(command_names))}")
    lines += [f"        {_bash_value_completion(word)}" for word, _ in command.positionals]
    return lines


def _bash_value_completion(value_syntax: ValueSyntax) -> str:
    """Return the shell code that completes the value of an argument in bash."""
    calls = []
    if value_syntax.choices:
        calls.append(
            f"_microc_{'list' if value_syntax.is_list else 'words'} {shlex.quote(' '.join(value_syntax.choices))}"
        )
    if value_syntax.path_type == FOLDERS:
        calls.append("_microc_folders")
    elif value_syntax.path_type:
        calls.append(" ".join(("_microc_files", *map(shlex.quote, value_syntax.suffixes))))
    return "; ".join(calls) or ":"


# ---- Completion for fish: one ``complete`` line per command and option.

_FISH_HEAD = """# Completion of microc for fish. Once: microc completion fish | source. For good: microc completion fish >
# ~/.config/fish/completions/microc.fish
complete -c microc -f
"""


def fish_script(commands: Sequence[CommandSyntax]) -> str:
    """Return the completion script for fish."""
    program, *others = commands
    lines = [_FISH_HEAD.rstrip("\n")]
    lines += [
        _fish_complete_line("__fish_use_subcommand", *_fish_option_arguments(option)) for option in program.options
    ]
    for command in others:
        lines.append(
            _fish_complete_line("__fish_use_subcommand", f"-a {command.name}", f"-d {_fish_quote(command.help)}")
        )
        inside = f"__fish_seen_subcommand_from {command.name}"
        lines += [
            _fish_complete_line(inside, f"-a {_fish_quote(values)}")
            for word, _ in command.positionals
            if (values := _fish_value_completion(word))
        ]
        lines += [_fish_complete_line(inside, *_fish_option_arguments(option)) for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_option_arguments(option: OptionSyntax) -> list[str]:
    """Return the arguments with which fish's ``complete`` declares an option: flags, values and help."""
    parts = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.value is not None:
        parts.append("-x")
        values = _fish_value_completion(option.value)
        parts += [f"-a {_fish_quote(values)}"] if values else []
    return [*parts, *([f"-d {_fish_quote(option.help)}"] if option.help else [])]


def _fish_value_completion(value_syntax: ValueSyntax) -> str:
    """Return the text that fish evaluates to list the possible values of an argument."""
    choices = " ".join(value_syntax.choices)
    if value_syntax.is_list and choices:
        choices = f"(__fish_append , {choices})"
    files = ""
    if value_syntax.path_type == FOLDERS:
        files = "(__fish_complete_directories)"
    elif value_syntax.suffixes:
        files = " ".join(f"(__fish_complete_suffix {end})" for end in value_syntax.suffixes)
    elif value_syntax.path_type:
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


def zsh_script(commands: Sequence[CommandSyntax]) -> str:
    """Return the completion script for zsh."""
    program, *others = commands
    lines = [_ZSH_HEAD.rstrip("\n"), "_microc() {", "    local -a commands", "    commands=("]
    lines += [f"        {_zsh_quote(command.name + ':' + _shorten_help(command.help))}" for command in others]
    lines += ["    )", "    local curcontext=$curcontext state line", "    typeset -A opt_args"]
    lines += ["    _arguments -C \\"]
    lines += [f"        {spec} \\" for option in program.options for spec in _zsh_option_specs(option)]
    lines += ["        '1:command:->command' '*::argument:->argument'", "    case $state in", "    command)"]
    lines += ["        _describe command commands", "        ;;", "    argument)", "        case $words[1] in"]
    for command in others:
        specs = [spec for option in command.options for spec in _zsh_option_specs(option)]
        specs += [
            _zsh_positional_spec(k, word, last=k == len(command.positionals))
            for k, (word, _) in enumerate(command.positionals, 1)
        ]
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


def _zsh_option_specs(option: OptionSyntax) -> list[str]:
    """Return the specs of an option for zsh's ``_arguments``, one for each flag. Each begins with ``*``, because options may be
    repeated."""
    help = _shorten_help(option.help).replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    values = (
        ""
        if option.value is None
        else f":{_zsh_escape(option.value.name)}:{_zsh_value_action(option.value)}" * option.value_count
    )
    equals = "=" if option.value_count == 1 and option.value is not None else ""
    return [_zsh_quote(f"*{flag}{equals if flag.startswith('--') else ''}[{help}]{values}") for flag in option.flags]


def _zsh_positional_spec(position: int, value_syntax: ValueSyntax, *, last: bool) -> str:
    """Return the spec of a positional argument for zsh's ``_arguments``.

    ``position``: number of the argument, from 1; ``last``: True for the last argument, which may be repeated."""
    return _zsh_quote(f"{'*' if last else position}:{_zsh_escape(value_syntax.name)}:{_zsh_value_action(value_syntax)}")


def _zsh_value_action(value_syntax: ValueSyntax) -> str:
    """Return the action that completes the value of an argument, as part of a spec for zsh's ``_arguments``."""
    choices = " ".join(map(_zsh_escape, value_syntax.choices))
    files = "_files -/" if value_syntax.path_type == FOLDERS else "_files"
    if value_syntax.suffixes:
        files += ' -g "*.(' + "|".join(end[1:] for end in value_syntax.suffixes) + ')"'
    if value_syntax.is_list:
        return f"_sequence compadd - {choices}"
    if choices and value_syntax.path_type:
        return f"_microc_either {choices}"
    return f"({choices})" if choices else files if value_syntax.path_type else " "


def _shorten_help(text: str) -> str:
    """Shorten a help text to :data:`_MAX_HELP` characters, one line of a terminal."""
    return text if len(text) <= _MAX_HELP else text[: _MAX_HELP - 3] + "..."


def _zsh_escape(text: str) -> str:
    """Escape colons, which separate the parts of a spec for zsh's ``_arguments``, and backslashes."""
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _zsh_quote(text: str) -> str:
    """Quote a word for zsh with single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


# ---- ``microc completion SHELL`` prints a script that the shell sources.


def run_completion_command(arguments: Arguments) -> show.Answer:
    """Run ``microc completion SHELL``: print the completion script of a shell."""
    from microc.cli.arguments import describe_commands

    scripts = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    text = scripts[arguments.shell](describe_commands())
    return show.Answer({"shell": arguments.shell, "script": text}, text)
