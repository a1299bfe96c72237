"""The frameworks: ONNX Runtime, TFLite, Keras, PyTorch, scikit-learn, XGBoost."""

from __future__ import annotations

import importlib
import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import __version__
from microc.base.dtypes import Array
from microc.errors import ModelError, ToolError, UsageError
from microc.frontend.budget import HDF5
from microc.frontend.tflite.reader import tensor_names
from microc.frontend.torch import reader as torch_export
from microc.frontend.torch.file import harmless
from microc.frontend.trees import boosters
from microc.frontend.trees.known_rows import answers, tied
from microc.graph.interp import run
from microc.graph.ir import Graph
from microc.ops import registry
from microc.run.reference.frameworks import Answer, RuntimeRefusal, flat, imported, version_of

# ---- A network with weights of 16 bits, as its operators mean it: by numpy, on the graph whose weights were rounded.
#
# No framework has this network: rounded are the weights that the graph passes leave, scales and normalisations in them.


class Rounded:
    """``graph``: after the passes. Every value of it is shown."""

    name, version = "the network of rounded weights", __version__

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.reset()

    def reset(self) -> None:
        self.state = dict(self.graph.state)

    def run(self, arrays: Sequence[Array]) -> Answer:
        given = dict(zip(self.graph.inputs, arrays, strict=True))
        try:
            values = run(self.graph, given, lambda n, a: registry.get(n.op).reference(n.attrs, a), self.state)
        except UsageError as error:
            raise RuntimeRefusal(error.what) from error
        self.state = {name: values[value] for name, value in self.graph.updates.items()}
        return Answer(tuple(values[name] for name in self.graph.outputs), values)


# ---- Fitted scikit-learn and LightGBM estimators, which are asked themselves.


class Estimator:
    """A fitted estimator, or LightGBM's booster: rows of features to a prediction, or to a label and probabilities."""

    def __init__(self, estimator: Any) -> None:
        homes = {kind.__module__.split(".")[0] for kind in type(estimator).__mro__}
        self.name = "lightgbm" if "lightgbm" in homes else "sklearn"
        self.version = version_of("lightgbm" if self.name == "lightgbm" else "scikit-learn")
        self._estimator = estimator

    def run(self, arrays: Sequence[Array]) -> Answer:
        (x,) = arrays
        estimator = self._estimator
        try:
            if hasattr(estimator, "model_to_string"):
                return self._boosted(np.asarray(estimator.predict(x)))
            outputs, undecided = answers(estimator, x)
            return Answer(outputs, undecided=undecided)
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error

    def _boosted(self, found: Array) -> Answer:
        """A booster gives no label; where its objective makes classes, the network gives one."""
        post = boosters.parse_lightgbm(self._estimator.model_to_string().encode(), self.name)[0].post
        if post not in ("sigmoid", "softmax"):
            return Answer((found,))
        shares = np.stack([1 - found, found], axis=1) if post == "sigmoid" else found
        return Answer((shares.argmax(axis=1), shares), undecided={0: tied(shares)})

    def reset(self) -> None:
        """Estimators have no state."""


def booster(text: bytes, file: str) -> Estimator:
    """The booster of LightGBM's text model."""
    package = imported("lightgbm", "LightGBM")
    try:
        return Estimator(package.Booster(model_str=text.decode("utf-8", "replace")))
    except package.basic.LightGBMError as error:
        raise ToolError(f"LightGBM does not load the model: {error}", where=file) from error


# ---- XGBoost's boosters and estimators, which are asked themselves.

XGBOOST_MODEL_EXTRA = "pip install microc[xgboost]"
_SHARES = ("binary:logistic", "multi:softprob", "multi:softmax")
"""Objectives of classes, for which the network gives a label, too."""


