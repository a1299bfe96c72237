# SPDX-License-Identifier: Apache-2.0
"""The parser of the command line: made from the declarations of all commands, with microc's errors and help layout."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from microc import __version__
from microc.cli.declared import board_commands, model_commands
from microc.cli.declared.declarations import HELP, VERSION, Argument, Arguments, Command, list_declared_commands
from microc.errors import UsageError, known_names_hint

# ---- The parser: mistakes in the command line become UsageErrors with a hint.

_HINT_MARK = ": write "
"""Separator in the error message of a converter: the text after it is the hint."""
_REQUIRED = "the following arguments are required: "
"""Prefix of argparse's message about missing arguments; their names follow."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError for mistakes in the command line, instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError with an error message of argparse.

        The hint is the part of the message after ``: write`` or, for missing arguments, the syntax of these arguments."""
        what, write, how = message.partition(_HINT_MARK)
        hint = write[2:] + how if write else self._missing_hint(message)
        raise UsageError(what, hint=f"{hint} (all: {self.prog} --help)" if hint else f"{self.prog} --help")

    def _missing_hint(self, message: str) -> str:
        """Return the hint for argparse's message about missing arguments: the syntax and help of each; else empty."""
        missing = message.removeprefix(_REQUIRED).split(", ") if message.startswith(_REQUIRED) else []
        actions = (action for action in self._actions if argparse._get_action_name(action) in missing)
        return "; ".join(f"add {_argument_syntax_and_help(action)}" for action in actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments as argparse does, but report an unknown option before a missing argument."""
        if self._subparsers is None:
            self._check_options(list(args or ()))
        return super().parse_known_args(args, namespace)

    def format_usage(self) -> str:
        """Format the usage without the options that belong to groups."""
        return self._start_formatter().format_help()

    def format_help(self) -> str:
        """Format the help as argparse does, but with a short usage, which omits the options that belong to groups."""
        formatter = self._start_formatter()
        formatter.add_text(self.description)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _start_formatter(self) -> argparse.HelpFormatter:
        """Return a formatter that contains the short usage: positional arguments, ungrouped options, required options."""
        own = {id(action) for group in (self._positionals, self._optionals) for action in group._group_actions}
        actions = [a for a in self._actions if (id(a) in own or a.required) and a.dest not in ("help", "version")]
        formatter = self.formatter_class(prog=f"{self.prog} [options]")
        formatter.add_usage(self.usage, actions, [])
        return formatter

    def _check_options(self, command_words: list[str]) -> None:
        """Raise UsageError for the first unknown long option. Prefixes of known options are accepted, as in argparse."""
        for word in command_words[: command_words.index("--")] if "--" in command_words else command_words:
            name = word.partition("=")[0]
            options = [option for option in self._option_string_actions if option[:2] == "--"]
            if name.startswith("--") and not any(option.startswith(name) for option in options):
                nearest_option = known_names_hint(name, options, "options")
                raise UsageError(
                    f"{self.prog} has no option {name}", hint=f"{nearest_option} (all: {self.prog} --help)"
                )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise UsageError for a value that is none of the argument's choices; the hint names the most similar choice."""
        if action.choices is not None and value not in action.choices:
            named = "/".join(action.option_strings) or action.metavar or action.dest
            what = "command" if named == "COMMAND" else f"choice for {named}"
            raise UsageError(
                f"{value!r} is no {what}",
                hint=known_names_hint(
                    str(value), map(str, action.choices), "commands" if named == "COMMAND" else "choices"
                ),
            )


class CommandHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A formatter of help that does not rewrap examples and tables unless the terminal is too narrow for their lines."""

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and textwrap.fill(heading, self._width - 1))

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        """Return argparse's formatter of metavars; for an option with a long list of choices, one that prints ``WORD``."""
        if self._has_long_choices(action):
            return lambda size: ("WORD",) * size
        return super()._metavar_formatter(action, default_metavar)

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        return f"{text}; one of {', '.join(map(str, action.choices or ()))}" if self._has_long_choices(action) else text

    def _has_long_choices(self, action: argparse.Action) -> bool:
        """Test whether the list of an option's choices is longer than a third of the line."""
        listed = action.metavar is None and action.choices is not None and bool(action.option_strings)
        return listed and len(",".join(map(str, action.choices or ()))) > self._width // 3 - len("{}[]")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = (line for line in super()._fill_text(text, width, indent).splitlines())
        return "".join(f"{part}\n" for line in lines for part in _wrap_help_line(line, self._width))


def _wrap_help_line(line: str, width: int) -> list[str]:
    """Wrap a line of a help text to ``width`` characters.

    If the line is an example command, all wrapped lines but the last end in a backslash, so that a shell reads them as one."""
    if len(line) <= width:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    example = line.lstrip().startswith("microc ")
    parts = textwrap.wrap(
        line, width - 2 * example, subsequent_indent=start + "  ", break_long_words=False, break_on_hyphens=False
    )
    return [f"{part} \\" if example and part is not parts[-1] else part for part in parts]


def _argument_syntax_and_help(action: argparse.Action) -> str:
    """Return the flag and metavar of an argument, and the first clause of its help."""
    flag = f"{action.option_strings[0]} " if action.option_strings else ""
    return f"{flag}{action.metavar or action.dest.upper()}, {str(action.help).split(' (default')[0].split(';')[0]}"


# ---- The parser of all commands. No slow imports here, so that --help is instant.

COMMANDS: Mapping[str, Command] = MappingProxyType(list_declared_commands(model_commands, board_commands))
"""All commands by name, in the order of ``microc --help``."""
DESCRIPTION = (
    "Compile trained networks (TFLite, ONNX, PyTorch, Keras, trees) to plain C for microcontrollers; build, flash, run and "
    "measure the result."
)
EXIT_CODES = """exit codes:
  0 success                      4 the model does not fit the board
  1 board and host differ        5 missing tool or failed build
  2 wrong argument or file       6 board or serial line failed, or time-out
  3 broken or unsupported model  7 growth above --fail-over
  70 defect of microc (traceback in a file)
  130 interrupted                141 closed output pipe"""


def parse_command_line(words: Sequence[str]) -> tuple[Command, Arguments]:
    """Parse the words of the command line; return the command and its arguments.

    Raises UsageError for a mistake, and SystemExit after ``--help`` or ``--version``, which it prints."""
    values = vars(_make_parser(words).parse_args(words))
    command = COMMANDS[values["command"]]
    return command, command.arguments.from_parsed_values(values, words)


def _make_parser(words: Sequence[str]) -> Parser:
    """Build the parser of a command line. It sets the arguments that are given, and no defaults of options.

    Only commands that occur in ``words`` get their arguments, because adding those of all takes 20 ms."""
    parser = Parser(
        prog="microc",
        description=DESCRIPTION,
        epilog="example:\n  microc compile model.tflite --board mps2-an386 -o firmware\n  microc verify firmware\n\n"
        "`microc COMMAND --help` explains a command, with examples.\n\n" + EXIT_CODES,
        formatter_class=CommandHelpFormatter,
        add_help=False,
    )
    parser.add_argument(*HELP.flags, action="help", help=HELP.help)
    # The options of all commands may precede the command's name.
    _add_sections(parser, Arguments, {})
    parser.add_argument(*VERSION.flags, action="version", version=f"microc {__version__}", help=VERSION.help)
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for command in COMMANDS.values():
        notes = f"\n\n{command.notes}" if command.notes else ""
        command_parser = parsers.add_parser(
            command.name,
            help=command.summary.replace("%", "%%"),
            description=command.description,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in command.example_lines) + notes,
            formatter_class=CommandHelpFormatter,
            add_help=False,
        )
        if command.name in words:
            command_parser.add_argument(*HELP.flags, action="help", help=HELP.help)
            _add_sections(command_parser, command.arguments, command.section_notes)
    return parser


