# SPDX-License-Identifier: Apache-2.0
"""Exports for tools that are not here: their descriptions are read, and stand-ins for the tools build what is described."""

from __future__ import annotations

import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.device.smoke import needs
from tests.exports.programs import export, run, said
from tests.exports.test_builds import assert_alike
from tests.support.campaign import in_campaign

yaml = pytest.importorskip("yaml", reason="needs pyyaml (pip install microc[test])")
STAND_INS = Path(__file__).with_name("stand_ins")
NETWORKS = {"digits": "digits_int8_model", "awkward": "double_model"}
BOTH = pytest.mark.parametrize(("which", "package"), NETWORKS.items())


def described(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


# ---------------------------------------------------------------- Zephyr

ZEPHYR = os.environ.get("MICROC_ZEPHYR", "")


@needs("cmake", "gcc")
@BOTH
def test_zephyr(tmp_path: Path, which: str, package: str) -> None:
    folder = export(tmp_path / "net", "zephyr", which)
    module = described(folder / "zephyr" / "module.yml")
    assert module == {
        "name": package,
        "build": {"cmake": "zephyr", "kconfig": "zephyr/Kconfig"},
        "samples": ["samples"],
    }
    sample = folder / "samples" / package
    for setting, _ in re.findall(r"^CONFIG_(\w+)=(\w+)$", (sample / "prj.conf").read_text(), re.M):
        ours = f"config {setting}\n" in (folder / "zephyr" / "Kconfig").read_text()
        assert ours or (setting == "CBPRINTF_FP_SUPPORT" and which == "awkward")
    run(sample, "cmake", "-B", "build", f"-DZephyr_DIR={STAND_INS}/zephyr")
    run(sample, "cmake", "--build", "build")
    output = run(sample, "build/app")
    assert output == said(which)
    (test,) = described(sample / "sample.yaml")["tests"].values()
    assert all(re.search(line, output) for line in test["harness_config"]["regex"])


@in_campaign
@needs("west", "ninja", "gcc")
@pytest.mark.skipif(not ZEPHYR, reason="MICROC_ZEPHYR names no tree of Zephyr in a workspace of west")
@BOTH
def test_zephyr_itself(tmp_path: Path, which: str, package: str) -> None:
    """Its own tools build the sample for its simulator of a board, with the compiler of this computer."""
    sample = export(tmp_path / "net", "zephyr", which) / "samples" / package
    build = ("west", "build", "-b", "native_sim/native/64", "-d", tmp_path / "build", sample)
    run(Path(ZEPHYR), *build, ZEPHYR_BASE=ZEPHYR, ZEPHYR_TOOLCHAIN_VARIANT="host")
    assert said(which) in run(tmp_path, "build/zephyr/zephyr.exe", "-stop_at=1")


@needs("cmake", "gcc")
def test_zephyr_modules_are_chosen(tmp_path: Path) -> None:
    """Without its setting a module adds nothing."""
    folder = export(tmp_path / "net", "zephyr")
    (folder / "samples" / "digits_int8_model" / "prj.conf").write_text("CONFIG_OTHER=y\n")
    (folder / "samples" / "digits_int8_model" / "src" / "main.c").write_text("int main(void) { return 0; }\n")
    run(folder / "samples" / "digits_int8_model", "cmake", "-B", "build", f"-DZephyr_DIR={STAND_INS}/zephyr")
    run(folder / "samples" / "digits_int8_model", "cmake", "--build", "build")
    assert not list(folder.rglob("*.a"))


# ---------------------------------------------------------------- ESP-IDF


@needs("cmake", "gcc")
@BOTH
def test_esp_idf(tmp_path: Path, which: str, package: str) -> None:
    folder = export(tmp_path / "net", "esp-idf", which)
    component = described(folder / "components" / package / "idf_component.yml")
    assert re.fullmatch(r"\d+\.\d+\.\d+", component["version"]) and "idf" in component["dependencies"]
    run(folder, "cmake", "-B", "build", IDF_PATH=str(STAND_INS / "esp_idf"))
    run(folder, "cmake", "--build", "build")
    assert run(folder, f"build/{package}_sample.elf") == said(which)


@needs("compote")
@BOTH
def test_esp_idf_component_is_linted(tmp_path: Path, which: str, package: str) -> None:
    """Espressif's component manager accepts the manifest, and packs what it would upload."""
    component = export(tmp_path / "net", "esp-idf", which) / "components" / package
    run(component, "compote", "manifest", "lint")
    run(component, "compote", "component", "pack", "--name", package)
    (archive,) = (component / "dist").glob("*.tgz")
    with tarfile.open(archive) as packed:
        assert {Path(name).name for name in packed.getnames()} >= {"idf_component.yml", f"{package}.c", f"{package}.h"}


# ---------------------------------------------------------------- PlatformIO


@needs("pio")
@BOTH
def test_platformio_library_is_linted(tmp_path: Path, which: str, package: str) -> None:
    """PlatformIO validates library.json as for its registry; a license would need its list of licences from the network."""
    folder = export(tmp_path / "net", "platformio", which)
    run(folder / "lib" / package, "pio", "pkg", "pack", "-o", str(tmp_path / "library.tar.gz"))
    assert "free from linting errors" in run(folder, "pio", "project", "config", "--lint")


@needs("gcc")
@BOTH
def test_platformio(tmp_path: Path, which: str, package: str) -> None:
    """Fields as library.json's schema has them; then what PlatformIO does for `native`: compile src and the library, link."""
    folder = export(tmp_path / "net", "platformio", which)
    library = json.loads((folder / "lib" / package / "library.json").read_text())
    assert library["name"] == package and len(library["name"]) <= 100 and not set(library["name"]) & set('/:;@"')
    assert re.fullmatch(r"\d+\.\d+\.\d+", library["version"]) and len(library["description"]) <= 255
    assert all(len(word) <= 255 and re.fullmatch(r"[a-z\d\- +.]+", word) for word in library["keywords"])
    assert library["frameworks"] == library["platforms"] == "*" and all("name" in who for who in library["authors"])
    root = folder / "lib" / package
    found = root / library["build"]["srcDir"]
    assert all((root / library["build"]["includeDir"] / name).is_file() for name in library["headers"])
    assert all(list(root.glob(pattern)) for pattern in library["examples"])
    files = [*sorted(found.glob("*.c")), *sorted((folder / "src").glob("*.c"))]
    run(folder, "gcc", *library["build"]["flags"], f"-I{found}", *files, "-lm", "-o", "program")
    assert run(folder, "./program") == said(which)
    assert "[env:native]\nplatform = native\n" in (folder / "platformio.ini").read_text()


# ---------------------------------------------------------------- CMSIS solutions


@needs("gcc")
@BOTH
def test_cmsis(tmp_path: Path, which: str, package: str) -> None:
    """Solution, project and layer hold what their schemas require; what they name is there, and makes the program."""
    folder = export(tmp_path / "net", "cmsis", which, target="cortex-m7")
    solution = described(folder / "sample.csolution.yml")["solution"]
    assert solution["compiler"] in ("GCC", "CLANG", "AC6", "IAR") and solution["language-C"] == "c99"
    assert [t["device"] for t in solution["target-types"]] == ["ARM::ARMCM7"]
    assert all(re.fullmatch(r"[\w-]{1,32}", t["type"]) for t in (*solution["target-types"], *solution["build-types"]))
    assert all(t["debug"] in ("on", "off") and t["optimize"] == "speed" for t in solution["build-types"])
    assert all(re.fullmatch(r"\w+::\w+", pack["pack"]) for pack in solution["packs"])
    files: list[Path] = []
    includes: list[Path] = []
    for named in solution["projects"]:
        path = folder / named["project"]
        project = described(path)["project"]
        files += listed(path, project)
        assert all(re.fullmatch(r"\w+::\w+:[\w ]+(&[\w ]+)?", c["component"]) for c in project["components"])
        assert project["misc"] == [{"for-compiler": "GCC", "Link": ["--specs=rdimon.specs"]}]  # or nothing links printf
        for layer in project["layers"]:
            place = path.parent / layer["layer"]
            files += listed(place, described(place)["layer"])
            libraries = [m["Library"] for m in described(place)["layer"].get("misc", ())]
            assert libraries == ([["-lm"]] if which == "awkward" else [])
            includes += [place.parent / folder for folder in described(place)["layer"]["add-path"]]
    assert all(file.is_file() for file in files) and {file.name for file in files} >= {f"{package}.c", "main.c"}
    run(folder, "gcc", *(f"-I{p}" for p in includes), *(f for f in files if f.suffix == ".c"), "-lm", "-o", "sample")
    assert_alike(run(folder, "./sample").splitlines(), said(which).splitlines())


def listed(path: Path, part: dict[str, Any]) -> list[Path]:
    """The files of a project's or layer's groups."""
    return [path.parent / file["file"] for group in part["groups"] for file in group["files"]]
