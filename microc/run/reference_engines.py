# SPDX-License-Identifier: Apache-2.0
"""Engines of frameworks: ONNX Runtime, TFLite Micro, LiteRT, Keras, PyTorch, scikit-learn and boosters of trees."""

from __future__ import annotations

import importlib
import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from microc.base.dtypes import Array
from microc.compiler.options import Options
from microc.errors import ModelError, ToolError, UsageError
from microc.frontend.model_limits import HDF5_MAGIC
from microc.frontend.onnx.reader import read_bound_inputs
from microc.frontend.tflite.reader import tensor_names
from microc.frontend.torch import reader as torch_export
from microc.frontend.torch.file import sanitise_archive
from microc.frontend.trees import boosters
from microc.frontend.trees.catboost_json import parse_catboost
from microc.frontend.trees.known_rows import find_tied_rows, predict_outputs_and_ties
from microc.run.engine import Engine, InferenceResult, InputsRejected

EXTRA = 'pip install "microc[reference]"'
"""Command that installs the frameworks, for hints."""


def import_framework(module: str, display_name: str, install_command: str = EXTRA) -> Any:
    """Import and return a module of a framework; raise ToolError if it is not installed.

    ``display_name``: the framework's name in the error; ``install_command``: the error's hint."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ToolError(f"the comparison needs {display_name}, which is not installed", hint=install_command) from error


def package_version(distribution: str) -> str:
    """Return the version of an installed package; empty if it has no metadata."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def flatten_results(results: Any) -> list[Any]:
    """Flatten a framework's results, nested in tuples, lists and dictionaries, to a list of tensors."""
    if isinstance(results, dict):
        return [x for part in results.values() for x in flatten_results(part)]
    if isinstance(results, (tuple, list)):
        return [x for part in results for x in flatten_results(part)]
    return [results]


class BoundInputs:
    """An engine with inputs that the compiled network has as constants.

    ``bound_inputs``: values of these inputs, by their positions among all inputs of ``engine``."""

    def __init__(self, engine: Engine, bound_inputs: Mapping[int, Array]) -> None:
        self.name, self.version = engine.name, engine.version
        self._engine, self._bound_inputs = engine, bound_inputs

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        free = iter(arrays)
        count = len(arrays) + len(self._bound_inputs)
        return self._engine.infer(
            [self._bound_inputs[k] if k in self._bound_inputs else next(free) for k in range(count)], taps=taps
        )

    def reset(self) -> None:
        """Reset the state of the engine."""
        self._engine.reset()


class StatelessEngine:
    """Base class of engines of Python objects. Their readers refuse models that keep state."""

    def __init__(self, model: Any) -> None:
        """Wrap a model."""

    @classmethod
    def from_object(cls, model: Any, class_name: str, options: Options) -> Self:
        """Wrap a model in memory. ``class_name``: name of its class, for errors."""
        return cls(model)

    def reset(self) -> None:
        """Do nothing, because there is no state."""


# ---- Fitted scikit-learn and LightGBM estimators, run by their own predict methods.


class Estimator(StatelessEngine):
    """A fitted scikit-learn or LightGBM estimator, or a LightGBM booster. It maps rows of features to a
    prediction, or to a label and probabilities."""

    def __init__(self, estimator: Any) -> None:
        homes = {kind.__module__.split(".")[0] for kind in type(estimator).__mro__}
        self.name = "lightgbm" if "lightgbm" in homes else "sklearn"
        self.version = package_version("lightgbm" if self.name == "lightgbm" else "scikit-learn")
        self._estimator = estimator

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        (x,) = arrays
        estimator = self._estimator
        try:
            if hasattr(estimator, "model_to_string"):
                return self._convert_booster_scores(np.asarray(estimator.predict(x)))
            outputs, undecided = predict_outputs_and_ties(estimator, x)
            return InferenceResult(outputs, undecided=undecided)
        except Exception as error:
            raise InputsRejected(str(error)) from error

    def _convert_booster_scores(self, scores: Array) -> InferenceResult:
        """Return the answer of a LightGBM booster from its scores, with the label added if the network computes one;
        the booster itself does not."""
        post = boosters.parse_lightgbm(self._estimator.model_to_string().encode(), self.name)[0].post_transform
        if post not in ("sigmoid", "softmax"):
            return InferenceResult((scores,))
        probabilities = np.stack([1 - scores, scores], axis=1) if post == "sigmoid" else scores
        return InferenceResult(
            (probabilities.argmax(axis=1), probabilities), undecided={0: find_tied_rows(probabilities)}
        )

    @classmethod
    def from_file(cls, text: bytes, file_name: str, options: Options) -> Self:
        """Load the booster of a LightGBM text model; raise ToolError if LightGBM is missing or rejects it."""
        package = import_framework("lightgbm", "LightGBM")
        try:
            return cls(package.Booster(model_str=text.decode("utf-8", "replace")))
        except package.basic.LightGBMError as error:
            raise ToolError(f"LightGBM does not load the model: {error}", where=file_name) from error


