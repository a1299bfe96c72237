# SPDX-License-Identifier: Apache-2.0
"""The quantisers that are compared: each takes a float network and its samples, and answers for the samples to test with.

A quantiser that is not installed, does not read the format or does not know the scheme says so: :class:`Absent`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import microc
from benchmarks.samples import Samples


@dataclass(frozen=True)
class Scheme:
    """The type of activations, and the bits of weights."""

    activations: str
    weights: int


SCHEMES: Mapping[str, Scheme] = {"int8": Scheme("int8", 8), "a16w8": Scheme("int16", 8), "w4": Scheme("int8", 4)}


class Absent(Exception):
    """Why a quantiser has no answer."""


@dataclass(frozen=True)
class Answer:
    """``model``: what :func:`microc.compile` takes; ``outputs``: real numbers, of every sample to test with, by the
    quantiser's own runtime; ``exported``: outputs of our export under ONNX Runtime, where there is one."""

    model: Path | microc.Graph
    outputs: Any
    exported: Any = None


def need(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Absent(f"{module} is not installed")


def by_microc(model: Path | microc.Graph, x: Any) -> Any:
    """Outputs of the network compiled for this computer."""
    network = microc.compile(model, optimize="speed")
    tensor = network.inputs[0]
    return np.concatenate([network(row.reshape(tensor["shape"])) for row in x])


def by_onnxruntime(model: Path, x: Any) -> Any:
    """Outputs under ONNX Runtime, as it runs a model by default."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    return np.concatenate([session.run(None, {given.name: row.reshape(given.shape)})[0] for row in x])


def by_litert(model: bytes, x: Any) -> Any:
    """Outputs under LiteRT, as reals; ends of integers stand for reals by their scale and zero point."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=model, num_threads=1)
    interpreter.allocate_tensors()
    given, found = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    outputs = []
    for row in x:
        interpreter.set_tensor(given["index"], stored(row.reshape(given["shape"]), given))
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(found["index"]))
    scale, zero = found["quantization"]
    integers = np.concatenate(outputs)
    return integers if integers.dtype == np.float32 else scale * (integers.astype(np.float64) - zero)


def stored(x: Any, tensor: Any) -> Any:
    """Reals as a tensor of LiteRT holds them."""
    if tensor["dtype"] == np.float32:
        return x
    scale, zero = tensor["quantization"]
    ends = np.iinfo(tensor["dtype"])
    return np.clip(np.round(x / scale) + zero, ends.min, ends.max).astype(tensor["dtype"])


def onnxruntime_static(path: Path, samples: Samples, scheme: Scheme, folder: Path) -> Answer:
    """ONNX Runtime's static quantiser: QDQ, per channel, ranges by minimum and maximum, after its own preparation."""
    need("onnxruntime", "onnx")
    if path.suffix != ".onnx":
        raise Absent("reads ONNX only")
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, name: str, shape: Any) -> None:
            self.rows: Iterator[Any] = iter([{name: row.reshape(shape)} for row in samples.x_cal])

        def get_next(self) -> Any:
            return next(self.rows, None)

    import onnx

    given = onnx.load(path).graph.input[0]
    shape = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
    prepared, made = folder / f"prepared_{path.name}", folder / f"onnxruntime_{path.name}"
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    kinds = {
        "activation_type": {"int8": QuantType.QInt8, "int16": QuantType.QInt16}[scheme.activations],
        "weight_type": {8: QuantType.QInt8, 4: QuantType.QInt4}[scheme.weights],
    }
    quantize_static(prepared, made, Reader(given.name, shape), per_channel=True, **kinds)
    return Answer(made, by_onnxruntime(made, samples.x_test))


def ai_edge(path: Path, samples: Samples, scheme: Scheme, folder: Path) -> Answer:
    """Google's ai-edge-quantizer, its static recipes."""
    need("ai_edge_quantizer", "ai_edge_litert")
    from ai_edge_quantizer import quantizer, recipe

    recipes = {("int8", 8): recipe.static_wi8_ai8, ("int16", 8): recipe.static_wi8_ai16}
    if (scheme.activations, scheme.weights) not in recipes:
        raise Absent("has no static recipe of 4-bit weights")
    signed = folder / f"signed_{path.stem}.tflite"
    key, name, shape = signature(as_tflite(path, samples), signed)
    found = quantizer.Quantizer(str(signed))
    found.load_quantization_recipe(recipes[scheme.activations, scheme.weights]())
    ranges = found.calibrate({key: [{name: row.reshape(shape)} for row in samples.x_cal]}, num_threads=1)
    made = folder / f"ai_edge_{path.stem}.tflite"
    made.write_bytes(found.quantize(ranges, enable_progress_report=False).quantized_model)
    return Answer(made, by_litert(made.read_bytes(), samples.x_test))


def as_tflite(path: Path, samples: Samples) -> bytes:
    """A network as a TFLite file: itself, or its twin, which must give the same numbers."""
    if path.suffix == ".tflite":
        return path.read_bytes()
    from benchmarks.tflite_twin import tflite_twin

    try:
        twin = tflite_twin(path)
    except ValueError as uncovered:
        raise Absent(str(uncovered)) from None
    few = samples.x_cal[:8]
    want = by_microc(path, few)
    got = by_litert(twin, few).reshape(len(few), -1)
    assert np.allclose(got, want.reshape(len(few), -1), rtol=0, atol=1e-4 * float(np.abs(want).max()))
    return twin


def signature(content: bytes, signed: Path) -> tuple[str, str, Any]:
    """Write a TFLite file with a signature, which the quantiser asks for, and operators where it looks for them, which older
    files have elsewhere: the signature's key, the name and the shape of its input."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    graph = model.subgraphs[0]
    for code in model.operatorCodes:
        code.builtinCode = max(code.builtinCode, code.deprecatedBuiltinCode)
    if not model.signatureDefs:
        made = schema.SignatureDefT()
        made.signatureKey, made.subgraphIndex = b"serving_default", 0
        made.inputs, made.outputs = (
            [tensor_map(schema, f"{end}{k}", index) for k, index in enumerate(tensors)]
            for end, tensors in (("input", graph.inputs), ("output", graph.outputs))
        )
        model.signatureDefs = [made]
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    signed.write_bytes(builder.Output())
    first = model.signatureDefs[0]
    key, name = (
        text if isinstance(text, str) else text.decode() for text in (first.signatureKey, first.inputs[0].name)
    )
    return key, name, graph.tensors[graph.inputs[0]].shape


def tensor_map(schema: Any, name: str, index: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name.encode(), index
    return entry


def ours(path: Path, samples: Samples, scheme: Scheme, folder: Path) -> Answer:
    """``microc.quantize``, and its QDQ export under ONNX Runtime where that is installed."""
    found = microc.quantize(path, samples.x_cal, activations=scheme.activations, weights=scheme.weights)
    outputs = by_microc(found.graph, samples.x_test)
    if importlib.util.find_spec("onnxruntime") is None:
        return Answer(found.graph, outputs)
    exported = found.save(folder / f"microc_{path.stem}.onnx")
    return Answer(found.graph, outputs, by_onnxruntime(exported, samples.x_test))


QUANTISERS: Mapping[str, Callable[[Path, Samples, Scheme, Path], Answer]] = {
    "onnxruntime": onnxruntime_static,
    "ai-edge": ai_edge,
    "microc": ours,
}
