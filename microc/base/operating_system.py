# SPDX-License-Identifier: Apache-2.0
"""All knowledge of operating systems: file owners, locks, exchange of folders, command lines, terminals, drives, processors.

Linux, macOS and other POSIX systems have the modules ``fcntl``, ``grp``, ``pwd`` and ``termios``, numeric users, and ``sh``;
Windows has none of these. No other file of the package asks which system it runs on; ``tests/test_platform.py`` checks this.
Every function works on every system; its docstring says what it does where the system lacks the means."""

from __future__ import annotations

import os
import re
import shlex
import stat
import string
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import EINVAL
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TextIO, TypeVar

LINUX, MACOS, WINDOWS, OTHER_POSIX = "Linux", "macOS", "Windows", "POSIX"


def system_name() -> str:
    """Return the name of this operating system: one of the constants above."""
    names = {"linux": LINUX, "darwin": MACOS, "win32": WINDOWS}
    return names.get(sys.platform, OTHER_POSIX)


def is_windows() -> bool:
    """Test whether this is Windows."""
    return system_name() == WINDOWS


# ---- Owners and permissions. Windows has no numeric users, and its modes say nothing about other users.

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def distrust_reason(path: Path) -> str:
    """Return the reason why a file is not trusted, as a clause for error messages; an empty string if it is trusted.

    It applies to files that are read although the user did not name them.

    A file is trusted by the rule of git's ``safe.directory``: its owner is the user or root, and nobody else can
    write to it. The rule applies to the file, to the target of a symbolic link, and to the folders of both. A folder
    with the sticky bit may be writable by others, because they cannot replace files of another owner in it. Under
    ``sudo`` the user who called it counts as the user. On Windows every file is trusted."""
    if not _has_file_owners():
        return ""
    users = _trusted_users()
    for candidate in dict.fromkeys((path, path.resolve())):
        for inspected, state in ((candidate, candidate.lstat()), (candidate.parent, candidate.parent.stat())):
            if state.st_uid not in users:
                return f"{inspected} belongs to {_login_name(state.st_uid)}, and the user is {_login_name(os.getuid())}"
            sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
            if (
                state.st_mode & _OTHERS_WRITE & ~_private_group_write_bit(state)
                and not sticky
                and not stat.S_ISLNK(state.st_mode)
            ):
                return f"others than its owner may write {inspected}"
    return ""


def is_own(state: os.stat_result) -> bool:
    """Test whether a file belongs to the user; on Windows every file does."""
    return not _has_file_owners() or state.st_uid == os.getuid()


def is_private(state: os.stat_result) -> bool:
    """Test whether a file or folder belongs to the user, and its mode lets nobody else write; always on Windows."""
    return not _has_file_owners() or (is_own(state) and not state.st_mode & _OTHERS_WRITE)


def is_writable_for_everybody(state: os.stat_result) -> bool:
    """Test whether the mode of a file or folder lets every user write; never on Windows."""
    return _has_file_owners() and bool(state.st_mode & stat.S_IWOTH)


def is_administrator() -> bool:
    """Test whether this process may install packages of the system without ``sudo``. Always True on Windows, whose
    installers ask for the right themselves."""
    return not hasattr(os, "geteuid") or os.geteuid() == _ROOT


def _has_file_owners() -> bool:
    """Test whether files have numeric owners."""
    return hasattr(os, "getuid")


def _trusted_users() -> frozenset[int]:
    """Return the numeric ids of the trusted users: the user, root, and the user who called ``sudo``."""
    sudo_uid = os.environ.get("SUDO_UID", "")
    sudo = {int(sudo_uid)} if os.getuid() == _ROOT and sudo_uid.isdecimal() else set()
    return frozenset({os.getuid(), _ROOT, *sudo})


def _private_group_write_bit(file_status: os.stat_result) -> int:
    """Return the group-write bit of a file's mode if the file's owner is the only member of the file's group, else 0.

    Many systems create such a group for each user (umask 002). The bit then permits nobody else to write."""
    import grp
    import pwd

    try:
        group, owner = grp.getgrgid(file_status.st_gid), pwd.getpwuid(file_status.st_uid)
    except KeyError:
        return 0
    alone = (
        owner.pw_gid == file_status.st_gid and set(group.gr_mem) <= {owner.pw_name} and group.gr_name == owner.pw_name
    )
    return stat.S_IWGRP if alone else 0


def _login_name(user_id: int) -> str:
    """Return the login name of a user id."""
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:  # of another machine, or a container's
        return f"user {user_id}"


# ---- Locks and folders. A lock ends with its process, however that ends.

