"""Exports: a network wrapped for a build system that exists already.

A format is a folder of data, ``templates/export/<name>`` or one of the user's own: ``format.toml`` says which files there are,
and Jinja templates say what is in them (``docs/export.md``). The network's C is the same in all formats.
"""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import jinja2

from microc.base import file_access
from microc.base.file_access import read_text
from microc.base.immutable import frozen
from microc.codegen.c.source import ModelContext, model_context, render_network
from microc.codegen.output_files import MARKER
from microc.codegen.project.board_files import Ids, board_ids
from microc.codegen.project.firmware import optimisation, webassembly
from microc.codegen.project.manifest import manifest, to_json
from microc.codegen.project.project_samples import Frame, definitions, literals, sample_frames
from microc.codegen.project.protocols import is_relocatable
from microc.codegen.render import Code, Name, Text, Word, render, render_line
from microc.errors import UsageError, suggestion
from microc.module import Module
from microc.target import Board

STATUS: Mapping[str, str] = MappingProxyType(
    {
        "run": "built by its tools and run in the tests",
        "tried": "built by its tools and run by hand, once; in the tests with stand-ins for them",
        "unbuilt": "never built by its tools: its description is validated, and its code built by others",
    }
)
"""How far a format has been tried."""
_OWN_FORMAT = "docs/export.md shows a format of one's own"
DESCRIPTION = "format.toml"
PACKAGE = "{name}_model"
"""What a package, its files and its targets are called: never as a standard header or library, whatever the network's name."""
_LARGEST = 1 << 20
"""Bytes of a description."""
_TEXTS = ("title", "status", "checked", "sources")
_OPTIONAL = ("headers", "commands", "files", "fixed", "target", "compiled", "boards", "families")


@frozen
class Format:
    """What ``format.toml`` says. Paths and commands are templates of their own, of :class:`PackageContext`.

    ``status`` is a key of STATUS, ``checked`` says how it was tried. ``sources`` and ``headers`` are the folders of the network's
    files and of the sample's; ``files`` has the template of every other file. ``commands`` are what a user types next, in the
    exported folder. ``fixed``: the format knows only networks whose sizes do not vary from run to run. ``target``: the core that
    networks are compiled for unless one is named. ``compiled``: a file that the export gets beside its C: that C as a module of
    WebAssembly, which a line of JavaScript names ``NETWORK``. ``boards``: the id that a board must have
    (``[ids]`` of its file), empty where the format is for all. ``families``: of cores that it builds for; empty: all.
    """

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


@frozen
class FormatContext:
    """What a format says of itself: texts of whoever wrote its templates."""

    title: Code
    status: Code
    checked: Code


@frozen
class PackageContext:
    """What the templates of exports show.

    ``package`` names all that the package has; ``optimisation`` are gcc's options for the network on ``cpu``, ``compiling``
    clang's for a module of WebAssembly. ``samples``: an array in C for every input; ``sample_bytes``: by frame and input, the
    same as literals of Python. ``manifest``: what manifest.json holds, as an object of JavaScript.
    ``frames``: how many the sample has of a network that keeps something from run to run; 0 for all others, whose sample is one
    input.
    """

    model: ModelContext
    format: FormatContext
    package: Name
    cpu: Word
    isa: Name
    board_title: Text
    ids: Ids
    optimisation: Code
    compiling: Code
    samples: tuple[Code, ...]
    sample_bytes: tuple[tuple[tuple[Code, ...], ...], ...]
    manifest: Code
    frames: int
    commands: tuple[Code, ...] = ()


@frozen
class Package:
    """An export: contents by file name, and what to do with it next, in its folder."""

    files: Mapping[str, str | bytes]
    commands: tuple[str, ...]
    compiled: str = ""

    @property
    def code(self) -> Mapping[str, str]:
        """C sources and headers by file name, without their folders."""
        return {PurePosixPath(p).name: str(text) for p, text in self.files.items() if p.endswith((".c", ".h"))}

    def with_module(self, module: bytes) -> Package:
        """The same with its C as a module of WebAssembly."""
        text = f'const NETWORK = "{base64.b64encode(module).decode()}";\n'
        return replace(self, files=MappingProxyType({**self.files, self.compiled: text}))