class Booster:
    """A booster, or a fitted estimator by its booster and the rounds that it counts."""

    name = "xgboost"

    def __init__(self, model: Any, file_of_estimator: bool = False) -> None:
        self._package = imported("xgboost", "XGBoost", XGBOOST_MODEL_EXTRA)
        self.version = version_of("xgboost")
        is_estimator = hasattr(model, "get_booster")
        self._booster = model.get_booster() if is_estimator else model
        best = self._booster.attr("best_iteration") if is_estimator or file_of_estimator else None
        self._rounds = (0, 0 if best is None else int(best) + 1)
        self._objective = _objective(self._booster)

    def run(self, arrays: Sequence[Array]) -> Answer:
        (x,) = arrays
        try:
            rows = self._package.DMatrix(x, feature_types=self._booster.feature_types)
            rows.feature_names = self._booster.feature_names
            margin = self._objective == "multi:softmax"
            found = self._booster.predict(rows, iteration_range=self._rounds, output_margin=margin)
        except (ValueError, self._package.core.XGBoostError) as error:
            raise RuntimeRefusal(str(error)) from error
        if self._objective not in _SHARES:
            return Answer((found,))
        shares = _softmax(found) if margin else found
        shares = np.stack([1 - shares, shares], axis=1) if shares.ndim == 1 else shares
        return Answer((shares.argmax(axis=1), shares), undecided={0: tied(shares)})

    def reset(self) -> None:
        """Trees have no state."""


def _objective(booster: Any) -> str:

    return str(json.loads(booster.save_config())["learner"]["objective"]["name"])


def _softmax(scores: Array) -> Array:
    powers: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def loaded(data: bytes, file: str) -> Booster:
    """The booster of a model file."""
    package = imported("xgboost", "XGBoost", XGBOOST_MODEL_EXTRA)
    try:
        booster = package.Booster()
        booster.load_model(bytearray(data))
    except package.core.XGBoostError as error:
        raise ToolError(f"XGBoost does not load the model: {error}", where=file) from error
    return Booster(booster, booster.attr("scikit_learn") is not None)


# ---- Keras models in Keras, loaded in its safe mode and only where nothing but Keras is named in them.

KERAS_MODEL_EXTRA = "pip install keras and a backend (torch, jax or tensorflow)"


class KerasModel:
    """A model. Its layers' results are shown under the layers' names where each layer is called once."""

    name = "keras"

    def __init__(self, model: Any, inside: bool = True) -> None:
        keras = imported("keras", "Keras", KERAS_MODEL_EXTRA)
        self.version = str(keras.__version__)
        self._model, self._inside = model, None
        if inside:
            self._show(keras)

    def _show(self, keras: Any) -> None:
        """The model that gives every layer's result, where it is a graph of layers."""
        model = self._model
        try:
            layers = [layer for layer in model.layers if len(layer._inbound_nodes) == 1]
            shown = {layer.name: layer.output for layer in layers if not isinstance(layer.output, (list, tuple, dict))}
            self._inside = keras.Model(model.inputs if len(model.inputs) > 1 else model.inputs[0], shown)
        except Exception:  # noqa: BLE001 - a model that is no graph of layers: only its outputs are compared
            self._inside = None

    def run(self, arrays: Sequence[Array]) -> Answer:
        given = list(arrays) if len(arrays) > 1 else arrays[0]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about one input that is given without a list around it
                outputs = tuple(map(_array, flat(self._model(given, training=False))))
                found: dict[str, Any] = {} if self._inside is None else self._inside(given, training=False)
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        return Answer(outputs, {name: _array(value) for name, value in found.items()})

    def reset(self) -> None:
        """Layers that keep state are refused when they are read."""


