# SPDX-License-Identifier: Apache-2.0
"""Reader of PyTorch programs and modules: exports a module if necessary, and converts the program to a graph."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, is_valid
from microc.errors import MicrocError, ModelError, ToolError, UnsupportedError, UsageError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.model_limits import MAX_STORED, list_archive_members
from microc.frontend.signature import merge_converters
from microc.frontend.torch import operators_elementwise, operators_layers, operators_movement, operators_signal
from microc.frontend.torch.context import Converter, OpContext
from microc.frontend.torch.file import is_program_archive, sanitise_archive
from microc.graph.ir import Graph

# ---- PyTorch programs (``torch.export``): an ``ExportedProgram``, or the ``.pt2`` file that ``torch.export.save`` writes.
#
# PyTorch first decomposes the program to core ATen operators, except for layers that microc has operators for. Nodes that
# depend on constants only are evaluated by PyTorch. Quantised weights, which ``dequantize`` reads, remain integers. Data is
# channels first, as in PyTorch.

CONVERTERS: Mapping[str, Converter] = merge_converters(
    operators_elementwise.CONVERTERS.by_name,
    operators_movement.CONVERTERS.by_name,
    operators_signal.CONVERTERS.by_name,
    operators_layers.CONVERTERS.by_name,
)
"""Converters by the name of the ATen operator, without namespace and overload (``aten.add.Tensor`` is ``add``)."""

NOT_DECOMPOSED = (
    "linear",
    "conv1d",
    "conv2d",
    "conv3d",
    "layer_norm",
    "scaled_dot_product_attention",
    "avg_pool1d",
    "hardswish",
    "gelu",
    *operators_layers.RECURRENT_CELLS,
)
"""ATen operators that are not decomposed to core ATen, because microc converts them as a whole."""

_DEQUANTIZE = ("dequantize_per_tensor", "dequantize_per_channel", "dequantize_affine")
"""Operators that are converted, not evaluated, if their operands are known: their integers remain integers."""
_MAX_CONSTANT = 1 << 24
"""Maximum number of elements of a tensor that is computed at compile time."""
_EVALUATED = (
    "lift_fresh_copy",
    "lift_fresh",
    "detach",
    "detach_",
    "eye",
    "linspace",
    "zeros",
    "ones",
    "tril",
    "triu",
    "stack",
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "logspace",
    "tril_indices",
    "triu_indices",
)
"""Operators outside of core ATen that may be evaluated at compile time."""
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
"""Operators that allocate tensors without initialising them. Their results are replaced by zeros, to make compilation
reproducible."""
_UNDEFINED = ("resize_",)
"""Core ATen operators whose results are undefined. They are not evaluated at compile time."""
_UNEXPECTED_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that a converter raises for arguments of types or forms that it does not handle."""


def is_torch(data: bytes) -> bool:
    """Test whether ``data`` are the bytes of a zip archive with an exported PyTorch program."""
    return is_program_archive(list_archive_members(data))