def _add_sections(parser: Parser, arguments: type[Arguments], section_notes: Mapping[str, str]) -> None:
    """Add all declared arguments to a parser, each in its section of the help."""
    for title, section in arguments.sections().items():
        group = parser.add_argument_group(title, section_notes.get(title)) if title else parser
        for name, argument in section.items():
            _add_argument(group, name, argument)


def _add_argument(group: argparse._ActionsContainer, name: str, argument: Argument) -> None:
    """Add a declared argument to a parser or argument group."""
    settings: dict[str, Any] = {"help": argument.help.replace("%", "%%") or argparse.SUPPRESS}
    if not argument.flags:
        # Not SUPPRESS: argparse compares the default of an omitted positional argument with its choices.
        settings["default"] = argument.default
    else:
        settings |= {"dest": name, "default": argparse.SUPPRESS, "required": argument.required}
    if argument.is_switch:
        group.add_argument(*argument.flags, action="store_const", const=not argument.default, **settings)
        return
    convert = _report_value_error(argument.word)
    if len(argument.metavars) > 1:
        settings |= {"nargs": len(argument.metavars), "metavar": argument.metavars}
        settings |= {"action": _JoinWords, "convert": convert, "may_repeat": argument.repeatable}
    else:
        settings |= {"metavar": argument.metavar or None, "type": convert, "choices": argument.choices or None}
        if argument.count:
            settings["nargs"] = argument.count
        if argument.repeatable:
            settings["action"] = "extend" if argument.count else "append"
    group.add_argument(*(argument.flags or (name,)), **settings)


class _JoinWords(argparse.Action):
    """An argparse action for an option with several words, which it joins to one text and converts."""

    def __init__(self, *, convert: Callable[[str], Any], may_repeat: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self._convert, self._may_repeat = convert, may_repeat

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        try:
            value = self._convert(" ".join(values))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error
        earlier = getattr(namespace, self.dest, [])
        setattr(namespace, self.dest, [*earlier, value] if self._may_repeat else value)


def _report_value_error(word: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap the parser of a word so that argparse reports the text of its ValueError together with the flag.

    Types such as int are not wrapped: argparse has its own text for these."""
    if isinstance(word, type):
        return word

    def convert(text: str) -> Any:
        try:
            return word(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert
