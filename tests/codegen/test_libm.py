"""Our own functions of ``<math.h>``, for C libraries that lack them."""

from __future__ import annotations

import re

import pytest

from microc.codegen.helpers import helper_texts
from microc.codegen.libm import OWN


@pytest.mark.parametrize("name", OWN)
def test_a_function_brings_the_functions_that_it_calls_alone(name: str) -> None:
    """An unused static function is an error in the tests' builds, and flash in none: ``acosh_f32`` ends like ``cosh_f32``."""
    texts = helper_texts([name], "avr")
    for needed in texts:
        callers = [
            other for other, lines in texts.items() if other != needed and needed in re.findall(r"\w+", str(lines))
        ]
        assert needed == name or callers
