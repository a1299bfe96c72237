# SPDX-License-Identifier: Apache-2.0
"""Export a network as a package for an existing build system, such as an Arduino library.

An export format is a folder: ``templates/export/<name>``, or a folder that the user wrote. Its ``format.toml`` lists the files
of a package, and Jinja templates in the folder contain the text of these files (``docs/export.md``). The network's C is the same
in all formats.
"""

from __future__ import annotations

import base64
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import chain, count
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import jinja2

from microc.base import file_access
from microc.base.file_access import parse_toml, read_text
from microc.base.immutable import frozen
from microc.codegen.c.interface import WEIGHTS_FILE, pack_stored_constants, print_bytes_definition
from microc.codegen.c.source import ModelContext, make_model_context, render_network
from microc.codegen.output_files import PROJECT_MARKER
from microc.codegen.project.additions import Frame, print_sample_definitions, sample_byte_literals, sample_frames
from microc.codegen.project.board_files import BuildSystemIds, list_board_ids
from microc.codegen.project.firmware import optimisation_options, webassembly_options
from microc.codegen.project.manifest import manifest, to_json
from microc.codegen.project.protocols import is_relocatable
from microc.codegen.render import Code, Name, Text, Word, render, render_line
from microc.errors import UsageError, known_names_hint
from microc.module import Module
from microc.target import Board

TEST_STATUS: Mapping[str, str] = MappingProxyType(
    {
        "run": "built by its tools and run in the tests",
        "tried": "built by its tools and run by hand, once; in the tests with stand-ins for them",
        "unbuilt": "never built by its tools: its description is validated, and its code built by others",
    }
)
"""Meaning of the levels of testing of an export format, by the name that ``status`` in ``format.toml`` has."""
_OWN_FORMAT_HINT = "compare it with the format of your own in docs/export.md"
DESCRIPTION = "format.toml"
"""Name of the file that describes an export format, in the format's folder."""
PACKAGE = "{name}_model"
"""Name of a package, of its files and of its build targets. The suffix keeps it different from the names of standard headers
and libraries."""
MAX_DESCRIPTION_BYTES = 1 << 20
"""Maximum size of a ``format.toml``, in bytes."""
REQUIRED_TEXTS = ("title", "status", "checked", "sources")
"""Keys of a ``format.toml`` that are required and whose values are strings."""
OPTIONAL_KEYS = (
    "headers",
    "commands",
    "files",
    "fixed",
    "target",
    "compiled",
    "boards",
    "families",
    "built",
    "linted",
    "archive",
)
TOOL_RUNS = ("built", "linted")
"""Keys of a ``format.toml`` whose values are lists of :class:`ToolRun`."""
IN_TESTS = "tests"


@frozen
class ToolRun:
    """A build of an export of a format, or a check of its manifest: the ``tool`` with its version, ``what`` it was run on, and
    ``when``.

    ``when`` is ``tests`` for runs in microc's tests, which need the tool, or the date by which one was done by hand."""

    tool: str
    what: str
    when: str


@frozen
class Format:
    """An export format: the content of its ``format.toml``.

    The paths and commands in it are Jinja templates with the variables of :class:`PackageContext`.

    ``status`` is a key of :data:`TEST_STATUS`, and ``checked`` is a text that describes how the format was tested.
    ``sources`` and ``headers`` are the folders for the C sources and for the headers of the network and of the sample.
    ``files`` maps the path of every other file to the name of its template. ``commands`` are the shell commands that a
    user runs next, in the exported folder. ``fixed`` is True if the format supports only networks whose sizes are fixed.
    ``target`` is the default core. ``compiled`` is the path of a JavaScript file that defines ``NETWORK``, the network
    compiled to WebAssembly; it is empty if the format has no such file. ``boards`` is the key of an id that the board's
    file must contain in its table ``[ids]``; if it is empty, every board is accepted. ``families`` are the families of
    cores that the format's build system builds for; if there are none, it builds for all. ``archive`` is the path of a ZIP
    file with all other files; it is empty if the format has none. ``built`` are the builds of
    its exports that were done, ``linted`` the checks of its manifests by tools or schemas of their registries."""

    name: str
    folder: Path
    title: str
    status: str
    checked: str
    sources: str
    headers: str
    commands: tuple[str, ...]
    files: Mapping[str, str]
    fixed: bool = False
    target: str = "host"
    compiled: str = ""
    boards: str = ""
    families: tuple[str, ...] = ()
    archive: str = ""
    built: tuple[ToolRun, ...] = ()
    linted: tuple[ToolRun, ...] = ()


