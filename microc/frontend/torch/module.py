"""Modules of PyTorch that are not exported yet: exported here, for inputs like those that are given."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.errors import ToolError, UnsupportedError, UsageError

_LONGEST = 300


def is_module(model: Any) -> bool:
    """Whether an object is a module of PyTorch, told without importing it."""
    homes = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    return "torch" in homes and hasattr(model, "forward") and hasattr(model, "state_dict")


def note_training(module: Any) -> None:
    """Warn, at the user's own line, that a module in training mode is compiled as after ``eval()``."""
    if any(part.training for part in module.modules()):
        warnings.warn(
            f"{type(module).__name__} is in training mode: it is compiled as after module.eval(), without dropout and with the "
            "statistics that batch normalisation has learned",
            stacklevel=_callers(),
        )


def program_of(module: Any, example_inputs: Any) -> Any:
    """The ``ExportedProgram`` of a module for ``example_inputs``: a tensor or array for every argument of ``forward``, in order,
    or a mapping by the arguments' names. Shapes and dtypes matter, values do not.

    A module in training mode is exported in evaluation mode and stays as it was. Raises UsageError without
    inputs or where they do not fit, UnsupportedError where PyTorch cannot export the module.
    """
    where = type(module).__name__
    if not len(example_inputs):
        raise UsageError(
            "a module of PyTorch does not say the shapes of its inputs",
            where=where,
            hint="give an example of each: microc.compile(module, example_inputs=(torch.zeros(1, 3, 32, 32),))",
        )
    try:
        import torch
    except ImportError as error:
        raise ToolError("PyTorch is not installed", where=where, hint="pip install microc[torch]") from error
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError("a module of TorchScript", where=where, hint="give the module that it was scripted from")
    named = {}
    if isinstance(example_inputs, Mapping):
        named, given = {name: _tensor(torch, each) for name, each in example_inputs.items()}, ()
    else:
        given = tuple(_tensor(torch, each) for each in example_inputs)
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about itself
            return torch.export.export(module, given, kwargs=named)
    except Exception as error:  # whatever the module's own code meets
        first = " ".join(str(error).split())[:_LONGEST]
        raise UnsupportedError(
            f"torch.export does not export the module: {type(error).__name__}: {first}",
            where=where,
            hint="do the example inputs fit forward()? https://docs.pytorch.org/docs/stable/export.html tells what exports",
        ) from error
    finally:
        for part, training in modes:
            part.training = training


def _tensor(torch: Any, example: Any) -> Any:
    if isinstance(example, torch.Tensor):
        return example.detach()
    try:
        return torch.from_numpy(np.ascontiguousarray(example))
    except TypeError as error:
        raise UsageError(f"an example input cannot be {type(example).__name__}", hint="a tensor or an array") from error


def _callers() -> int:
    """How far above its caller the user's own line is."""
    depth, frame = 2, sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "microc":
        depth, frame = depth + 1, frame.f_back
    return depth
