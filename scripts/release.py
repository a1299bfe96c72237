# SPDX-License-Identifier: Apache-2.0
"""Build wheel and source distribution, and check them as a user meets them: ``python -m scripts.release`` (``make wheel``).

Both go to ``dist/``. The wheel is installed into an empty environment, where ``microc doctor`` and ``microc demo`` run; its
metadata, types, licence and data are looked at; a wheel of the source distribution has the same bytes, wherever it is built.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ("boards/host.toml", "templates/project/model.c.j2", "runtime_c/SPEC.md", "examples/digits/digits_int8.tflite")
"""Of every kind of data that must travel, a file."""
FIELDS = (
    "Name", "Version", "Summary", "Author-email", "Requires-Python", "License-Expression", "License-File", "Keywords",
    "Classifier", "Description-Content-Type", "Project-URL",
)  # fmt: skip


class CheckError(Exception):
    """What a release must not have."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run without anything of this environment leaking in."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP", "VIRTUAL"))}
    environment |= {k: v for k, v in os.environ.items() if k.startswith("PIP_")}
    return subprocess.run(
        [str(c) for c in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600
    )


def must(*command: str | Path, cwd: Path) -> str:
    """The same; what it printed, or CheckError."""
    done = run(*command, cwd=cwd)
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Wheel and source distribution."""
    must(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=source)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def install(wheel: Path, folder: Path) -> Path:
    """The ``bin`` folder of a new environment with nothing but the wheel and what it depends on."""
    must(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    binaries = folder / ("Scripts" if os.name == "nt" else "bin")
    # checks import little of the dependencies: Python compiles that when it is imported
    must(binaries / "python", "-m", "pip", "install", "--quiet", "--no-compile", wheel, cwd=folder)
    return binaries


def metadata(wheel: Path) -> Message:
    """What the wheel says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def check_wheel(wheel: Path) -> None:
    """Metadata, types, licence and data. CheckError says what is not there."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    said = metadata(wheel)
    lacking = [f"metadata {field}" for field in FIELDS if not said.get_all(field)]
    wanted = ["microc/py.typed", *(f"microc/_data/{name}" for name in DATA)]
    lacking += [name for name in wanted if name not in names]
    if not any(re.search(r"\.dist-info/licenses/LICENSE$", name) for name in names):
        lacking.append("the licence's text")
    if lacking:
        raise CheckError(f"{wheel.name} lacks {', '.join(lacking)}")
    strange = [name for name in names if not re.match(r"microc(/|-[^/]*\.dist-info/)", name)]
    if strange:
        raise CheckError(f"{wheel.name} would put {strange[0]} beside its package")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if set(said.get_all("Provides-Extra", [])) != set(extras):
        raise CheckError(f"{wheel.name} has other extras than pyproject.toml")


def check_source(sdist: Path, wheel: Path) -> None:
    """Build a wheel of the source distribution, in another folder, and compare it with the wheel. Raise CheckError if it has
    other files or bytes."""
    with tempfile.TemporaryDirectory() as place, tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have no filters
        archive.extractall(place)
        again, _ = build(Path(place) / "dist", next(Path(place).iterdir()))
        with zipfile.ZipFile(again) as new, zipfile.ZipFile(wheel) as old:
            difference = set(new.namelist()) ^ set(old.namelist())
        is_reproduced = again.read_bytes() == wheel.read_bytes()
    if difference:
        raise CheckError(f"{sdist.name} makes another wheel: {', '.join(sorted(difference)[:5])}")
    if not is_reproduced:
        raise CheckError(f"{sdist.name} makes a wheel with the same files and other bytes")


def main() -> int:
    """All of it; the exit code."""
    say = sys.stdout.write
    try:
        (ROOT / "dist").mkdir(exist_ok=True)
        for old in (ROOT / "dist").glob("microc-*"):
            old.unlink()
        wheel, sdist = build(ROOT / "dist")
        check_wheel(wheel)
        check_source(sdist, wheel)
        with tempfile.TemporaryDirectory() as place:
            binaries = install(wheel, Path(place) / "empty")
            version = must(binaries / "microc", "--version", cwd=Path(place)).split()[-1]
            if version != metadata(wheel)["Version"]:
                raise CheckError(f"microc --version says {version}, the wheel {metadata(wheel)['Version']}")
            say(must(binaries / "microc", "doctor", cwd=Path(place)))
            say(must(binaries / "microc", "demo", cwd=Path(place)))
    except CheckError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path in (wheel, sdist):
        say(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