_EXCHANGE_FLAG = 2
"""Value of the flag RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS, which makes a rename exchange two paths."""
_AT_CURRENT_FOLDER = -100
"""Value of AT_FDCWD of Linux, with which relative paths begin at the current folder."""


def lock_path(path: Path) -> int | None:
    """Lock a file or folder until :func:`release_lock` or the end of this process, and return the lock's file descriptor.

    None if the system or the file system has no such locks, as on Windows, which cannot rename an open file or open a folder.
    Raises BlockingIOError if another process holds the lock."""
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks
        os.close(descriptor)
        return None
    return descriptor


def release_lock(lock: int | None) -> None:
    """Release a lock by closing its file descriptor. None: there is no lock."""
    if lock is not None:
        os.close(lock)


def exchange_folders(first: Path, second: Path) -> bool:
    """Exchange the paths of two folders in one system call. Return False if the system or the file system cannot."""
    if is_windows():
        return False
    import ctypes

    library, names = ctypes.CDLL(None), (os.fsencode(first), os.fsencode(second))
    if hasattr(library, "renamex_np"):
        return bool(library.renamex_np(*names, _EXCHANGE_FLAG) == 0)
    if hasattr(library, "renameat2"):
        return bool(library.renameat2(_AT_CURRENT_FOLDER, names[0], _AT_CURRENT_FOLDER, names[1], _EXCHANGE_FLAG) == 0)
    return False


def user_cache_folder() -> Path:
    """Return the folder in which the operating system stores the cached files of a user."""
    if is_windows():
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if system_name() == MACOS:
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def list_mount_points(drive_name: str) -> list[Path]:
    """List the folders in which a desktop system mounts a removable drive of this name, such as ``RPI-RP2``.

    Windows gives drives letters: the drives whose label is the name."""
    if is_windows():
        return [Path(root) for root in _list_drive_roots() if _volume_label(root) == drive_name]
    user = os.environ.get("USER", "")
    roots = ["/Volumes"] if system_name() == MACOS else [f"/media/{user}", f"/run/media/{user}", "/media", "/mnt"]
    return [Path(root) / drive_name for root in roots]


def _list_drive_roots() -> list[str]:
    """List the roots of the drives of Windows, such as ``D:\\``."""
    return [root for root in (f"{letter}:\\" for letter in string.ascii_uppercase[2:]) if os.path.exists(root)]


def _volume_label(root: str) -> str:
    """Return the label of the drive with a root such as ``D:\\``; empty if it has none or holds no medium."""
    import ctypes

    label = ctypes.create_unicode_buffer(261)  # MAX_PATH + 1
    kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009 - on Windows alone
    return label.value if kernel32.GetVolumeInformationW(root, label, len(label), None, None, None, None, 0) else ""


# ---- Command lines that people read and copy, and that reports and addresses (``pipe:COMMAND``) contain.


_PLAIN_ARGUMENT = re.compile(r"[\w:\\/.=+-]+", re.ASCII)
_POWERSHELL_ESCAPED = re.compile("[`$\u201c-\u201e]")
"""Characters that PowerShell interprets between double quotes. It takes typographic quotes for quotes, too."""
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def quote_argument(argument: str) -> str:
    """Quote an argument for the user's shell. An argument of strangers, such as a name in a model, stays one argument.

    POSIX: for ``sh``. Windows: in double quotes, which ``cmd.exe`` and PowerShell have in common."""
    if not is_windows():
        return shlex.quote(argument)
    if _PLAIN_ARGUMENT.fullmatch(argument):
        return argument
    return '"' + _POWERSHELL_ESCAPED.sub(r"`\g<0>", argument.replace('"', '""')) + '"'


def join_arguments(arguments: Iterable[str]) -> str:
    """Join arguments to a command line, each quoted by :func:`quote_argument`."""
    return " ".join(map(quote_argument, arguments))


def split_command(line: str) -> list[str]:
    """Split a command line into arguments, the inverse of :func:`join_arguments`. Raises ValueError for an open quote.

    A backslash escapes on POSIX systems; on Windows it is a character of paths."""
    if not is_windows():
        return shlex.split(line)
    if line.count('"') % 2:
        raise ValueError("No closing quotation")
    words = re.findall(r'(?:[^\s"]|"[^"]*")+', line)
    return [_QUOTED.sub(lambda quoted: re.sub("`(.)", r"\1", quoted[1].replace('""', '"')), word) for word in words]


# ---- Serial ports and terminals.


def example_serial_port() -> str:
    """Return the name of a serial port as this system names them, for hints."""
    return {WINDOWS: "COM3", MACOS: "/dev/cu.usbmodem101"}.get(system_name(), "/dev/ttyACM0")


def can_lock_serial_port() -> bool:
    """Test whether a serial port has to be opened exclusively; on Windows every port is."""
    return not is_windows()