# ---- XGBoost's boosters and estimators, run by XGBoost.

XGBOOST_MODEL_EXTRA = 'pip install "microc[xgboost]"'
_CLASS_OBJECTIVES = ("binary:logistic", "binary:hinge", "multi:softprob", "multi:softmax")
"""Objectives of classifiers, for which the network returns a label, too."""


class XgboostBooster(StatelessEngine):
    """An XGBoost booster: a given one, or the booster of a fitted estimator with the number of
    boosting rounds that the estimator uses."""

    name = "xgboost"

    def __init__(self, model: Any, is_estimator_file: bool = False) -> None:
        self._package = import_framework("xgboost", "XGBoost", XGBOOST_MODEL_EXTRA)
        self.version = package_version("xgboost")
        is_estimator = hasattr(model, "get_booster")
        self._booster = model.get_booster() if is_estimator else model
        best = self._booster.attr("best_iteration") if is_estimator or is_estimator_file else None
        missing = getattr(model, "missing", None)
        self._missing = np.nan if missing is None else missing
        self._rounds = (0, 0 if best is None else int(best) + 1)
        self._booster_objective = _booster_objective(self._booster)

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        (x,) = arrays
        try:
            rows = self._package.DMatrix(x, missing=self._missing, feature_types=self._booster.feature_types)
            rows.feature_names = self._booster.feature_names
            margin = self._booster_objective == "multi:softmax"
            scores = self._booster.predict(rows, iteration_range=self._rounds, output_margin=margin)
        except (ValueError, self._package.core.XGBoostError) as error:
            raise InputsRejected(str(error)) from error
        if self._booster_objective not in _CLASS_OBJECTIVES:
            return InferenceResult((scores,))
        probabilities = _softmax_rows(scores) if margin else scores
        probabilities = (
            np.stack([1 - probabilities, probabilities], axis=1) if probabilities.ndim == 1 else probabilities
        )
        return InferenceResult(
            (probabilities.argmax(axis=1), probabilities), undecided={0: find_tied_rows(probabilities)}
        )

    @classmethod
    def from_file(cls, data: bytes, file_name: str, options: Options) -> Self:
        """Load the booster of an XGBoost model file; raise ToolError if XGBoost is missing or rejects it."""
        package = import_framework("xgboost", "XGBoost", XGBOOST_MODEL_EXTRA)
        try:
            booster = package.Booster()
            booster.load_model(bytearray(data))
        except package.core.XGBoostError as error:
            raise ToolError(f"XGBoost does not load the model: {error}", where=file_name) from error
        return cls(booster, booster.attr("scikit_learn") is not None)


def _booster_objective(booster: Any) -> str:
    """Return the name of an XGBoost booster's objective."""
    return str(json.loads(booster.save_config())["learner"]["objective"]["name"])


def _softmax_rows(scores: Array) -> Array:
    """Compute the softmax of each row of scores."""
    powers: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


# ---- CatBoost's models, run by CatBoost.


