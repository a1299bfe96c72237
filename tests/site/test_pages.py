# SPDX-License-Identifier: Apache-2.0
"""The code of the site's pages runs, and says what they show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.device.smoke import needs
from tests.site.running import ROOT, Runner
from tests.support import digits
from tests.support.campaign import in_campaign

DOCS = ROOT / "docs"
TUTORIALS = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "tutorials").glob("*.md"))
WAYS = sorted(path.relative_to(DOCS).as_posix() for name in ("from", "into") for path in (DOCS / name).glob("*.md"))
LONG = frozenset({"tutorials/floats.md", "tutorials/embedded.md"})
FILES = (digits.INT8, digits.FLOAT, ROOT / "tests" / "data" / "quantize" / "cnn.onnx")


@needs("arm-none-eabi-gcc", "qemu-system-arm", "gdb-multiarch", "cmake", "avr-gcc")
@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=(in_campaign,) if name in LONG else ()) for name in (*TUTORIALS, *WAYS)]
)
def test_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("sklearn", "onnxruntime", "tflite_micro"):
        pytest.importorskip(package)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", f"{Path(shutil.which('microc') or '/').parent}:{ROOT / '.venv' / 'bin'}", prepend=":")
    for file in FILES:
        shutil.copyfile(file, tmp_path / file.name)
    Runner(DOCS / name, tmp_path).run()


def test_every_page_has_code_that_runs() -> None:
    idle = [
        n
        for n in (*TUTORIALS, *WAYS)
        if "```console" not in (DOCS / n).read_text() and "```python" not in (DOCS / n).read_text()
    ]
    assert idle == ["from/edge-impulse.md"]