def terminal_error_types() -> tuple[type[Exception], ...]:
    """List the exception types of the system's terminal interface, in addition to OSError."""
    try:
        import termios
    except ImportError:
        return ()
    return (termios.error,)


def is_closed_pipe(error: OSError) -> bool:
    """Test whether an error says that the reader of a pipe is gone.

    Windows reports it as an invalid argument (https://github.com/python/cpython/issues/79935). Errors about files name
    their file."""
    if isinstance(error, BrokenPipeError):
        return True
    return is_windows() and error.errno == EINVAL and error.filename is None


_STANDARD_ERROR_HANDLE = -12
_VIRTUAL_TERMINAL = 0x0004
"""Value of the flag ENABLE_VIRTUAL_TERMINAL_PROCESSING of Windows, with which a console obeys control sequences."""


def has_control_sequences(stream: TextIO) -> bool:
    """Test whether ``stream`` is a terminal that obeys control sequences, for colours and for moving the cursor.

    A console of Windows 10 or later obeys them after it was asked to. ``TERM=dumb`` says that a terminal does not."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    if not is_windows():
        return True
    import ctypes

    kernel32, mode = getattr(ctypes, "windll").kernel32, ctypes.c_uint32()  # noqa: B009 - on Windows alone
    handle = kernel32.GetStdHandle(_STANDARD_ERROR_HANDLE)
    return bool(
        kernel32.GetConsoleMode(handle, ctypes.byref(mode))
        and kernel32.SetConsoleMode(handle, mode.value | _VIRTUAL_TERMINAL)
    )


# ---- Processors, memory of the interpreter, and compilers.


def bind_process_to_core(process_index: int) -> None:
    """Bind this process to one core of the computer: the last core for process 0, the core before it for process 1, and
    so on.

    If there are more processes than cores, several processes share a core. macOS and Windows leave the process unbound.
    """
    with suppress(AttributeError, OSError):
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        os.sched_setaffinity(0, {cores[process_index % len(cores)]})


P = ParamSpec("P")
R = TypeVar("R")
_RESERVED_STACK_SLOTS = 1 << 16
"""Stack slots of 8 bytes of a frame for which the interpreter maps a piece of 1 MiB.

The other half of the piece holds the frames of 1,000 calls inside of each other, the interpreter's default limit, if
these take at most 64 slots each."""


def reserves_stack(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that runs long, so that the frames of all functions that it calls share one piece of memory.

    CPython maps memory for the frames of Python functions in pieces of 16 KiB, or of a power of two that holds the next
    frame, and unmaps a piece as soon as its first function returns. A function that is called in a loop where a piece is
    full costs a mapping, page faults and an unmapping per iteration: 10,000 of them in the compilation of a network of
    30 kernels, 3 to 6 % of its time. A frame with a large stack gets a large piece. Untouched pages of it take no
    memory. Threads that the function starts have frames of their own."""

    def call_with_large_frame(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    # The size of the interpreter's stack is a constant of the code; one that is too large does no harm.
    call_with_large_frame.__code__ = call_with_large_frame.__code__.replace(co_stacksize=_RESERVED_STACK_SLOTS)
    return wraps(function)(call_with_large_frame)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, from malloc.h."""
_MAX_MMAP_THRESHOLD = 32 << 20
"""Largest M_MMAP_THRESHOLD in bytes that glibc accepts on computers of 64 bits."""


def keep_freed_memory() -> None:
    """Let glibc keep memory that the process frees, instead of returning it to the system and mapping it again.

    The arrays of a compilation come and go: of its 34,000 page faults, 14,000 are for memory that it had before (3 % of its
    CPU time). The largest amount of memory stays the same. Other C libraries have no such setting."""
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def position_independent_flags() -> tuple[str, ...]:
    """List the flags with which the host's C compiler makes code for a shared library. All code of Windows suits one, and
    clang for Windows refuses the flag."""
    return () if is_windows() else ("-fPIC",)


def shared_library_flags() -> tuple[str, ...]:
    """List the flags with which the host's C compiler links a shared library.

    The loader of Windows does not look for the compiler's own libraries beside the compiler, so they are linked in."""
    return ("-static",) if is_windows() else position_independent_flags()


def make_library_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder for a library that this process loads, which is deleted at the process's end.

    Windows deletes no loaded library: there, the file stays in the folder of temporary files."""
    return tempfile.TemporaryDirectory(prefix="microc-", ignore_cleanup_errors=is_windows())


def list_make_programs() -> tuple[str, ...]:
    """List the names of GNU make, the preferred name first."""
    return ("make", "mingw32-make") if is_windows() else ("make",)