@frozen
class FormatContext:
    """Texts of an export format for its templates: title, status and how it was tested, as the format's author wrote them."""

    title: Code
    status: Code
    checked: Code


@frozen
class Publisher:
    """Who publishes a package, for the manifests of registries; manifests leave empty texts out.

    ``author`` is a name, ``mail`` the author's address. ``license`` is an SPDX expression."""

    author: Text = Text("")
    mail: Text = Text("")
    url: Text = Text("")
    license: Text = Text("")
    version: Text = Text("1.0.0")

    @property
    def vendor(self) -> Word:
        """Author in the letters of a CMSIS pack's vendor; ``microc`` if there is none."""
        return Word(re.sub(r"[^A-Za-z0-9_\-]+", "_", self.author).strip("_") or "microc")


ANONYMOUS = Publisher()
"""The publisher of a package whose user named none."""
_AUTHOR = re.compile(r"([A-Za-z0-9 _\-+.,]+?)(?: <([A-Za-z0-9_\-+.]+@[A-Za-z0-9\-.]+)>)?")
_URL = re.compile(r"https?://[A-Za-z0-9\-.]+(/[A-Za-z0-9_\-+.,:/=#@]*)?")
_LICENSE = re.compile(r"[A-Za-z0-9.+\-]+( (AND|OR|WITH) [A-Za-z0-9.+\-]+)*")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.\-]+)?")


def make_publisher(author: str = "", url: str = "", license: str = "", version: str = "") -> Publisher:
    """Make a publisher of texts that a user wrote; empty texts are not given. UsageError for one of the wrong form.

    ``author``: a name, or a name and an address: ``Ada Lovelace <ada@lab.org>``. ``license``: an SPDX expression."""
    forms = (
        ("author", author, _AUTHOR, "a name in ASCII, or a name and an address: Ada Lovelace <ada@lab.org>"),
        ("url", url, _URL, "an address such as https://lab.org/network"),
        ("license", license, _LICENSE, "an SPDX expression such as MIT or Apache-2.0 OR MIT"),
        ("version", version, _VERSION, "a semantic version such as 1.0.0"),
    )
    for name, text, form, expected in forms:
        if text and (len(text) > Text.LIMIT or not form.fullmatch(text)):
            raise UsageError(
                f"{name}: got {text[: Text.LIMIT]!r}, expected {expected}", hint=f"leave out {name}, or correct it"
            )
    match = _AUTHOR.fullmatch(author)
    return Publisher(
        Text(match[1] if match else ""),
        Text(match[2] or "" if match else ""),
        Text(url),
        Text(license),
        Text(version or "1.0.0"),
    )


@frozen
class PackageContext:
    """Variables of the templates of an export format.

    ``package`` is the name of the package. ``optimisation`` are gcc's options to compile the network for ``cpu``, and
    ``compiling`` are clang's options to compile it to WebAssembly. ``samples`` contains the definition of a C array of sample
    data for every input. ``sample_bytes`` contains the same data as Python literals, indexed by frame and input. ``manifest``
    is manifest.json as a JavaScript object. ``frames`` is the number of frames in the sample if the network has state, and
    0 if it has none: then the sample is a single set of inputs.
    """

    model: ModelContext
    format: FormatContext
    package: Name
    cpu: Word
    isa: Name
    board_title: Text
    ids: BuildSystemIds
    optimisation: Code
    compiling: Code
    samples: tuple[Code, ...]
    sample_bytes: tuple[tuple[tuple[Code, ...], ...], ...]
    manifest: Code
    frames: int
    publisher: Publisher
    weights: Code
    """Definition of a C array with the file of stored constants, for the example; empty if the network has none."""
    commands: tuple[Code, ...] = ()