def load_keras_model(data: bytes, file: str) -> KerasModel:
    """The model of a ``.keras`` file. ToolError for HDF5, ModelError where its configuration names anything that is not
    Keras's own."""
    if data.startswith(HDF5):
        raise ToolError(
            "Keras loads .h5 files without its safe mode, so that they may run code",
            where=file,
            hint="load it yourself and give the object: microc.verify(keras.models.load_model(path))",
        )
    keras = imported("keras", "Keras", KERAS_MODEL_EXTRA)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        foreign = _foreign(json.loads(archive.read("config.json")))
    if foreign:
        raise ModelError(
            f"the model names {foreign[0]!r}, which is not Keras's own",
            where=file,
            hint="load it yourself and give the object: microc.verify(model)",
        )
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(data)
        try:
            return KerasModel(keras.saving.load_model(path, compile=False, safe_mode=True))
        except Exception as error:
            raise ToolError(f"Keras does not load the model: {error}", where=file) from error


def _foreign(config: Any) -> list[str]:
    """Modules and registered classes of others that a configuration names, which loading would look up."""
    if isinstance(config, list):
        return [name for item in config for name in _foreign(item)]
    if not isinstance(config, dict):
        return []
    named = [str(config[key]) for key in ("module", "registered_name") if config.get(key) is not None]
    own = ("keras", "builtins")
    found = [
        name for name in named if ">" in name or ("module" in config and not str(config["module"]).startswith(own))
    ]
    return found + [name for value in config.values() for name in _foreign(value)]


def _array(value: Any) -> Array:
    """A tensor of any backend."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


# ---- PyTorch programs in PyTorch, node by node of the program as the reader decomposes it.


class TorchProgram:
    """An ``ExportedProgram``. Its outputs are those of the program itself; decomposed, as it is read, it shows values inside."""

    name = "torch"

    def __init__(self, program: Any, file: str, inside: bool = True) -> None:
        self._torch = imported("torch", "PyTorch", "pip install microc[torch]")
        self.version = str(self._torch.__version__)
        try:
            self._module = program.module()
            self._inside = torch_export.decomposed(program, file).module() if inside else None
        except Exception as error:
            raise ToolError(f"PyTorch does not run the program: {error}", where=file) from error

    def run(self, arrays: Sequence[Array]) -> Answer:
        torch = self._torch
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        seen: dict[str, Any] = {}
        try:
            with torch.no_grad():
                found = self._module(*tensors)
                if self._inside is not None:
                    _recorder(torch, self._inside, seen).run(*tensors)
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        outputs = tuple(_torch_program_array(torch, value) for value in flat(found) if value is not None)
        return Answer(outputs, {name: _torch_program_array(torch, value) for name, value in seen.items()})

    def reset(self) -> None:
        """Programs that change their buffers are refused when they are read."""


def load_torch_program(data: bytes, file: str) -> TorchProgram:
    """The program of a ``.pt2`` file, from the harmless archive that the reader makes of it: nothing is unpickled."""
    torch = imported("torch", "PyTorch", "pip install microc[torch]")
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # the operators that quantised programs use
    checked = harmless(data, file)
    try:
        program = torch.export.load(io.BytesIO(checked))
    except Exception as error:
        raise ToolError(f"PyTorch does not load the program: {error}", where=file) from error
    return TorchProgram(program, file)


def _recorder(torch: Any, module: Any, seen: dict[str, Any]) -> Any:
    """PyTorch's interpreter of graphs, which remembers the tensor of every node."""

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            value = super().run_node(node)
            if isinstance(value, torch.Tensor):
                seen[node.name] = value
            return value

    return Recorder(module)


def _torch_program_array(torch: Any, value: Any) -> Array:
    """A tensor as an array; bfloat16, which numpy lacks, by way of float32, which holds it."""
    tensor = torch.as_tensor(value).detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.contiguous().numpy())


# ---- ONNX models in ONNX Runtime, operator by operator as the file says: no operators are fused, every value is an
# output.


