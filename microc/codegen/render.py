# SPDX-License-Identifier: Apache-2.0
"""Render Jinja templates, and define the classes of strings that templates accept.

These classes are the only filter for untrusted text in generated files."""

from __future__ import annotations

import json
import marshal
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import jinja2
from jinja2.bccache import Bucket, bc_magic
from jinja2.sandbox import SandboxedEnvironment

from microc.base import file_access
from microc.base.file_access import read_bytes
from microc.codegen.output_files import replace_atomically
from microc.errors import InternalError, OutputError, escape_unprintable
from microc.graph.ir import shorten_text

# ---- Classes of strings that may be written into a generated file. Only this section defines which letters they may contain.
#
# Models, boards and users are untrusted: their names are data in every file that microc writes. Templates accept strings of
# these classes only. Any other string is a defect of microc, and raises InternalError.

SAFE_LETTERS = r"A-Za-z0-9 _\-+.,:;/=()#>@"
"""Letters that are plain text in C, make, CMake, TOML, YAML, Rust, Python, HTML and Markdown, as the inside of a regular
expression's ``[...]``.

No sequence of these letters quotes, escapes or expands anything, or begins or ends a comment. For this reason ``*`` (as in
``*/``), the backslash, the line break and ``$`` are not among them."""
UNSAFE_LETTERS = re.compile(f"[^{SAFE_LETTERS}]+")


class SafeString(str):
    """Base class of the strings that templates accept. All subclasses but :class:`Code` restrict the letters of their strings."""

    __slots__ = ()


class Code(SafeString):
    """Code that microc composes from numbers, from its own words and from strings of the other classes. It is not checked."""

    __slots__ = ()


class Text(SafeString):
    """An untrusted name or text for comments and string literals.

    Each sequence of unsafe letters is replaced by a single ``?``. A C trigraph, which begins with two ``?``, can therefore not
    occur. A text longer than ``LIMIT`` letters is shortened."""

    __slots__ = ()
    LIMIT = 200

    def __new__(cls, text: str) -> Self:
        replaced = UNSAFE_LETTERS.sub("?", text[: 2 * cls.LIMIT])
        return super().__new__(cls, replaced if len(replaced) <= cls.LIMIT else replaced[: cls.LIMIT - 3] + "...")


class Note(Text):
    """A comment line in generated C that describes a kernel. It may contain untrusted names."""

    __slots__ = ()
    LIMIT = 4000


