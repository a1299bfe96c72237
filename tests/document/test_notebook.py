# SPDX-License-Identifier: Apache-2.0
"""Documents in a notebook: every block as HTML, and no markup of strangers."""

from __future__ import annotations

from microc.document.blocks import (
    Code,
    Document,
    Shell,
    Step,
    Steps,
    document,
    facts,
    layer_names,
    numbers,
    prose,
    table,
)
from microc.document.renderers import Showable, render_notebook

EVIL = "<script>alert(1)</script>\x1b"


class Shown(Showable):
    def document(self) -> Document:
        return document(facts([("kernels", 1234)]), title="net")


def test_title_is_the_caption_of_the_first_table() -> None:
    caption = "<caption style='text-align:left'><b>net</b></caption>"
    assert Shown()._repr_html_() == (
        f"<table>{caption}<tr><th style='text-align:left'>kernels</th><td>1,234</td></tr></table>"
    )


def test_everything_is_escaped() -> None:
    blocks = (
        facts([(EVIL, EVIL)], EVIL),
        table((*layer_names(EVIL), *numbers(EVIL)), [(EVIL, EVIL)], EVIL, EVIL),
        prose(EVIL),
        Code(EVIL, EVIL),
        Shell((EVIL,), EVIL, EVIL),
        Steps((Step(EVIL, EVIL),), EVIL),
    )
    page = render_notebook(document(*blocks, title=EVIL))
    assert "<script>" not in page and "\x1b" not in page and page.count("&lt;script&gt;") == 19


def test_cells_are_aligned_and_named_as_on_a_terminal() -> None:
    page = render_notebook(document(table((*layer_names("layer"), *numbers("MACs")), [("model.onnx #1 conv", 5000)])))
    assert "<td style='text-align:left'>#1 conv</td><td>5,000</td>" in page