class CatBoostModel(StatelessEngine):
    """A model of CatBoost. A classifier returns labels and probabilities, another model its prediction."""

    name = "catboost"

    def __init__(self, model: Any) -> None:
        self.version = package_version("catboost")
        self._model = model

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        (x,) = arrays
        try:
            if not hasattr(self._model, "predict_proba"):
                return InferenceResult((np.asarray(self._model.predict(x)),))
            probabilities = np.asarray(self._model.predict_proba(x))
        except Exception as error:
            raise InputsRejected(str(error)) from error
        classes, best = np.asarray(self._model.classes_), probabilities.argmax(axis=1)
        labels = classes[best] if classes.dtype.kind in "iu" else best
        return InferenceResult((labels, probabilities), undecided={0: find_tied_rows(probabilities)})

    @classmethod
    def from_file(cls, data: bytes, file_name: str, options: Options) -> Self:
        """Load the model of CatBoost's JSON export; raise ToolError if CatBoost is missing or rejects it."""
        package = import_framework("catboost", "CatBoost", "pip install catboost")
        classifies = parse_catboost(data, file_name)[0].classes is not None
        model = package.CatBoostClassifier() if classifies else package.CatBoostRegressor()
        with tempfile.TemporaryDirectory(prefix="microc-") as folder:
            path = Path(folder) / "model.json"
            path.write_bytes(data)
            try:
                model.load_model(str(path), format="json")
            except Exception as error:
                raise ToolError(f"CatBoost does not load the model: {error}", where=file_name) from error
        return cls(model)


# ---- Keras models in Keras. Files are loaded in safe mode, and only if they name nothing but Keras's own classes.

KERAS_MODEL_EXTRA = "pip install keras and a backend (torch, jax or tensorflow)"


class KerasModel(StatelessEngine):
    """A Keras model. Its taps are the results of those layers that are called once, by the layers' names."""

    name = "keras"

    def __init__(self, model: Any) -> None:
        self._keras = import_framework("keras", "Keras", KERAS_MODEL_EXTRA)
        self.version = str(self._keras.__version__)
        self._model = model

    @cached_property
    def _layers_model(self) -> Any:
        """Model that returns every layer's result; None unless the model is a graph of layers."""
        model = self._model
        try:
            layers = [layer for layer in model.layers if len(layer._inbound_nodes) == 1]
            shown = {layer.name: layer.output for layer in layers if not isinstance(layer.output, (list, tuple, dict))}
            return self._keras.Model(model.inputs if len(model.inputs) > 1 else model.inputs[0], shown)
        except Exception:  # noqa: BLE001 - not a graph of layers: only the outputs are compared
            return None

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        inputs = list(arrays) if len(arrays) > 1 else arrays[0]
        layers_model = self._layers_model if taps else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras warns about a single input without a list around it
                outputs = tuple(map(_backend_tensor_to_numpy, flatten_results(self._model(inputs, training=False))))
                layer_values: dict[str, Any] = {} if layers_model is None else layers_model(inputs, training=False)
        except Exception as error:
            raise InputsRejected(str(error)) from error
        return InferenceResult(outputs, {name: _backend_tensor_to_numpy(value) for name, value in layer_values.items()})

    @classmethod
    def from_file(cls, data: bytes, file_name: str, options: Options) -> Self:
        """Load a ``.keras`` file. Raises ToolError for HDF5, ModelError if its configuration names anything but Keras's own
        classes."""
        if data.startswith(HDF5_MAGIC):
            raise ToolError(
                "Keras loads .h5 files without its safe mode, so that they may run code",
                where=file_name,
                hint="load it yourself and give the object: microc.verify(keras.models.load_model(path))",
            )
        keras = import_framework("keras", "Keras", KERAS_MODEL_EXTRA)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            foreign = _list_foreign_classes(json.loads(archive.read("config.json")))
        if foreign:
            raise ModelError(
                f"the model names {foreign[0]!r}, which is not Keras's own",
                where=file_name,
                hint="load it yourself and give the object: microc.verify(model)",
            )
        with tempfile.TemporaryDirectory(prefix="microc-") as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(data)
            try:
                return cls(keras.saving.load_model(path, compile=False, safe_mode=True))
            except Exception as error:
                raise ToolError(f"Keras does not load the model: {error}", where=file_name) from error