class OnnxRuntime:
    """A model's bytes in a session. Values of operators are shown unless the runtime knows no type for them. ``state``: inputs
    that are zeros at first, then what an output was at the run before; neither is one of the network's."""

    name = "onnxruntime"

    def __init__(self, data: bytes, file: str, state: Mapping[str, str] = MappingProxyType({})) -> None:
        runtime = imported("onnxruntime", "onnxruntime")
        self.version = version_of("onnxruntime")
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.x64quantprecision", "1")  # products of bytes that do not saturate

        def opened(model: bytes) -> object:
            return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

        try:
            plain = opened(data)
        except Exception as error:
            raise ToolError(f"onnxruntime does not run the model: {error}", where=file) from error
        self._session = plain
        self._feedback = state
        self._held: dict[str, Array] = {}
        names = [output.name for output in plain.get_outputs()]  # type: ignore[attr-defined]
        self._outputs = [name for name in names if name not in state.values()]
        try:
            self._session = opened(_with_all_values(data))
        except Exception:  # noqa: BLE001 - some value cannot be an output: the comparison goes on without layers
            self._session = plain

    def run(self, arrays: Sequence[Array]) -> Answer:
        session = self._session
        inputs = session.get_inputs()  # type: ignore[attr-defined]
        names = [given.name for given in inputs if given.name not in self._feedback]
        if len(names) != len(arrays):
            raise UsageError(f"the model takes {len(names)} inputs, the compiled network {len(arrays)}")
        try:
            held = self._held or {x.name: _zeros(x) for x in inputs if x.name in self._feedback}
            found = session.run(None, {**dict(zip(names, arrays, strict=True)), **held})  # type: ignore[attr-defined]
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        known = [output.name for output in session.get_outputs()]  # type: ignore[attr-defined]
        tensors = {name: value for name, value in zip(known, found, strict=True) if isinstance(value, np.ndarray)}
        missing = [name for name in self._outputs if name not in tensors]
        if missing:
            raise RuntimeRefusal(f"output {missing[0]!r} is no tensor")
        self._held = {name: tensors[output] for name, output in self._feedback.items()}
        return Answer(tuple(tensors[name] for name in self._outputs), tensors)

    def reset(self) -> None:
        """A session has no state but what is fed back."""
        self._held = {}


def _zeros(given: Any) -> Array:
    """What a state is at first; of an input of open size (TypeError) nobody knows."""
    element = given.type.removeprefix("tensor(").removesuffix(")")
    return np.zeros(given.shape, {"float": "float32", "double": "float64", "float16": "float16"}.get(element, element))


def _with_all_values(data: bytes) -> bytes:
    """The model with every operator's results among the outputs."""
    onnx = imported("onnx", "onnx")
    model = onnx.load_from_string(data)
    known = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    found: bytes = model.SerializeToString()
    return found


# ---- TFLite models in TFLite Micro's interpreter, or in LiteRT; both keep every tensor.

_ARENA = (16 << 20, 512 << 20)
"""Bytes of TFLite Micro's arena to try in turn: all tensors are kept."""


class Micro:
    """TFLite Micro's interpreter, as its Python package has it."""

    name = "tflm"

    def __init__(self, data: bytes, file: str) -> None:
        runtime = imported("tflite_micro", "tflite-micro").runtime
        self.version = version_of("tflite-micro")
        self._names = tensor_names(data)
        self._interpreter: Any = None
        for size in _ARENA:
            try:
                self._interpreter = runtime.Interpreter.from_bytes(
                    data, arena_size=size, intrepreter_config=runtime.InterpreterConfig.kPreserveAllTensors
                )
                break
            except Exception as error:
                if size == _ARENA[-1]:
                    raise ToolError(
                        f"TFLite Micro does not run the model: {error}", where=file, hint="try --against litert"
                    ) from error
        self._count = _outputs(data)

    def run(self, arrays: Sequence[Array]) -> Answer:
        try:
            for index, array in enumerate(arrays):
                self._interpreter.set_input(array, index)
            self._interpreter.invoke()
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        outputs = tuple(np.asarray(self._interpreter.get_output(k)) for k in range(self._count))
        tensors = {}
        for index, name in self._names.items():
            try:
                tensors[name] = np.asarray(self._interpreter.GetTensor(index, 0)["tensor_data"])
            except Exception:  # noqa: BLE001 - a tensor that the interpreter does not show
                continue
        return Answer(outputs, tensors)

    def reset(self) -> None:
        self._interpreter.reset()


