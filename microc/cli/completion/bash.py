"""Completion for bash, 3.2 and newer, as a function of its own: nothing of it needs microc to run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from microc.cli.tree import FOLDERS, Command, Word, flags_of

_HEAD = r"""# Completion of microc for bash. Once: source <(microc completion bash). For good: microc completion bash >
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


def script(commands: Sequence[Command]) -> str:
    """The whole text."""
    program, *others = commands
    lines = [_HEAD.rstrip("\n"), '    case "$command" in']
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
