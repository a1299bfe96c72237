# SPDX-License-Identifier: Apache-2.0
"""Networks beside the frameworks that made them: every frontend's, and what a difference looks like."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.compiler.options import Options
from microc.errors import ToolError, UsageError, VerificationError
from microc.run import FRAMEWORKS, against, reference_engines
from microc.run.comparison import DifferenceTally
from microc.run.data.samples import ALL_KINDS, draw_input_sets
from microc.target import target_for
from tests.frontend.onnx_model import node, proto, read
from tests.frontend.tflite_model import Op, Tensor, quantised
from tests.ops.oracle import single
from tests.support.corpus import models

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"


def test_every_framework_has_an_engine() -> None:
    """The engine is a class that loads what the framework's models are: files, objects or both."""
    for framework in FRAMEWORKS:
        engine = getattr(reference_engines, framework.engine)
        assert hasattr(engine, "from_object") or not framework.has_objects
        assert hasattr(engine, "from_file") or framework.has_objects


@pytest.mark.parametrize(
    ("packages", "format_name"),
    [
        (("keras.src.models", "torch.nn.modules"), "keras"),
        (("torch.nn.modules",), "torch"),
        (("xgboost.sklearn", "sklearn.base"), "xgboost"),
        (("lightgbm.sklearn", "sklearn.base"), "lightgbm"),
        (("catboost.core", "sklearn.base"), "catboost"),
        (("sklearn.svm", "sklearn.base"), "sklearn"),
    ],
)
def test_objects_belong_to_the_most_derived_framework(packages: tuple[str, ...], format_name: str) -> None:
    """Keras's layers on the backend torch are modules of PyTorch, and estimators of boosters are scikit-learn's."""
    class_: type = object
    for package in reversed(packages):
        class_ = type("Model", (class_,), {"__module__": package})
    assert against._detect_format_of_object(class_()) == format_name


def test_tflite_micro() -> None:
    pytest.importorskip("tflite_micro")
    found = microc.verify(DIGITS / "digits_int8.tflite", samples=3)
    assert found.reference == "tflm" and found.identical and found.first is None
    assert [layer.tensor for layer in found.layers] == ["conv1", "depthwise2", "conv4", "dense5", "probabilities"]

    options = Options(rounding="single")
    library = against.build_kernels_for_host(DIGITS / "digits_int8.tflite", options, target_for("host"))
    reference = against.load_reference(DIGITS / "digits_int8.tflite", "tflm", options)
    sets = draw_input_sets(library.manifest, library.inputs, 3, kinds=ALL_KINDS)
    first = against.compare_library(library, reference, sets, options, None).first
    assert first is not None and first.largest == 1 and first.dtype == "int8"
    assert against.compare_library(library, reference, sets, options, None, quanta=1).first is None


@pytest.mark.corpus
def test_litert() -> None:
    """Dense layers round otherwise than in TFLite Micro, which shows."""
    pytest.importorskip("ai_edge_litert", reason="needs LiteRT (pip install microc[reference])")
    (model,) = models("mlperf_ad_int8.tflite")
    found = microc.verify(model, rounding="litert", samples=3)
    assert found.reference == "litert" and found.identical and len(found.layers) == 10
    other = microc.verify(model, "litert", samples=3)
    assert not other.agrees and other.outputs[0].largest < 8


@pytest.mark.parametrize("name", ["digits_float.onnx", "digits_qdq.onnx"])
def test_onnxruntime(name: str) -> None:
    pytest.importorskip("onnxruntime")
    images = np.load(DIGITS / "digits_test.npz")["images"][:6].astype(np.float32).reshape(6, 1, 8, 8) / 16
    found = microc.verify(DIGITS / name, "onnxruntime", data=images)
    assert found.agrees and found.samples == 6 and len(found.layers) == 6 and found.outputs[0].top == 1
    assert found.identical == (name == "digits_qdq.onnx")


def test_cut_networks_are_compared_by_name() -> None:
    pytest.importorskip("onnxruntime")
    found = microc.verify(DIGITS / "digits_float.onnx", outputs=["flat"], samples=2)
    assert found.agrees and [output.tensor for output in found.outputs] == ["flat"]


def test_scikit_learn_and_lightgbm(tmp_path: Path) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    lightgbm = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 5)).astype(np.float32)
    y = np.where(x[:, 0] * x[:, 1] > 0, "yes", "no")
    forest = ensemble.RandomForestClassifier(5, max_depth=3, random_state=0).fit(x, y)
    found = microc.verify(forest, samples=20)
    assert found.reference == "sklearn" and found.agrees and len(found.outputs) == 2
    assert microc.verify(forest, data=x[:30]).agrees
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(x, y == "yes"), 4)
    booster.save_model(tmp_path / "trees.txt")
    for model in (booster, tmp_path / "trees.txt"):
        assert microc.verify(model, samples=20).reference == "lightgbm"
    linear = pytest.importorskip("sklearn.linear_model").Ridge().fit(x, x[:, 0])
    assert microc.verify(linear, "sklearn", samples=3).agrees