_KERNELS: Mapping[str, str] = {
    "BUILTIN_REF": "reference kernels",
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES": "default kernels",
    "BUILTIN": "default kernels and delegates",
}
"""LiteRT's sets of kernels, those that round as TFLite Micro's first; XNNPACK, a delegate, rounds in ways of its own."""


class LiteRT:
    """LiteRT's interpreter with the first set of kernels that has all operators of a model: no reference kernel computes ELU.

    ``own``: its default kernels come first where floats become int16, which these round unlike the reference kernels.
    """

    name = "litert"

    def __init__(self, data: bytes, file: str, *, own: bool = False) -> None:
        module = imported("ai_edge_litert.interpreter", "ai-edge-litert")
        self._interpreter: Any = None
        refusals = []
        for kernels in sorted(_KERNELS, key=lambda name: name == "BUILTIN_REF") if own else _KERNELS:
            try:
                interpreter = module.Interpreter(
                    model_content=data,
                    num_threads=1,
                    experimental_op_resolver_type=getattr(module.OpResolverType, kernels),
                    experimental_preserve_all_tensors=True,
                )
                interpreter.allocate_tensors()
            except Exception as error:  # noqa: BLE001 - of whatever class LiteRT raises
                refusals.append(error)
                continue
            self._interpreter, self.kernels = interpreter, _KERNELS[kernels]
            break
        if self._interpreter is None:
            first = refusals[0]
            raise ToolError(f"LiteRT does not run the model: {first}", where=file, hint="try --against tflm") from first
        self.version = version_of("ai-edge-litert")
        if self.kernels != _KERNELS["BUILTIN_REF"]:
            self.version += f", {self.kernels}"
        self._names = tensor_names(data)

    def run(self, arrays: Sequence[Array]) -> Answer:
        interpreter = self._interpreter
        try:
            details = interpreter.get_input_details()
            for known, array in zip(details, arrays, strict=True):
                if tuple(known["shape"]) != array.shape:
                    interpreter.resize_tensor_input(known["index"], array.shape)
                    interpreter.allocate_tensors()
            for known, array in zip(details, arrays, strict=True):
                interpreter.set_tensor(known["index"], array)
            interpreter.invoke()
        except Exception as error:
            raise RuntimeRefusal(str(error)) from error
        outputs = tuple(interpreter.get_tensor(known["index"]) for known in interpreter.get_output_details())
        tensors = {}
        for index, name in self._names.items():
            try:
                tensors[name] = interpreter.get_tensor(index)
            except ValueError:  # a tensor without memory of its own
                continue
        return Answer(outputs, tensors)

    def reset(self) -> None:
        self._interpreter.reset_all_variables()


def _outputs(data: bytes) -> int:
    """How many outputs the first subgraph has, which TFLite Micro does not say."""
    import tflite

    graph = tflite.Model.GetRootAs(data, 0).Subgraphs(0)
    return 0 if graph is None else int(graph.OutputsLength())


def quantises_to_int16(data: bytes) -> bool:
    """Test whether some operator of the first subgraph makes int16 of floats."""
    import tflite

    parts = tflite.Model.GetRootAs(data, 0)
    graph = parts.Subgraphs(0)
    if graph is None:
        return False
    for k in range(graph.OperatorsLength()):
        operator = graph.Operators(k)
        if operator is None or operator.InputsLength() != 1 or operator.OutputsLength() != 1:
            continue
        source, result = graph.Tensors(operator.Inputs(0)), graph.Tensors(operator.Outputs(0))
        if source is None or result is None:
            continue
        if (source.Type(), result.Type()) == (tflite.TensorType.FLOAT32, tflite.TensorType.INT16):
            return True
    return False