def _list_foreign_classes(config: Any) -> list[str]:
    """List the modules and registered classes in a model's configuration that do not belong to Keras.

    Loading the model would import them."""
    if isinstance(config, list):
        return [name for item in config for name in _list_foreign_classes(item)]
    if not isinstance(config, dict):
        return []
    names = [str(config[key]) for key in ("module", "registered_name") if config.get(key) is not None]
    own = ("keras", "builtins")
    foreign = [
        name for name in names if ">" in name or ("module" in config and not str(config["module"]).startswith(own))
    ]
    return foreign + [name for value in config.values() for name in _list_foreign_classes(value)]


def _backend_tensor_to_numpy(tensor: Any) -> Array:
    """Convert a tensor of any Keras backend to a numpy array."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
    return np.asarray(tensor)


# ---- PyTorch programs in PyTorch, node by node of the program after the reader's decomposition.


class TorchProgram(StatelessEngine):
    """An ``ExportedProgram`` of PyTorch. The program itself computes the outputs. Taps come from the decomposed program,
    the same that microc's reader converts."""

    name = "torch"

    def __init__(self, program: Any, file_name: str) -> None:
        self._torch = import_framework("torch", "PyTorch", 'pip install "microc[torch]"')
        self.version = str(self._torch.__version__)
        self._program, self._file_name = program, file_name
        try:
            self._module = program.module()
        except Exception as error:
            raise ToolError(f"PyTorch does not run the program: {error}", where=file_name) from error

    @cached_property
    def _decomposed_module(self) -> Any:
        """Module of the decomposed program; ToolError if PyTorch cannot decompose it."""
        try:
            return torch_export.decompose_program(self._program, self._file_name).module()
        except Exception as error:
            raise ToolError(f"PyTorch does not run the program: {error}", where=self._file_name) from error

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        torch = self._torch
        tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        node_values: dict[str, Any] = {}
        decomposed = self._decomposed_module if taps else None
        try:
            with torch.no_grad():
                outputs_tree = self._module(*tensors)
                if decomposed is not None:
                    _create_recording_interpreter(torch, decomposed, node_values).run(*tensors)
        except Exception as error:
            raise InputsRejected(str(error)) from error
        outputs = tuple(
            _torch_tensor_to_numpy(torch, value) for value in flatten_results(outputs_tree) if value is not None
        )
        return InferenceResult(
            outputs, {name: _torch_tensor_to_numpy(torch, value) for name, value in node_values.items()}
        )

    @classmethod
    def from_file(cls, data: bytes, file_name: str, options: Options) -> Self:
        """Load a ``.pt2`` file of PyTorch from an archive that the reader has sanitised, so that nothing is unpickled.
        Raises ToolError if PyTorch is missing or rejects it."""
        torch = import_framework("torch", "PyTorch", 'pip install "microc[torch]"')
        importlib.import_module("torch.ao.quantization.fx._decomposed")  # the operators that quantised programs use
        checked = sanitise_archive(data, file_name)
        try:
            program = torch.export.load(io.BytesIO(checked))
        except Exception as error:
            raise ToolError(f"PyTorch does not load the program: {error}", where=file_name) from error
        return cls(program, file_name)

    @classmethod
    def from_object(cls, model: Any, class_name: str, options: Options) -> Self:
        """Wrap a program, or export a module for the example inputs of the options."""
        is_module = torch_export.is_module(model)
        return cls(torch_export.export_module(model, options.example_inputs) if is_module else model, class_name)


def _create_recording_interpreter(torch: Any, module: Any, recorded_tensors: dict[str, Any]) -> Any:
    """Create an interpreter of a PyTorch graph that records the tensor of every node in ``recorded_tensors``."""

    class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
        def run_node(self, node: Any) -> Any:
            value = super().run_node(node)
            if isinstance(value, torch.Tensor):
                recorded_tensors[node.name] = value
            return value

    return Recorder(module)


def _torch_tensor_to_numpy(torch: Any, value: Any) -> Array:
    """Convert a PyTorch tensor to a numpy array. numpy lacks bfloat16, so that is converted to float32, which
    represents it exactly."""
    tensor = torch.as_tensor(value).detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.contiguous().numpy())


# ---- ONNX models in ONNX Runtime without optimisation: no operators are fused, and every value is an output.