def test_ties_are_not_differences() -> None:
    """Two trees of one vote each: which class wins is decided by rounding, which is not counted."""
    found = DifferenceTally("label", "int32", 0.0)
    found.add(np.array([0, 1, 1]), np.array([0, 0, 1]), np.array([False, True, False]))
    agreement = found.agreement()
    assert (agreement.differing, agreement.wrong, agreement.undecided) == (1, 0, 1)


def test_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 5), nn.Softmax(1)).eval()
    found = microc.verify(torch.export.export(module, (torch.zeros(1, 1, 8, 8),)), samples=3)
    assert found.reference == "torch" and found.agrees and found.first is None and len(found.layers) >= 2


def test_keras(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="Keras runs on PyTorch here")
    os.environ.setdefault("KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="needs Keras")
    layers = keras.layers
    given = keras.Input((8, 8, 1))
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(given))
    model = keras.Model(given, layers.Dense(3, activation="softmax")(x))
    model.save(tmp_path / "net.keras")
    for source in (model, tmp_path / "net.keras"):
        found = microc.verify(source, samples=3)
        assert found.reference == "keras" and found.agrees and found.first is None and len(found.layers) >= 2


def test_keras_files_that_name_others_are_refused() -> None:
    from microc.run.reference_engines import _list_foreign_classes

    own = {"module": "keras.layers", "class_name": "Dense", "registered_name": None, "config": {"name": "dense"}}
    assert not _list_foreign_classes([own])
    assert _list_foreign_classes(
        {**own, "config": {"kernel_initializer": {"module": "os", "class_name": "system"}}}
    ) == ["os"]
    assert _list_foreign_classes({**own, "registered_name": "evil>Dense"}) == ["evil>Dense"]


def scaled(factor: float) -> bytes:
    """A network of two layers, of which the second's weight is the argument."""
    made = proto(
        [node("Mul", ["x", "w"], ["middle"]), node("Mul", ["middle", "v"], ["y"])],
        {"x": (1, 4)},
        {"w": np.full(4, 2.0, np.float32), "v": np.full(4, factor, np.float32)},
        outputs=("y",),
    )
    found: bytes = made.SerializeToString()
    return found