def read_pt2(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Read the network in ``data``, the bytes of a ``.pt2`` file; return it as a graph.

    Raises the errors of :func:`read_program` and :func:`sanitise_archive`, and ToolError if PyTorch is not
    installed."""
    if input_shapes:
        raise UsageError(
            "input_shapes: an exported program has fixed shapes",
            where=file_name,
            hint="export it with example inputs of the shape wanted",
        )
    harmless_data = sanitise_archive(data, file_name)
    torch = _import_torch(file_name)
    if b"torch.ops.torchao." in harmless_data:
        _import_torchao(file_name)
    try:
        return read_program(torch.export.load(io.BytesIO(harmless_data)), file_name)
    except MicrocError:
        raise
    except Exception as error:  # whatever PyTorch meets in a program that contradicts itself
        raise ModelError(f"PyTorch cannot load the program: {error}", where=file_name) from error


def read_program(program: Any, file_name: str = "torch") -> Graph:
    """Convert a ``torch.export.ExportedProgram`` to a graph.

    Inputs and outputs have the program's order and PyTorch's names. Raises UnsupportedError, which lists all operators
    that cannot be converted, or if the program changes its buffers; ModelError if the shape of an input is not known.
    """
    return _ProgramTranslator(_import_torch(file_name), decompose_program(program, file_name), file_name).translate()


def decompose_program(program: Any, file_name: str = "torch") -> Any:
    """Decompose a program to core ATen operators, except for those in NOT_DECOMPOSED; return the new program.

    Values of the graph have the names of the nodes of the new program.
    """
    torch = _import_torch(file_name)
    table = torch.export.default_decompositions()
    for name in NOT_DECOMPOSED:
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    for operator in [each for each in table if each.name() == "torchao::dequantize_affine"]:
        table.pop(operator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about itself
        return program.run_decompositions(table)


def _import_torch(file_name: str) -> Any:
    """Import PyTorch and return the module; ToolError if PyTorch is not installed."""
    try:
        import torch
        import torch.ao.quantization.fx._decomposed  # the operators that quantised programs use
    except ImportError as error:
        raise ToolError(
            "PyTorch programs are read with PyTorch, which is not installed",
            where=file_name,
            hint='pip install "microc[torch]"',
        ) from error
    return torch


def _import_torchao(file_name: str) -> None:
    """Import torchao, which registers its operators with PyTorch; ToolError if torchao is not installed."""
    try:
        import torchao.quantization  # noqa: F401
    except ImportError as error:
        raise ToolError(
            "a program that torchao has quantised is read with torchao, which is not installed",
            where=file_name,
            hint="pip install torchao",
        ) from error


class _ProgramTranslator:
    """Translator of a program's nodes, in order, to one graph.

    ``results_by_node`` maps converted nodes to their results: the name of a value of the graph, a tensor or number
    known at compile time, or a list of such results. ``unconverted_nodes`` contains nodes that cannot be converted, and
    nodes that read their results. ``constant_bytes`` counts the bytes of tensors computed at compile time."""

    def __init__(self, torch: Any, program: Any, file: str) -> None:
        self.torch, self.program, self.file = torch, program, file
        self.builder = GraphBuilder(file)
        self.results_by_node: dict[Any, Any] = {}
        self.unconverted_nodes: set[Any] = set()
        self.constant_bytes = 0

    def translate(self) -> Graph:
        """Convert the program to a graph; UnsupportedError lists all nodes that cannot be converted."""
        signature = self.program.graph_signature
        changed_buffers = [spec.target for spec in signature.output_specs if spec.kind.name != "USER_OUTPUT"]
        if changed_buffers:
            raise UnsupportedError(
                f"forward() changes the module's buffer {changed_buffers[0]!r}, which is not supported",
                where=self.file,
                hint="export it in eval mode, with state as an input and an output",
            )
        specs = iter(signature.input_specs)
        outputs = self.convert_nodes(
            self.program.graph_module, lambda node: self.convert_placeholder(node, next(specs))
        )
        non_tensors = [node for node in outputs if node is not None and not hasattr(node, "name")]
        if non_tensors:
            raise UnsupportedError(
                f"forward() output: got {type(non_tensors[0]).__name__}, expected a tensor",
                where=self.file,
                hint="let forward() return tensors",
            )
        complex_outputs = [node.name for node in outputs if node is not None and node.meta["val"].is_complex()]
        if complex_outputs:
            raise UnsupportedError(
                f"forward() output {complex_outputs[0]}: got complex numbers, expected real ones",
                where=self.file,
                hint="let forward() return torch.view_as_real(...) or abs()",
            )
        outputs_by_name = {
            str(node.name): self.convert_to_value(self.results_by_node[node]) for node in outputs if node is not None
        }
        return self.builder.graph(self.file, outputs_by_name)

    def convert_nodes(self, module: Any, read_placeholder: Callable[[Any], Any]) -> Sequence[Any]:
        """Convert the nodes of a program or of a branch; return the nodes that it outputs. UnsupportedError lists all nodes
        that cannot be converted."""
        refusals: list[UnsupportedError] = []
        outputs: Sequence[Any] = ()
        for index, node in enumerate(module.graph.nodes):
            self.builder.at(index, node.name)
            try:
                if node.op == "placeholder":
                    self.results_by_node[node] = read_placeholder(node)
                elif node.op == "call_function":
                    self.results_by_node[node] = self.convert_call(node)
                elif node.op == "output":
                    outputs = node.args[0]
                elif node.op == "get_attr" and hasattr(getattr(module, node.target), "graph"):
                    self.results_by_node[node] = getattr(module, node.target)
                else:
                    self.refuse(
                        f"node kind {node.op!r} is not supported", "run program.run_decompositions() before saving it"
                    )
            except UnsupportedError as error:
                self.unconverted_nodes.add(node)
                refusals.append(error)
        if refusals:
            raise _combine_errors(self.file, refusals)
        return outputs

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UnsupportedError(what, where=self.builder.where, hint=hint)

    def convert_placeholder(self, node: Any, spec: Any) -> Any:
        """Convert a placeholder node: add an input of the graph and return its name, or return the program's parameter
        or buffer."""
        if spec.kind.name == "USER_INPUT":
            value = node.meta.get("val")
            if not hasattr(value, "shape"):
                self.refuse(
                    f"forward() input: got {type(value).__name__}, expected a tensor",
                    "pass it as a tensor or keep it in the module",
                )
            shape = tuple(extent if isinstance(extent, int) else -1 for extent in value.shape)
            if -1 in shape:
                raise ModelError(
                    "input shape: got unknown extents, expected fixed ones",
                    where=self.builder.where,
                    hint="export without dynamic shapes",
                )
            return self.builder.input(node.name, shape, self.read_dtype(value))
        tensor = self.program.state_dict.get(spec.target, self.program.constants.get(spec.target))
        if tensor is None:
            self.refuse(f"{spec.target!r} is not in the program", "save it with torch.export.save, which keeps weights")
        return tensor.detach()

    def read_dtype(self, tensor: Any) -> str:
        name = str(tensor.dtype).removeprefix("torch.")
        if not is_valid(name):
            self.refuse(
                f"tensor dtype {name} is not supported", "convert it to float32 or to integers of at most 64 bits"
            )
        return name

    def convert_to_numpy(self, tensor: Any) -> Array:
        """Convert a tensor to a numpy array."""
        name = self.read_dtype(tensor)
        data = tensor.detach().cpu().contiguous()
        if name == "bfloat16":  # a dtype that numpy has by ml_dtypes only: the same bits under its name
            return np.asarray(data.view(self.torch.int16).numpy().view(dtypes.to_numpy(name)))
        return np.asarray(data.numpy())

    def convert_to_value(self, node_result: Any) -> str:
        """Return a node's result as the name of a value of the graph. A tensor known at compile time is added as a
        constant."""
        if isinstance(node_result, str):
            return node_result
        if isinstance(node_result, self.torch.Tensor):
            return self.builder.new_constant("constant", self.convert_to_numpy(node_result))
        return self.refuse(f"got {type(node_result).__name__}, expected a tensor", "let forward() return tensors")

    def convert_call(self, node: Any) -> Any:
        """Convert a call node, or evaluate it if all its operands are known at compile time; return its result."""
        if any(operand in self.unconverted_nodes for operand in node.all_input_nodes):
            self.unconverted_nodes.add(node)
            return None
        args = _replace_nodes_by_results(node.args, self.results_by_node)
        kwargs = _replace_nodes_by_results(dict(node.kwargs), self.results_by_node)
        target = node.target
        if getattr(target, "__name__", "") == "getitem":
            return args[0][args[1]]
        if str(target) == "cond":
            return self.convert_cond(*args)
        schema = getattr(target, "_schema", None)
        name = str(target if schema is None else schema.name).split("::")[-1].split(".")[0]
        if name.startswith("_assert"):  # about shapes and dtypes, which are known
            return None
        if name not in _DEQUANTIZE and not _contains_graph_value([args, kwargs]):
            if name == "_to_copy" and self.is_widened_weight(args[0], node):
                # Quantised weights whose scale is applied to the result of the product, as by torchao's Int8WeightOnlyConfig.
                return self.builder.op(
                    "dequantize", self.convert_to_value(args[0]), scale=(1.0,), zero_point=(0,), axis=None
                )
            return self.evaluate_constant_call(node, name, args, kwargs)
        values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
        is_complex = any(getattr(getattr(value, "dtype", None), "is_complex", False) for value in values)
        converter = (operators_signal.COMPLEX_CONVERTERS.by_name if is_complex else CONVERTERS).get(name)
        if converter is None:
            numbers = " on complex numbers" if is_complex else ""
            self.refuse(
                f"the operator {target}{numbers} is unknown to microc", "use an operator that `microc operators` lists"
            )
        names = [argument.name for argument in schema.arguments] if schema is not None else []
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        context = OpContext(self.torch, self.builder, node, arguments, self.convert_to_numpy, name)
        try:
            return converter(context)
        except UnsupportedError:
            raise
        except ModelError as error:  # PyTorch has run the program: operands that our operators refuse are our limit
            self.refuse(f"{target}: {error.what}", error.hint)
        except _UNEXPECTED_ERRORS as error:
            self.refuse(
                f"{target}: the arguments are not supported ({type(error).__name__}: {error})", "use other operators"
            )

    def is_widened_weight(self, tensor: Any, conversion: Any) -> bool:
        """Test whether a node converts an int8 matrix to float32."""
        is_matrix = tensor.dtype == self.torch.int8 and tensor.dim() > 1
        return bool(is_matrix and conversion.meta["val"].dtype == self.torch.float32)

    def convert_cond(self, condition: Any, true_module: Any, false_module: Any, operands: Sequence[Any] = ()) -> Any:
        """Convert torch.cond to a ``branch`` whose graphs are the two functions; return its results.

        If the condition is known at compile time, the function that it selects is inlined."""
        if not isinstance(condition, str):
            module, arguments = true_module if bool(condition) else false_module, iter(operands)
            return [self.results_by_node[node] for node in self.convert_nodes(module, lambda _: next(arguments))]
        values = list(dict.fromkeys(operand for operand in operands if isinstance(operand, str)))
        graphs = {
            "then": self.translate_branch(true_module, "then", values, operands),
            "otherwise": self.translate_branch(false_module, "otherwise", values, operands),
        }
        return list(self.builder.emit_all("branch", (condition, *values), graphs))

    def translate_branch(self, module: Any, name: str, values: Sequence[str], operands: Sequence[Any]) -> Graph:
        """Translate a function of torch.cond to a graph, with ``values`` as inputs.

        ``operands``: arguments of the function, names among ``values`` or constants."""
        branch = _ProgramTranslator(self.torch, self.program, self.file)
        inputs = {
            value: branch.builder.input(value, self.builder.shape(value), self.builder.type(value).dtype)
            for value in values
        }
        arguments = iter(
            [inputs.get(operand, operand) if isinstance(operand, str) else operand for operand in operands]
        )
        outputs = branch.convert_nodes(module, lambda _: next(arguments))
        results = [branch.convert_to_value(branch.results_by_node[node]) for node in outputs]
        return branch.builder.graph(name, {f"result{k}": value for k, value in enumerate(results)})

    def evaluate_constant_call(self, node: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Evaluate a call node with PyTorch; return the result.

        Only deterministic operators are evaluated: core ATen, and those in _EVALUATED and _EMPTY. Refuse other
        operators, and results of too many elements or bytes."""
        fake_result, tags = node.meta.get("val"), getattr(node.target, "tags", ())
        is_converted = name in CONVERTERS or name in operators_signal.COMPLEX_CONVERTERS.by_name
        is_allowed = self.torch.Tag.core in tags or is_converted or name in _EVALUATED or name in _EMPTY
        if not is_allowed or name in _UNDEFINED or self.torch.Tag.nondeterministic_seeded in tags:
            self.refuse(
                f"{node.target}: this operator on constants is not supported",
                "compute the result before the export, and make it a buffer of the module",
            )
        for tensor in fake_result if isinstance(fake_result, (list, tuple)) else (fake_result,):
            if hasattr(tensor, "numel"):
                self.constant_bytes += tensor.numel() * tensor.element_size()
                if tensor.numel() > _MAX_CONSTANT or self.constant_bytes > MAX_STORED:
                    self.refuse(
                        f"computed constant: got {tensor.numel()} elements, expected at most {_MAX_CONSTANT}",
                        "compute it before the export, and make it a buffer of the module",
                    )
        with self.torch.no_grad():
            result = node.target(*args, **kwargs)
            return self.torch.zeros_like(result) if name in _EMPTY else result


def _replace_nodes_by_results(call_arguments: Any, results_by_node: Mapping[Any, Any]) -> Any:
    """Return call arguments, nested in lists and dictionaries, with nodes replaced by their results."""
    if isinstance(call_arguments, (list, tuple)):
        return [_replace_nodes_by_results(item, results_by_node) for item in call_arguments]
    if isinstance(call_arguments, dict):
        return {key: _replace_nodes_by_results(item, results_by_node) for key, item in call_arguments.items()}
    return results_by_node[call_arguments] if type(call_arguments).__name__ == "Node" else call_arguments


def _contains_graph_value(call_arguments: Any) -> bool:
    """Test whether nested call arguments contain the name of a value of the graph, which is a string."""
    if isinstance(call_arguments, (list, tuple)):
        return any(map(_contains_graph_value, call_arguments))
    if isinstance(call_arguments, dict):
        return any(map(_contains_graph_value, call_arguments.values()))
    return isinstance(call_arguments, str)


def _combine_errors(file: str, refusals: Sequence[UnsupportedError]) -> UnsupportedError:
    """Combine the errors of all nodes that cannot be converted into one; equal lines are listed once."""
    if len(refusals) == 1:
        return refusals[0]
    lines = list(dict.fromkeys(f"{error.where}: {error.what}" for error in refusals))
    return UnsupportedError(f"{len(refusals)} operators are not supported:\n  " + "\n  ".join(lines[:40]), where=file)


# ---- Export of a PyTorch module to a program, for the shapes of example inputs.

_LONGEST = 300
_PACKED_WEIGHTS = ("_packed_params", "_packed_weight_ih", "_all_weight_values")
"""Attributes of modules of eager quantisation whose weights are packed for FBGEMM or QNNPACK: layers, recurrent cells,
recurrent layers."""


def is_module(model: Any) -> bool:
    """Test whether an object is a PyTorch module, without importing PyTorch."""
    homes = {kind.__module__.split(".")[0] for kind in type(model).__mro__}
    return "torch" in homes and hasattr(model, "forward") and hasattr(model, "state_dict")


def warn_training_mode(module: Any) -> None:
    """Warn if a module is in training mode, because it is compiled in evaluation mode.

    The warning shows the line of the user's own code that called microc."""
    if any(part.training for part in module.modules()):
        warnings.warn(
            f"{type(module).__name__} is in training mode: it is compiled as after module.eval(), without "
            "dropout and with the "
            "statistics that batch normalisation has learned",
            stacklevel=_find_user_stack_level(),
        )


def export_module(module: Any, example_inputs: Any) -> Any:
    """Export a PyTorch module to an ``ExportedProgram``.

    ``example_inputs``: a tensor or array for each argument of ``forward`` in order, or a mapping of argument names to
    tensors or arrays. Only their shapes and dtypes matter. A module in training mode is exported in evaluation mode,
    then set back to training mode. Raises UsageError if there are no example inputs or one is no array,
    UnsupportedError if PyTorch cannot export the module.
    """
    where = type(module).__name__
    if not len(example_inputs):
        raise UsageError(
            "example_inputs: got none, expected a tensor or array for each argument of forward()",
            where=where,
            hint="give an example of each: microc.compile(module, example_inputs=(torch.zeros(1, 3, 32, 32),))",
        )
    try:
        import torch
    except ImportError as error:
        raise ToolError("PyTorch is not installed", where=where, hint='pip install "microc[torch]"') from error
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(
            "got a module of TorchScript, expected a torch.nn.Module",
            where=where,
            hint="give the module that it was scripted from",
        )
    for name, part in module.named_modules():
        if type(part).__module__.startswith("torch.ao.nn.") and any(hasattr(part, key) for key in _PACKED_WEIGHTS):
            raise UnsupportedError(
                f"{name or where}: got {type(part).__module__}.{type(part).__name__}, whose packed weights torch.export "
                "does not export; expected a float module",
                where=where,
                hint='give the module before quantize_dynamic to microc.quantize(..., dynamic_range=["all"])',
            )
    keywords = {}
    if isinstance(example_inputs, Mapping):
        keywords, positional = (
            {name: _convert_example_to_tensor(torch, example) for name, example in example_inputs.items()},
            (),
        )
    else:
        positional = tuple(_convert_example_to_tensor(torch, example) for example in example_inputs)
    modes = [(part, part.training) for part in module.modules()]
    try:
        module.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about itself
            return torch.export.export(module, positional, kwargs=keywords)
    except Exception as error:  # whatever the module's own code meets
        first = " ".join(str(error).split())[:_LONGEST]
        raise UnsupportedError(
            f"torch.export does not export the module: {type(error).__name__}: {first}",
            where=where,
            hint="check that the example inputs fit forward(); see https://docs.pytorch.org/docs/stable/export.html",
        ) from error
    finally:
        for part, training in modes:
            part.training = training


def _convert_example_to_tensor(torch: Any, example: Any) -> Any:
    """Convert an example input to a PyTorch tensor; UsageError if it is neither a tensor nor an array."""
    if isinstance(example, torch.Tensor):
        return example.detach()
    try:
        return torch.from_numpy(np.ascontiguousarray(example))
    except TypeError as error:
        raise UsageError(
            f"example_inputs: got {type(example).__name__}, expected a tensor or an array",
            hint="give a tensor or an array for each argument of forward()",
        ) from error


def _find_user_stack_level() -> int:
    """Return the stack level, for ``warnings.warn``, of the innermost caller outside of microc."""
    depth, frame = 2, sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "microc":
        depth, frame = depth + 1, frame.f_back
    return depth