@frozen
class Package:
    """An exported package: the content of each file by its path, and the commands that the user runs next in its folder.

    ``compiled`` is the path of the JavaScript file for the network as WebAssembly, ``archive`` that of the ZIP file; empty if
    the format has none."""

    files: Mapping[str, str | bytes]
    commands: tuple[str, ...]
    compiled: str = ""
    archive: str = ""

    @property
    def code(self) -> Mapping[str, str]:
        """Text of the C sources and headers by file name, without their folders."""
        return {PurePosixPath(p).name: str(text) for p, text in self.files.items() if p.endswith((".c", ".h"))}

    def with_webassembly(self, webassembly: bytes) -> Package:
        """Return the package with a JavaScript file that contains its C compiled to WebAssembly.

        ``webassembly``: the bytes of the WebAssembly module."""
        text = f'const NETWORK = "{base64.b64encode(webassembly).decode()}";\n'
        return replace(self, files=MappingProxyType({**self.files, self.compiled: text}))

    def with_archive(self) -> Package:
        """Return the package with a ZIP file of all its files. Equal files give equal bytes."""
        content = BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in sorted(self.files.items()):
                entry = zipfile.ZipInfo(path)  # of 1980-01-01, the earliest date that the format has
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, data)
        return replace(self, files=MappingProxyType({**self.files, self.archive: content.getvalue()}))


def list_formats() -> tuple[str, ...]:
    """Return the names of the formats that come with microc, sorted."""
    return tuple(
        sorted(path.parent.name for path in (file_access.templates_folder() / "export").glob(f"*/{DESCRIPTION}"))
    )


def load_format(name: str) -> Format:
    """Load an export format by its name, or by the path of its folder. An argument with a slash is a path.

    UsageError if the format does not exist or its ``format.toml`` is wrong."""
    is_own = "/" in name
    if not is_own and name not in list_formats():
        hint = known_names_hint(name, list_formats(), "formats")
        raise UsageError(f"there is no export format {name!r}", hint=f"{hint} (write a path with a slash for your own)")
    folder = Path(name) if is_own else file_access.templates_folder() / "export" / name
    path = folder / DESCRIPTION
    try:
        data = parse_toml(read_text(path, MAX_DESCRIPTION_BYTES))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", where=str(path), hint=_OWN_FORMAT_HINT
        ) from error
    except ValueError as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}", where=str(path), hint=_OWN_FORMAT_HINT) from error
    return _parse_format(folder, path, data)


def _parse_format(folder: Path, path: Path, data: dict[str, Any]) -> Format:
    """Build an export format from the parsed ``format.toml`` at ``path``.

    UsageError for unknown keys, missing texts and values of wrong types."""
    data.setdefault("headers", data.get("sources"))
    data.setdefault("commands", [])
    data.setdefault("families", [])
    for key in TOOL_RUNS:
        data.setdefault(key, [])
    data.setdefault("files", {})
    unknown = sorted(set(data) - {*REQUIRED_TEXTS, *OPTIONAL_KEYS})
    wrong = [key for key in (*REQUIRED_TEXTS, "headers") if not isinstance(data.get(key), str)]
    wrong += [key for key in ("target", "compiled", "archive", "boards") if not isinstance(data.get(key, ""), str)]
    if not isinstance(data["files"], dict) or not all(isinstance(value, str) for value in data["files"].values()):
        wrong.append("files")
    for key in ("commands", "families"):
        if not isinstance(data[key], list) or not all(isinstance(value, str) for value in data[key]):
            wrong.append(key)
    wrong += [key for key in TOOL_RUNS if not isinstance(data[key], list) or not all(map(_is_tool_run, data[key]))]
    if not isinstance(data.get("fixed", False), bool):
        wrong.append("fixed")
    if not wrong and data["status"] not in TEST_STATUS:
        wrong.append("status")
    if unknown or wrong:
        what = f"got the unknown key {unknown[0]!r}" if unknown else f"key {wrong[0]!r} is missing or has a wrong value"
        raise UsageError(
            f"format {folder.name}: {what}",
            where=str(path),
            hint=f"use these keys: texts: {', '.join(REQUIRED_TEXTS)}, headers, target, compiled, archive, boards; lists: "
            f"commands, families, {', '.join(TOOL_RUNS)} (of tables with tool, what, when: tests or a date); a table: files; "
            f"a bool: fixed; status: {', '.join(TEST_STATUS)}",
        )
    commands, families = (tuple(data.pop(key)) for key in ("commands", "families"))
    files = MappingProxyType(dict(sorted(data.pop("files").items())))
    built, linted = (tuple(ToolRun(**entry) for entry in data.pop(key)) for key in TOOL_RUNS)
    return Format(
        name=folder.name,
        folder=folder,
        commands=commands,
        files=files,
        families=families,
        built=built,
        linted=linted,
        **data,
    )


