"""Plugins and schedule rules of the user: known for the whole of a command, or of a call of the library.

Registries are extended in two places alone. :func:`microc.cli.main` enters :func:`extended_by` around the command, and
:func:`knows_plugins` decorates the functions of the library that take options. What they return computes more when it is asked
(the files of a Program, the text of an Explanation): :func:`knows_its_plugins` decorates those methods. Nothing in between
enters or leaves a context of its own, so that no stage of a call knows less than another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from microc.driver.options import Options, checks

P = ParamSpec("P")
R = TypeVar("R")

KNOWS = "knows_plugins"
"""The attribute of functions that :func:`knows_plugins` decorates, for tests."""


@contextmanager
def extended_by(options: Mapping[str, Any]) -> Iterator[None]:
    """Extend the registries by the plugins and schedule rules among options by name. Files of plugins are loaded."""
    plugins = checks.plugins("plugins", options["plugins"]) if "plugins" in options else ()
    rules = checks.schedules("schedules", options["schedules"]) if "schedules" in options else ()
    if not plugins and not rules:
        yield
        return
    from microc.plugin import active

    with active(plugins, rules):
        yield


def knows_plugins(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function whose keywords are options, or which takes :class:`Options`: it knows their plugins and rules."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        chosen = next((each for each in (*args, *kwargs.values()) if isinstance(each, Options)), None)
        own = kwargs if chosen is None else {"plugins": chosen.plugins, "schedules": chosen.schedules}
        with extended_by(own):
            return function(*args, **kwargs)

    setattr(call, KNOWS, True)
    return call


def knows_its_plugins(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method of what a function of the library returned: it knows the ``plugins`` of its object."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        own: Any = args[0]
        with extended_by({"plugins": own.plugins}):
            return method(*args, **kwargs)

    return call