class OnnxRuntime:
    """An ONNX model in a session of ONNX Runtime. It also returns the results of operators, except those
    whose types the runtime does not know.

    ``state``: maps inputs of the model to outputs that are fed back to them. Such an input is zero in the first run;
    then it is the output's value of the previous run. The compiled network has neither this input nor this output.
    ``bound_inputs``: values of inputs that the compiled network has as constants, by name."""

    name = "onnxruntime"

    def __init__(
        self,
        data: bytes,
        file_name: str,
        state: Mapping[str, str] = MappingProxyType({}),
        bound_inputs: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        runtime = import_framework("onnxruntime", "onnxruntime")
        self.version = package_version("onnxruntime")
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # Without it, int8 products may saturate in 16 bits on x86 processors without VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")

        def open_session(model: bytes) -> object:
            return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

        try:
            plain = open_session(data)
        except Exception as error:
            raise ToolError(f"onnxruntime does not run the model: {error}", where=file_name) from error
        self._session = plain
        self._feedback, self._bound_inputs = state, bound_inputs
        self._state: dict[str, Array] = {}
        names = [output.name for output in plain.get_outputs()]  # type: ignore[attr-defined]
        self._outputs = [name for name in names if name not in state.values()]
        try:
            self._session = open_session(_add_all_values_to_outputs(data))
        except Exception:  # noqa: BLE001 - some value cannot be an output: compare without layers
            self._session = plain

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        session = self._session
        inputs = session.get_inputs()  # type: ignore[attr-defined]
        names = [x.name for x in inputs if x.name not in self._feedback and x.name not in self._bound_inputs]
        if len(names) != len(arrays):
            raise UsageError(
                f"inputs: got {len(arrays)} of the compiled network, expected {len(names)} as in the model"
            )
        try:
            state = self._state or {x.name: _zero_state_for_input(x) for x in inputs if x.name in self._feedback}
            feeds = {**dict(zip(names, arrays, strict=True)), **state, **self._bound_inputs}
            values = session.run(None, feeds)  # type: ignore[attr-defined]
        except Exception as error:
            raise InputsRejected(str(error)) from error
        output_names = [output.name for output in session.get_outputs()]  # type: ignore[attr-defined]
        tensors = {
            name: value for name, value in zip(output_names, values, strict=True) if isinstance(value, np.ndarray)
        }
        missing = [name for name in self._outputs if name not in tensors]
        if missing:
            raise InputsRejected(f"output {missing[0]!r} is no tensor")
        self._state = {name: tensors[output] for name, output in self._feedback.items()}
        return InferenceResult(tuple(tensors[name] for name in self._outputs), tensors)

    def reset(self) -> None:
        """Reset the state that is fed back."""
        self._state = {}

    @classmethod
    def from_file(cls, data: bytes, file_name: str, options: Options) -> Self:
        """Open a session with the state and the bound inputs of the options."""
        bound = read_bound_inputs(data, file_name, options.input_shapes, options.input_values)
        return cls(data, file_name, options.state, bound)


def _zero_state_for_input(info: Any) -> Array:
    """Return zeros in the shape and dtype of an input of the session; raise TypeError if its size is variable."""
    element = info.type.removeprefix("tensor(").removesuffix(")")
    return np.zeros(info.shape, {"float": "float32", "double": "float64", "float16": "float16"}.get(element, element))


def _add_all_values_to_outputs(data: bytes) -> bytes:
    """Return a serialised ONNX model with every operator's results among its outputs."""
    onnx = import_framework("onnx", "onnx")
    model = onnx.load_from_string(data)
    output_names = {output.name for output in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in output_names:
                output_names.add(name)
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    serialised: bytes = model.SerializeToString()
    return serialised


# ---- TFLite models in TFLite Micro's interpreter or LiteRT, both configured to preserve all tensors.

_ARENA = (16 << 20, 512 << 20)
"""Sizes of TFLite Micro's arena in bytes, tried in this order. Preserving all tensors takes more than usual."""


class TfliteMicro:
    """A TFLite model in TFLite Micro's interpreter, from its Python package."""

    name = "tflm"

    def __init__(self, data: bytes, file_name: str) -> None:
        runtime = import_framework("tflite_micro", "tflite-micro").runtime
        self.version = package_version("tflite-micro")
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
                        f"TFLite Micro does not run the model: {error}", where=file_name, hint="try --against litert"
                    ) from error
        self._count = _count_tflite_outputs(data)

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        try:
            for index, array in enumerate(arrays):
                self._interpreter.set_input(array, index)
            self._interpreter.invoke()
        except Exception as error:
            raise InputsRejected(str(error)) from error
        outputs = tuple(np.asarray(self._interpreter.get_output(k)) for k in range(self._count))
        tensors = {}
        for index, name in self._names.items():
            try:
                tensors[name] = np.asarray(self._interpreter.GetTensor(index, 0)["tensor_data"])
            except Exception:  # noqa: BLE001 - a tensor that the interpreter does not show
                continue
        return InferenceResult(outputs, tensors)

    def reset(self) -> None:
        self._interpreter.reset()

    @classmethod
    def from_file(cls, data: bytes, file_name: str, options: Options) -> Self:
        return cls(data, file_name)


_KERNELS: Mapping[str, str] = {
    "BUILTIN_REF": "reference kernels",
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES": "default kernels",
    "BUILTIN": "default kernels and delegates",
}
"""LiteRT's op resolvers, in the order of trial: reference kernels round as TFLite Micro does; the XNNPACK delegate
rounds differently."""


class LiteRT:
    """A TFLite model in LiteRT's interpreter.

    It uses the first of LiteRT's op resolvers (:data:`_KERNELS`) that supports all operators of the model: reference
    kernels lack ELU, for example. ``default_kernels_first``: try default kernels before reference kernels. They
    quantise floats to int16 in another way."""

    name = "litert"

    def __init__(self, data: bytes, file_name: str, *, default_kernels_first: bool = False) -> None:
        module = import_framework("ai_edge_litert.interpreter", "ai-edge-litert")
        self._interpreter: Any = None
        refusals = []
        reference_last = sorted(_KERNELS, key=lambda name: name == "BUILTIN_REF")
        for kernels in reference_last if default_kernels_first else _KERNELS:
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
            raise ToolError(
                f"LiteRT does not run the model: {first}", where=file_name, hint="try --against tflm"
            ) from first
        self.version = package_version("ai-edge-litert")
        if self.kernels != _KERNELS["BUILTIN_REF"]:
            self.version += f", {self.kernels}"
        self._names = tensor_names(data)

    def infer(self, arrays: Sequence[Array], *, taps: bool = False) -> InferenceResult:
        interpreter = self._interpreter
        try:
            details = interpreter.get_input_details()
            for detail, array in zip(details, arrays, strict=True):
                if tuple(detail["shape"]) != array.shape:
                    interpreter.resize_tensor_input(detail["index"], array.shape)
                    interpreter.allocate_tensors()
            for detail, array in zip(details, arrays, strict=True):
                interpreter.set_tensor(detail["index"], array)
            interpreter.invoke()
        except Exception as error:
            raise InputsRejected(str(error)) from error
        outputs = tuple(interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details())
        tensors = {}
        for index, name in self._names.items():
            try:
                tensors[name] = interpreter.get_tensor(index)
            except ValueError:  # a tensor without memory of its own
                continue
        return InferenceResult(outputs, tensors)

    def reset(self) -> None:
        self._interpreter.reset_all_variables()

    @classmethod
    def from_file(cls, data: bytes, file_name: str, options: Options) -> Self:
        """Load a model. If the options round as LiteRT does and it quantises to int16, default kernels are the first."""
        default_first = options.rounding == "litert" and quantises_to_int16(data)
        return cls(data, file_name, default_kernels_first=default_first)


def _count_tflite_outputs(data: bytes) -> int:
    """Count the outputs of a TFLite model's first subgraph. TFLite Micro's interpreter has no function for that."""
    import tflite

    graph = tflite.Model.GetRootAs(data, 0).Subgraphs(0)
    return 0 if graph is None else int(graph.OutputsLength())


def quantises_to_int16(data: bytes) -> bool:
    """Test whether an operator of a TFLite model's first subgraph quantises float32 to int16."""
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