def list_formats() -> tuple[str, ...]:
    """Names of the formats that come with microc, sorted."""
    return tuple(sorted(path.parent.name for path in (file_access.templates() / "export").glob(f"*/{DESCRIPTION}")))


def load_format(name: str) -> Format:
    """A format by its name, or by the path of a folder (anything with a slash). UsageError if it is none."""
    own = "/" in name
    if not own and name not in list_formats():
        hint = suggestion(name, list_formats(), "formats")
        raise UsageError(f"there is no format {name!r}", hint=f"{hint} (a path with a slash is one of your own)")
    folder = Path(name) if own else file_access.templates() / "export" / name
    path = folder / DESCRIPTION
    try:
        data = tomllib.loads(read_text(path, _LARGEST))
    except OSError as error:
        raise UsageError(
            f"cannot read the format: {error.strerror or error}", where=str(path), hint=_OWN_FORMAT
        ) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"the format is not TOML: {error}", where=str(path), hint=_OWN_FORMAT) from error
    return _format(folder, path, data)


def _format(folder: Path, path: Path, data: dict[str, Any]) -> Format:
    data.setdefault("headers", data.get("sources"))
    data.setdefault("commands", [])
    data.setdefault("families", [])
    data.setdefault("files", {})
    unknown = sorted(set(data) - {*_TEXTS, *_OPTIONAL})
    wrong = [key for key in (*_TEXTS, "headers") if not isinstance(data.get(key), str)]
    wrong += [key for key in ("target", "compiled", "boards") if not isinstance(data.get(key, ""), str)]
    if not isinstance(data["files"], dict) or not all(isinstance(value, str) for value in data["files"].values()):
        wrong.append("files")
    for key in ("commands", "families"):
        if not isinstance(data[key], list) or not all(isinstance(value, str) for value in data[key]):
            wrong.append(key)
    if not isinstance(data.get("fixed", False), bool):
        wrong.append("fixed")
    if not wrong and data["status"] not in STATUS:
        wrong.append("status")
    if unknown or wrong:
        what = f"knows no {unknown[0]!r}" if unknown else f"needs {wrong[0]!r}"
        raise UsageError(
            f"a format {what}",
            where=str(path),
            hint=f"texts: {', '.join(_TEXTS)}, headers, target, compiled, boards; lists: commands, families; a table: files; "
            f"a bool: fixed; status: {', '.join(STATUS)}",
        )
    commands, families = (tuple(data.pop(key)) for key in ("commands", "families"))
    files = MappingProxyType(dict(sorted(data.pop("files").items())))
    return Format(name=folder.name, folder=folder, commands=commands, files=files, families=families, **data)


def check_board(chosen: Format, board: Board) -> None:
    """Refuse a core that the format's build system does not build for, and a real board that it does not know: UsageError. An
    emulated machine, or a core without a board, is exported for whatever stands for all boards there."""
    if chosen.families and board.target.isa not in (*chosen.families, "host"):
        others = ", ".join(name for name in list_formats() if _builds_for(load_format(name), board))
        raise UsageError(
            f"the format {chosen.name} does not build for {board.target.cpu}",
            where=board.title,
            hint=f"formats that do: {others}",
        )
    emulated = board.raw.get("emulator") or board.raw.get("simulator")
    if chosen.boards and board.raw.get("memory") and not emulated and chosen.boards not in board.ids:
        raise UsageError(
            f"the format {chosen.name} has no board {board.name}",
            where=board.title,
            hint=f"leave --board out, or name a board that has an id {chosen.boards!r} in its file",
        )


def _builds_for(found: Format, board: Board) -> bool:
    known = not found.boards or found.boards in board.ids
    return known and not found.target.startswith("wasm") and (not found.families or board.target.isa in found.families)