def test_a_difference_says_where_and_by_how_much(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    right, wrong = tmp_path / "right.onnx", tmp_path / "wrong.onnx"
    right.write_bytes(scaled(3.0))
    wrong.write_bytes(scaled(3.001))
    options = Options()
    library = microc.compile(wrong)
    reference = against.load_reference(right, "reference", options)
    found = against.compare_library(library, reference, [[np.ones((1, 4), np.float32)]], options, None)
    assert not found.agrees and found.outputs[0].wrong == 4
    assert found.outputs[0].largest == pytest.approx(0.002, rel=1e-3)
    with pytest.raises(VerificationError, match=r"4 of 4 elements of y are off, by 0\.00199"):
        raise found.error("wrong.onnx")
    assert against.compare_library(library, reference, [[np.ones((1, 4), np.float32)]], options, None, 1e-3).agrees


def test_not_a_number_agrees_with_itself_only() -> None:
    nan, inf = np.nan, np.inf
    for mine, theirs, wrong in (
        ([nan, inf, 1.0], [nan, inf, 1.0], 0),
        ([nan, inf, 1.0], [1.0, -inf, nan], 3),
        ([1.0, 2.0, 3.0], [1.0, inf, 3.0], 1),
    ):
        tally = DifferenceTally("x", "float32", 1e-4)
        tally.add(np.array(mine, np.float32), np.array(theirs, np.float32))
        assert tally.agreement().wrong == wrong


def test_random_numbers_that_choose_stay_within_their_tables() -> None:
    made = proto(
        [node("Gather", ["table", "x"], ["y"])],
        {"x": (1, 50)},
        {"table": np.zeros((7, 3), np.float32)},
        dtypes={"x": "int64"},
        outputs=("y",),
    )
    tensor = {"name": "x", "dtype": "int64", "shape": [1, 50], "scale": None, "zero_point": None}
    for arrays in draw_input_sets({}, [tensor], 4, kinds=ALL_KINDS, graph=read(made)):
        assert arrays[0].min() >= 0 and arrays[0].max() < 7


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DIGITS / "digits_int8.tflite"
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"against": "onnxruntime"}, "does not run this model"),
        ({"input_dtype": "float32"}, "changes inputs or outputs"),
        ({"samples": 0}, "got 0, expected 1 at least"),
        ({"data": np.zeros((3, 5), np.int8)}, "takes samples of shape"),
        ({"data": {"nothing": np.zeros((1, 8, 8, 1), np.int8)}}, "got arrays called nothing"),
    )
    for options, what in refused:
        with pytest.raises(UsageError, match=what):
            microc.verify(model, **options)
    with pytest.raises(UsageError, match="no framework"):
        microc.verify(microc.load(model))

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(reference_engines, "importlib", type("absent", (), {"import_module": staticmethod(absent)}))
    with pytest.raises(ToolError, match="not installed") as error:
        microc.verify(model)
    assert "microc[reference]" in error.value.hint


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tflite_micro")
    model = str(DIGITS / "digits_int8.tflite")
    assert main(["verify", model, "--against", "reference", "--samples", "1"]) == 0
    assert "every bit" in capsys.readouterr().out
    assert main(["verify", model, "--against", "tflm", "--json", "--samples", "1"]) == 0
    data = json.loads(capsys.readouterr().out)["against"]
    assert data["agrees"] and data["outputs"][0]["elements"] == 10 and data["layers"][0]["layer"]
    np.savez(tmp_path / "x.npz", image=np.zeros((2, 8, 8, 1), np.int8))
    assert main(["verify", model, "--against", "tflm", "--data", str(tmp_path / "x.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["against"]["samples"] == 2
    assert main(["verify", model, "--model", model]) == 2


def test_the_command_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A network of floats that is to agree in every bit does not."""
    pytest.importorskip("onnxruntime")
    words = ["verify", str(DIGITS / "digits_float.onnx"), "--against", "reference", "--tolerance", "0"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert "beyond" in said.out and "differs from onnxruntime" in said.err
    assert main([*words, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["error"]["code"] == "E0101" and data["against"]["first_differing_layer"]


def test_pytorch_files_run_from_the_harmless_archive(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(module, (torch.zeros(1, 4),)), tmp_path / "net.pt2")
    assert microc.verify(tmp_path / "net.pt2", "torch", samples=2).agrees


class FakeLiteRT:
    """LiteRT's module, whose interpreter takes the default kernels alone."""

    class OpResolverType:
        BUILTIN_REF, BUILTIN_WITHOUT_DEFAULT_DELEGATES, BUILTIN = range(3)

    asked: ClassVar[list[int]] = []
    has: ClassVar[set[int]] = set()

    class Interpreter:
        def __init__(self, experimental_op_resolver_type: int, **options: object) -> None:
            FakeLiteRT.asked.append(experimental_op_resolver_type)
            if experimental_op_resolver_type not in FakeLiteRT.has:
                raise ValueError("Didn't find op for builtin opcode 'ELU'")

        def allocate_tensors(self) -> None:
            pass


@pytest.mark.parametrize(
    ("has", "own", "asked", "words"),
    [
        ({0, 1, 2}, False, [0], ""),
        ({1, 2}, False, [0, 1], "default kernels"),
        ({2}, False, [0, 1, 2], "default kernels and delegates"),
        ({0, 1, 2}, True, [1], "default kernels"),
        ({0}, True, [1, 2, 0], ""),
    ],
)
def test_litert_falls_back_to_the_next_set_of_kernels(
    monkeypatch: pytest.MonkeyPatch, has: set[int], own: bool, asked: list[int], words: str
) -> None:
    monkeypatch.setattr(reference_engines, "import_framework", lambda *names: FakeLiteRT)
    monkeypatch.setattr(reference_engines, "package_version", lambda name: "2")
    monkeypatch.setattr(FakeLiteRT, "has", has)
    FakeLiteRT.asked.clear()
    data = single(Op("ELU", ("x",), ("y",)), (Tensor("x", (1, 4)), Tensor("y", (1, 4))))
    made = reference_engines.LiteRT(data, "one.tflite", default_kernels_first=own)
    assert FakeLiteRT.asked == asked and made.version == ", ".join(["2", *filter(None, [words])])
    monkeypatch.setattr(FakeLiteRT, "has", set())
    with pytest.raises(ToolError, match="LiteRT does not run the model"):
        reference_engines.LiteRT(data, "one.tflite", default_kernels_first=own)


def test_a_model_that_makes_int16_of_floats() -> None:
    tensors = (Tensor("x", (1, 4)), quantised("y", (1, 4), 0.01, 0, "INT16"), Tensor("z", (1, 4)))
    assert reference_engines.quantises_to_int16(single(Op("QUANTIZE", ("x",), ("y",)), tensors[:2]))
    assert not reference_engines.quantises_to_int16(single(Op("ELU", ("x",), ("z",)), (tensors[0], tensors[2])))
