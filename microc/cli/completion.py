"""``microc completion``: scripts for bash, fish and zsh, from the command line's own tree."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from microc.cli import show
from microc.cli.arguments import FOLDERS, Arguments, Command, Option, Word, flags_of

# ---- Completion for bash, 3.2 and newer, as a function of its own: nothing of it needs microc to run.

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


def bash_script(commands: Sequence[Command]) -> str:
    """The whole text."""
    program, *others = commands
    lines = [_BASH_HEAD.rstrip("\n"), '    case "$command" in']
    lines += ["    '')", *_branch(program, [each.name for each in others]), "        ;;"]
    for command in others:
        lines += [f"    {command.name})", *_branch(command, []), "        ;;"]
    lines += ["    esac", "}", "complete -F _microc microc"]
    return "\n".join(lines) + "\n"


def _branch(command: Command, names: Sequence[str]) -> list[str]:
    """What may stand behind an option, as an option, and without one; ``names``: of commands."""
    valued = {flag: option.word for flag, option in flags_of(command) if option.word is not None}
    lines = []
    if valued:
        lines.append('        case "$prev" in')
        lines += [f"        {flag}) {_offered(word)}; return ;;" for flag, word in valued.items()]
        lines.append("        esac")
    flags = " ".join(flag for flag, _ in flags_of(command))
    lines.append(f"        if [[ $cur == -* ]]; then _microc_words {shlex.quote(flags)}; return; fi")
    if names:
        lines.append(f"        _microc_words {shlex.quote(' '.join(names))}")
    lines += [f"        {_offered(word)}" for word, _ in command.words]
    return lines


def _offered(word: Word) -> str:
    """The call that offers what may stand here."""
    calls = []
    if word.choices:
        calls.append(f"_microc_{'list' if word.list else 'words'} {shlex.quote(' '.join(word.choices))}")
    if word.kind == FOLDERS:
        calls.append("_microc_folders")
    elif word.kind:
        calls.append(" ".join(("_microc_files", *map(shlex.quote, word.ends))))
    return "; ".join(calls) or ":"


# ---- Completion for fish: a line for every command and option.

_FISH_HEAD = """# Completion of microc for fish. Once: microc completion fish | source. For good: microc completion fish >
# ~/.config/fish/completions/microc.fish
complete -c microc -f
"""


def fish_script(commands: Sequence[Command]) -> str:
    """The whole text."""
    program, *others = commands
    lines = [_FISH_HEAD.rstrip("\n")]
    lines += [_line("__fish_use_subcommand", *_option(option)) for option in program.options]
    for command in others:
        lines.append(_line("__fish_use_subcommand", f"-a {command.name}", f"-d {_quoted(command.help)}"))
        inside = f"__fish_seen_subcommand_from {command.name}"
        lines += [
            _line(inside, f"-a {_quoted(offered)}") for word, _ in command.words if (offered := _fish_offered(word))
        ]
        lines += [_line(inside, *_option(option)) for option in command.options]
    return "\n".join(lines) + "\n"


def _option(option: Option) -> list[str]:
    """The flags, what follows, the help."""
    parts = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.word is not None:
        parts.append("-x")
        offered = _fish_offered(option.word)
        parts += [f"-a {_quoted(offered)}"] if offered else []
    return [*parts, *([f"-d {_quoted(option.help)}"] if option.help else [])]


def _fish_offered(word: Word) -> str:
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


# ---- Completion for zsh, by its own ``_arguments``, with a line of help for everything.

_ZSH_HEAD = """#compdef microc
# Completion of microc for zsh. Once: source <(microc completion zsh). For good: microc completion zsh > a folder of $fpath
# /_microc
_microc_either() {  # the names that are given, or a file
    _alternative "names:name:($*)" "files:file:_files"
}
"""
_LONGEST = 80


def zsh_script(commands: Sequence[Command]) -> str:
    """The whole text."""
    program, *others = commands
    lines = [_ZSH_HEAD.rstrip("\n"), "_microc() {", "    local -a commands", "    commands=("]
    lines += [f"        {_zsh_quoted(command.name + ':' + _short(command.help))}" for command in others]
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
    return [_zsh_quoted(f"*{flag}{equals if flag.startswith('--') else ''}[{help}]{values}") for flag in option.flags]


def _place(number: int, word: Word, *, last: bool) -> str:
    return _zsh_quoted(f"{'*' if last else number}:{_escaped(word.name)}:{_action(word)}")


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


def _zsh_quoted(text: str) -> str:
    """A word in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


# ---- ``microc completion SHELL``: what a shell needs to complete commands, options and their words, printed to be
# sourced.


def completion(arguments: Arguments) -> show.Answer:
    """``microc completion``."""
    from microc.cli.arguments import commands

    scripts = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    text = scripts[arguments.shell](commands())
    return show.Answer({"shell": arguments.shell, "script": text}, text)