def _is_tool_run(entry: Any) -> bool:
    """Test whether an element of ``built`` or ``linted`` in a ``format.toml`` has the texts of a :class:`ToolRun`, and a date
    if it has no tests."""
    if not isinstance(entry, dict) or set(entry) != {"tool", "what", "when"}:
        return False
    if not all(isinstance(value, str) and value for value in entry.values()):
        return False
    return entry["when"] == IN_TESTS or re.fullmatch(r"\d{4}-\d{2}-\d{2}", entry["when"], re.ASCII) is not None


def check_board(export_format: Format, board: Board) -> None:
    """Check that a format's build system can build for a board.

    UsageError if it does not build for the board's core, or if the board is real and has no id for that build system. An
    emulated machine, or a core without a board, needs no id: the package is then for the build system's generic board."""
    if export_format.families and board.target.isa not in (*export_format.families, "host"):
        others = ", ".join(name for name in list_formats() if _is_supported_by_build_system(load_format(name), board))
        raise UsageError(
            f"format {export_format.name}: its build system does not build for {board.target.cpu}",
            where=board.title,
            hint=f"choose another format: {others}; or another board",
        )
    emulated = board.raw.get("emulator") or board.raw.get("simulator")
    if export_format.boards and board.raw.get("memory") and not emulated and export_format.boards not in board.ids:
        raise UsageError(
            f"format {export_format.name}: board {board.name} has no id {export_format.boards!r} in its file",
            where=board.title,
            hint="leave out --board, or choose a board that has this id",
        )


def _is_supported_by_build_system(export_format: Format, board: Board) -> bool:
    """Test whether a format's build system knows a board and builds for its family of cores."""
    has_board = not export_format.boards or export_format.boards in board.ids
    return (
        has_board
        and not export_format.target.startswith("wasm")
        and (not export_format.families or board.target.isa in export_format.families)
    )


def build_package(
    module: Module,
    board: Board,
    name: str,
    version: str,
    frames: Sequence[Frame] | None = None,
    publisher: Publisher = ANONYMOUS,
) -> Package:
    """Build the package that ``microc export`` writes.

    ``name``: the name of the export format, or the path of a format's folder. ``board``: the board that the network was
    compiled for. ``version``: microc's version. ``frames``: the frames of the sample, by default those of
    :func:`sample_frames`. ``publisher``: who publishes it. UsageError for a board or network that the format does not support."""
    export_format = load_format(name)
    check_board(export_format, board)
    if is_relocatable(module.options):
        raise UsageError(
            f"relocatable: got export format {export_format.name}, expected a project: exports are linked into a program",
            hint="leave out relocatable, or use microc compile",
        )
    if module.own is not None:
        raise UsageError(
            "external: no export format contains external code",
            where=module.source,
            hint="leave out external, or take the project that microc compile writes, whose CMakeLists.txt builds it",
        )
    if export_format.fixed and module.sizes:
        varying = ", ".join(size.label for size in module.sizes)
        raise UsageError(
            f"format {export_format.name}: got a network whose sizes vary ({varying}), expected fixed sizes",
            where=module.source,
            hint="fix the sizes with --input-shape, or choose an export format for C",
        )
    weights = pack_stored_constants(module)
    if export_format.fixed and weights:
        raise UsageError(
            f"format {export_format.name}: got a network that reads weights.bin, expected constants in flash",
            where=module.source,
            hint="choose an export format for C, or a board with more flash",
        )
    context = _package_context(module, board, export_format, version, frames, publisher)
    sources, headers = (
        _check_inside_export(_render_format_line(text, context, export_format), export_format)
        for text in (export_format.sources, export_format.headers)
    )
    network = render_network(context.model)
    for end in (".c", ".h"):
        network[f"{context.package}_sample{end}"] = render(f"export/sample{end}.j2", context)
    files: dict[str, str | bytes] = {
        _join_folder_and_file(headers if file.endswith(".h") else sources, file): text for file, text in network.items()
    }
    if weights:
        files[WEIGHTS_FILE] = weights
    files["LICENSE"] = render("export/LICENSE.j2", context)
    for path, template in export_format.files.items():
        files[_check_inside_export(_render_format_line(path, context, export_format), export_format)] = (
            _render_template(template, context, export_format)
        )
    files[PROJECT_MARKER] = to_json({**manifest(module, version), "format": export_format.name})
    compiled = _check_inside_export(export_format.compiled, export_format)
    archive = _check_inside_export(_render_format_line(export_format.archive, context, export_format), export_format)
    return Package(MappingProxyType(dict(sorted(files.items()))), context.commands, compiled, archive)