def export_files(
    module: Module, board: Board, name: str, version: str, frames: Sequence[Frame] | None = None
) -> Package:
    """Everything that ``microc export`` writes.

    ``name``: of the format. ``board``: what the network was compiled for; ``frames``: the sample (:func:`sample_frames` unless
    given).
    """
    found = load_format(name)
    check_board(found, board)
    if is_relocatable(module.options):
        raise UsageError("an export becomes part of a program: it is not loaded", hint="leave out relocatable")
    if module.own is not None:
        raise UsageError(
            "no export format carries external code",
            where=module.source,
            hint="leave out external, or take the project that microc compile writes, whose CMakeLists.txt builds it",
        )
    if found.fixed and module.sizes:
        varying = ", ".join(size.label for size in module.sizes)
        raise UsageError(
            f"the format {found.name} is for networks of fixed sizes, this one leaves {varying} open",
            where=module.source,
            hint="bind them with --input-shape, or choose a format in C",
        )
    context = _context(module, board, found, version, frames)
    sources, headers = (_inside(_line(text, context, found), found) for text in (found.sources, found.headers))
    network = render_network(context.model)
    for end in (".c", ".h"):
        network[f"{context.package}_sample{end}"] = render(f"export/sample{end}.j2", context)
    files: dict[str, str | bytes] = {
        _joined(headers if file.endswith(".h") else sources, file): text for file, text in network.items()
    }
    files["LICENSE"] = render("export/LICENSE.j2", context)
    for path, template in found.files.items():
        files[_inside(_line(path, context, found), found)] = _rendered(template, context, found)
    files[MARKER] = to_json({**manifest(module, version), "format": found.name})
    compiled = _inside(found.compiled, found)
    return Package(MappingProxyType(dict(sorted(files.items()))), context.commands, compiled)


def _filtered(data: Any) -> Any:
    """Plain data with all its texts as those of strangers, for a file of code."""
    if isinstance(data, str):
        return Text(data)
    if isinstance(data, dict):
        return {Text(key): _filtered(value) for key, value in data.items()}
    return [_filtered(value) for value in data] if isinstance(data, list) else data


def _joined(folder: str, file: str) -> str:
    return f"{folder}/{file}" if folder else file


def _rendered(template: str, context: PackageContext, chosen: Format) -> str:
    """A template of the format's folder; UsageError where a format of the user's own is wrong."""
    try:
        return render(template, context, chosen.folder)
    except jinja2.TemplateError as error:
        where = f"{chosen.folder / template}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError(f"a template of the format is wrong: {error}", where=where, hint=_OWN_FORMAT) from error


def _line(text: str, context: PackageContext, chosen: Format) -> str:
    """A text of ``format.toml``, filled in."""
    try:
        return render_line(text, context)
    except jinja2.TemplateError as error:
        where = str(chosen.folder / DESCRIPTION)
        raise UsageError(f"the format's {text!r} is wrong: {error}", where=where, hint=_OWN_FORMAT) from error


def _inside(path: str, chosen: Format) -> str:
    """A path in the export; UsageError for one that leaves it."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise UsageError(
            f"the format writes to {path!r}, outside of the export",
            where=str(chosen.folder / DESCRIPTION),
            hint="paths are relative to the export, without ..",
        )
    return path


def _context(
    module: Module, board: Board, chosen: Format, version: str, frames: Sequence[Frame] | None
) -> PackageContext:
    package = Name(PACKAGE.format(name=module.name))
    frames = sample_frames(module) if frames is None else frames
    model = model_context(module, version, package)
    context = PackageContext(
        model=model,
        format=FormatContext(Code(chosen.title), Code(chosen.status), Code(chosen.checked)),
        package=package,
        cpu=Word(board.target.cpu),
        isa=Name(board.target.isa),
        board_title=Text(board.title),
        ids=board_ids(board),
        optimisation=Code(optimisation(board.target, module.options["optimize"])),
        compiling=Code(webassembly(board.target)),
        samples=definitions(module, frames, f"{model.upper}_FLASH " if model.flash_space else ""),
        sample_bytes=literals(frames),
        manifest=Code(to_json(_filtered(manifest(module, version))).strip()),
        frames=len(frames) if module.state else 0,
    )
    return replace(context, commands=tuple(Code(_line(text, context, chosen)) for text in chosen.commands))
