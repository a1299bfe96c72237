"""What a module knows of its inputs and outputs beside their types: rounding, names that were asked for, classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from microc import dtypes
from microc.driver.options import Options
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.module import Module
from microc.transform.boundary import ties_of


def ends_of(module: Module, read: Graph, options: Options) -> dict[str, Any]:
    """The fields ``ties``, ``classes`` and ``class_output`` of a module of the graph ``read``.

    UsageError where C has no room for a name that was asked for, or no output tells the classes apart.
    """
    for name in (*module.inputs, *module.outputs):
        wanted = module.values[name].label
        if wanted in options.rename.values() and name != wanted:
            raise UsageError(
                f"nothing can be renamed {wanted!r}: something else of the header is called so",
                where=module.source,
                hint="choose another name",
            )
    return {"ties": str(ties_of(read)), **_classes(module, options.class_names)}


def _classes(module: Module, names: Sequence[str]) -> dict[str, Any]:
    """The first output with a number for every class on its last axis, or else the first that is a class's number."""
    if not names:
        return {}
    outputs = [module.values[name] for name in module.outputs]
    scores = [each for each in outputs if each.shape[-1:] == (len(names),)]
    whole = [each for each in outputs if dtypes.is_integer(each.dtype) and each.scale is None]
    numbers = [each for each in whole if each.shape[-1:] in ((), (1,))]
    if not scores and not numbers:
        shapes = ", ".join(f"{each.name} has {'x'.join(map(str, each.shape)) or 'one number'}" for each in outputs)
        raise UsageError(
            f"there are {len(names)} names of classes, and no output with as many numbers on its last axis",
            where=module.source,
            hint=f"{shapes}: give a name for each, in order",
        )
    return {"classes": tuple(names), "class_output": (scores or numbers)[0].name}