def _escape_texts(data: Any) -> Any:
    """Wrap all strings in plain data (dicts, lists, strings, numbers) as :class:`Text`, which may be written into code.

    ``Text`` replaces letters and shortens long strings. Different strings still become different texts, because the generated
    code looks tensors up by name: a text that is taken gets a number in front."""
    escaped: dict[str, Text] = {}
    taken: set[str] = set()

    def escape_text(text: str) -> Text:
        if text not in escaped:
            candidates = map(Text, chain((text,), (f"{number}: {text}" for number in count(2))))
            escaped[text] = next(candidate for candidate in candidates if candidate not in taken)
            taken.add(escaped[text])
        return escaped[text]

    def escape_value(value: Any) -> Any:
        if isinstance(value, str):
            return escape_text(value)
        if isinstance(value, dict):
            return {escape_text(key): escape_value(item) for key, item in value.items()}
        return [escape_value(item) for item in value] if isinstance(value, list) else value

    return escape_value(data)


def _join_folder_and_file(folder: str, file: str) -> str:
    """Return the path of a file in a folder of the package. An empty ``folder`` stands for the package's root
    folder."""
    return f"{folder}/{file}" if folder else file


def _render_template(template: str, context: PackageContext, export_format: Format) -> str:
    """Render a template in the folder of an export format. UsageError if the template is wrong."""
    try:
        return render(template, context, export_format.folder)
    except jinja2.TemplateError as error:
        where = f"{export_format.folder / template}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError(
            f"format {export_format.name}: a template cannot be rendered: {error}", where=where, hint=_OWN_FORMAT_HINT
        ) from error


def _render_format_line(text: str, context: PackageContext, export_format: Format) -> str:
    """Render a path or command of ``format.toml``, which is a template. UsageError if the template is wrong."""
    try:
        return render_line(text, context)
    except jinja2.TemplateError as error:
        where = str(export_format.folder / DESCRIPTION)
        raise UsageError(
            f"format {export_format.name}: cannot render the path or command {text!r}: {error}",
            where=where,
            hint=_OWN_FORMAT_HINT,
        ) from error


def _check_inside_export(relative_path: str, export_format: Format) -> str:
    """Return ``relative_path`` unchanged if it is inside of the exported folder, else raise UsageError."""
    if PurePosixPath(relative_path).is_absolute() or ".." in PurePosixPath(relative_path).parts:
        raise UsageError(
            f"format {export_format.name}: got path {relative_path!r}, expected one inside of the export",
            where=str(export_format.folder / DESCRIPTION),
            hint="write paths relative to the export, without ..",
        )
    return relative_path


def _package_context(
    module: Module,
    board: Board,
    export_format: Format,
    version: str,
    frames: Sequence[Frame] | None,
    publisher: Publisher,
) -> PackageContext:
    """Build the variables of an export format's templates for a network compiled for a board.

    ``frames``: the frames of the sample; None for those of :func:`sample_frames`."""
    package = Name(PACKAGE.format(name=module.name))
    frames = sample_frames(module) if frames is None else frames
    model = make_model_context(module, version, package)
    context = PackageContext(
        model=model,
        format=FormatContext(Code(export_format.title), Code(export_format.status), Code(export_format.checked)),
        package=package,
        cpu=Word(board.target.cpu),
        isa=Name(board.target.isa),
        board_title=Text(board.title),
        ids=list_board_ids(board),
        optimisation=Code(optimisation_options(board.target, module.options["optimize"])),
        compiling=Code(webassembly_options(board.target)),
        samples=print_sample_definitions(module, frames, f"{model.upper}_FLASH " if model.flash_space else ""),
        sample_bytes=sample_byte_literals(frames),
        manifest=Code(to_json(_escape_texts(manifest(module, version))).strip()),
        frames=len(frames) if module.state else 0,
        publisher=publisher,
        weights=Code("\n".join(print_bytes_definition("weights", pack_stored_constants(module)))),
    )
    return replace(
        context,
        commands=tuple(Code(_render_format_line(text, context, export_format)) for text in export_format.commands),
    )
