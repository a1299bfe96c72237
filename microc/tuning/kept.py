"""Objects of the runtime, which all images of a board share: they are built for the first, and given to the others."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

OBJECTS = Path("build", "runtime")
"""Where ``make`` puts what it makes of the sources of a project that know nothing of its networks."""


class Kept:
    """The objects, as long as this lives; for projects of one board, whose runtimes are the same."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="microc-kept-"))
        self._end = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def give(self, project: Path) -> None:
        """Into a project that was not built: newer than its sources, as ``make`` wants them."""
        if any(self._folder.iterdir()):
            shutil.copytree(self._folder, project / OBJECTS, copy_function=shutil.copyfile)

    def take(self, project: Path) -> None:
        """From the first project that was built; a framework's build has none."""
        if (project / OBJECTS).is_dir() and not any(self._folder.iterdir()):
            shutil.copytree(project / OBJECTS, self._folder, dirs_exist_ok=True)