class Quoted(SafeString):
    """Untrusted text as a C string literal, including the quotes.

    The text is encoded as UTF-8, and every unsafe byte is printed as an escape sequence of three octal digits.
    """

    __slots__ = ()
    LIMIT = 200

    def __new__(cls, text: str) -> Self:
        plain = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _-+.,:;/=()#>@")
        data = text[: cls.LIMIT].encode("utf-8", "replace")
        return super().__new__(cls, '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in data) + '"')


class Label(SafeString):
    """Text for an HTML page. The page's template escapes it.

    It may contain letters of all scripts. Invisible characters and bidirectional control characters are replaced by ``?``."""

    __slots__ = ()
    LIMIT = 4000

    def __new__(cls, text: str) -> Self:
        return super().__new__(cls, "".join(c if c.isprintable() else "?" for c in text[: cls.LIMIT]))


class Data(SafeString):
    """Plain data (dicts, lists, strings, numbers) as JSON for a script element of an HTML page.

    Every string in it has the characters of a :class:`Label`. ``<``, ``>``, ``&`` and all characters that are not ASCII are
    escaped, so that no string can end the element, a comment or a line.
    """

    __slots__ = ()

    def __new__(cls, value: Any) -> Self:
        text = json.dumps(_escape_data(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return super().__new__(cls, re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", text))

    def __html__(self) -> str:
        """Return the JSON text. Jinja calls this method and then inserts the text without escaping it."""
        return str(self)


def _escape_data(value: Any) -> Any:
    """Return plain data with all strings, including the keys of dicts, restricted to the characters of a :class:`Label`."""
    if isinstance(value, str):
        return str(Label(value))
    if isinstance(value, Mapping):
        return {str(Label(str(key))): _escape_data(part) for key, part in value.items()}
    return [_escape_data(part) for part in value] if isinstance(value, (list, tuple)) else value


class _PatternString(SafeString):
    """Base class of strings that must match the regular expression ``PATTERN``.

    A string that does not match raises InternalError: the code that read it from the user's input should have checked it."""

    __slots__ = ()
    PATTERN: ClassVar[str]

    def __new__(cls, text: str) -> Self:
        if not re.fullmatch(cls.PATTERN, text):
            raise InternalError(f"template string {text!r}: expected a match of the pattern of class {cls.__name__}")
        return super().__new__(cls, text)


class Name(_PatternString):
    """An identifier of C and of all other languages that microc writes. It may still be a keyword of one of them."""

    __slots__ = ()
    PATTERN = "[A-Za-z_][A-Za-z0-9_]{0,199}"


class Word(_PatternString):
    """A string that is a single word for make, CMake and a shell, such as a compiler's argument, a path or a version.

    It may be empty."""

    __slots__ = ()
    PATTERN = r"[A-Za-z0-9_\-+.,/:=]*"


class Setting(_PatternString):
    """A line of a Kconfig configuration: ``CONFIG_NAME=value``."""

    __slots__ = ()
    PATTERN = r'CONFIG_[A-Z0-9_]+=([A-Za-z0-9_]+|"[A-Za-z0-9_\-+.,/: ]*")'


# ---- Jinja with strict rules: undefined names are errors, blocks leave no blank lines, output is the same on every computer.
#
# Templates accept only strings of the classes above. A forgotten filter is therefore an error and not an injection.


class _TemplateCache(jinja2.BytecodeCache):
    """Cache of the compiled Jinja templates that come with microc, in the folder of this module's bytecode.

    Nothing is written if Python is told to write no bytecode. An entry is valid for one text of a template, one Python version
    and one Jinja version.
    """

    def __init__(self, folder: Path, html: bool) -> None:
        self.folder, self.file_suffix = folder, ".html.pyc" if html else ".text.pyc"

    def load_bytecode(self, bucket: Bucket) -> None:
        with suppress(OSError, EOFError, ValueError, TypeError):
            head, cached = _make_cache_header(bucket), read_bytes(self.folder / f"{bucket.key}{self.file_suffix}")
            if cached.startswith(head):
                bucket.code = marshal.loads(cached[len(head) :])

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with (
                suppress(OSError, OutputError),
                replace_atomically(self.folder / f"{bucket.key}{self.file_suffix}") as temporary,
            ):
                temporary.write_bytes(_make_cache_header(bucket) + marshal.dumps(bucket.code))


def _make_cache_header(bucket: Bucket) -> bytes:
    """Return the first bytes of a cache entry, which identify Python's and Jinja's versions and the template's text."""
    return bc_magic + bucket.checksum.encode()


@lru_cache(maxsize=32)
def template_environment(folder: Path | None = None, html: bool = False) -> jinja2.Environment:
    """Return the Jinja environment that loads templates from ``folder``, then from the templates that come with microc.

    ``html``: True if values are escaped for HTML. Templates may be untrusted: the sandbox only lets them print their
    variables."""
    cache_folder = Path(__spec__.cached).parent if __spec__.cached and not folder else None
    return SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(
            [str(path) for path in (folder, file_access.templates_folder()) if path is not None]
        ),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=html,
        bytecode_cache=_TemplateCache(cache_folder, html) if cache_folder else None,
    )


def render(template: str, context: Any, folder: Path | None = None) -> str:
    """Render a template with the fields of ``context``, a frozen dataclass, as its variables.

    ``template``: its path relative to ``folder`` or, if there is no such file or ``folder`` is None, relative to the
    templates that come with microc. InternalError if the context contains a string that is no :class:`SafeString`."""
    return template_environment(folder).get_template(template).render(_template_variables(context))


def render_html(template: str, context: Any) -> str:
    """Render the template of an HTML page with the fields of ``context`` as its variables.

    Every string in the context becomes a :class:`Label`, which the template escapes. Only :class:`Data`, which is for the
    page's script, stays as it is."""
    return (
        template_environment(html=True)
        .get_template(template)
        .render(_template_variables(_convert_strings_to_labels(context)))
    )


def render_line(text: str, context: Any) -> str:
    """Render ``text``, a short template such as a path or a command, with the fields of ``context`` as its variables."""
    return _parse_template_line(text).render(_template_variables(context))


@lru_cache(maxsize=256)
def _parse_template_line(text: str) -> jinja2.Template:
    """Compile a template of one line. Results are cached."""
    return template_environment().from_string(text)


def _template_variables(context: Any) -> dict[str, Any]:
    """Return the fields of a context, an instance of a dataclass, by name.

    InternalError if a field contains a string that is no :class:`SafeString`."""
    if not is_dataclass(context) or isinstance(context, type):
        raise TypeError(f"template: got values of type {type(context).__name__}, expected an instance of a dataclass")
    _refuse_unsafe_strings(context, type(context).__name__)
    return {f.name: getattr(context, f.name) for f in fields(context)}


def _refuse_unsafe_strings(value: Any, field_path: str) -> None:
    """Raise InternalError if ``value`` is or contains a string that is no :class:`SafeString`, or an object of an unknown type.

    ``field_path``: the path of the field in the context, for the message."""
    if value is None or isinstance(value, (bool, int, float, SafeString)):
        return
    if isinstance(value, (tuple, list)):
        for part in value:
            _refuse_unsafe_strings(part, field_path)
    elif isinstance(value, Mapping):
        for part in (*value, *value.values()):
            _refuse_unsafe_strings(part, field_path)
    elif is_dataclass(value):
        for f in fields(value):
            _refuse_unsafe_strings(getattr(value, f.name), f"{field_path}.{f.name}")
    else:
        raise InternalError(
            f"{field_path}: got {value!r} of type {type(value).__name__}, expected a SafeString or a number"
        )


def _convert_strings_to_labels(value: Any) -> Any:
    """Return ``value`` with every string in it converted to a :class:`Label`, except strings of the class :class:`Data`."""
    if isinstance(value, Data):
        return value
    if isinstance(value, str):
        return Label(value)
    if isinstance(value, (tuple, list)):
        return tuple(_convert_strings_to_labels(part) for part in value)
    if isinstance(value, Mapping):
        return {key: _convert_strings_to_labels(part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _convert_strings_to_labels(getattr(value, f.name)) for f in fields(value)})
    return value


# ---- A line that shows a network at Python's prompt and in a notebook: its name, inputs and outputs.

Tensor = Mapping[str, Any]
"""Description of a tensor by the keys ``name``, ``dtype`` and ``shape``, as in a project's manifest."""


def format_signature(model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Format the name, inputs and outputs of a network: ``digits(x: int8[1, 8, 8, 1] -> y: int8[1, 10])``."""
    arrow = " -> ".join(", ".join(map(_format_tensor, tensors)) for tensors in (inputs, outputs))
    return shorten_text(escape_unprintable(f"{model}({arrow})", ""))


def _format_tensor(tensor: Tensor) -> str:
    """Format the name, dtype and shape of a tensor: ``x: int8[1, 8, 8, 1]``."""
    return f"{tensor['name']}: {tensor['dtype']}[{', '.join(map(str, tensor['shape']))}]"
