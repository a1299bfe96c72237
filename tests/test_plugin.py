# SPDX-License-Identifier: Apache-2.0
"""Plugins: the example in every format, externs with both bodies, and refusals that help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import microc
from microc.base.dtypes import Array
from microc.cli import main
from microc.errors import OutputError, UnsupportedError, UsageError
from microc.graph.ir import Graph, Node, TensorType
from microc.isa import SCALAR
from microc.ops.registry import Case, OpDef, registry
from microc.plugin import Plugin, active, extern, load_plugin
from microc.project.checks import check_plugin
from microc.tir import ir
from tests.device.smoke import needs
from tests.frontend.tflite_model import Op, Tensor, model, quantised
from tests.support import digits

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "custom_operator"
OPERATORS = EXAMPLE / "operators.py"


@pytest.fixture(scope="module")
def plugin() -> Plugin:
    return load_plugin(OPERATORS)


@pytest.fixture(scope="module")
def onnx_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("custom") / "model.onnx"
    subprocess.run([sys.executable, str(EXAMPLE / "make_model.py"), str(path)], check=True, capture_output=True)
    return path


def snake(x: Array, alpha: float) -> Array:
    return x + np.sin(alpha * x) ** 2 / alpha


def test_without_the_plugin_both_operators_are_refused(onnx_model: Path) -> None:
    with pytest.raises(UnsupportedError, match="2 operators") as caught:
        microc.load(onnx_model)
    assert "--plugin" in str(caught.value)


def test_an_onnx_model(onnx_model: Path, plugin: Plugin) -> None:
    x = np.random.default_rng(3).normal(size=(1, 1, 8, 8)).astype(np.float32)
    pairs = np.random.default_rng(4).integers(-32768, 32768, (65, 2)).astype(np.int16)
    (features,) = (microc.compile(onnx_model, plugins=OPERATORS, outputs="features")(x),)
    activated, loudness = microc.compile(onnx_model, plugins=(plugin,))(x, pairs)
    np.testing.assert_allclose(activated, snake(np.asarray(features), 0.5), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(loudness, np.sqrt((pairs.astype(np.float64) ** 2).sum(-1)).astype(np.int32))


def test_it_fuses_and_the_extern_is_in_the_c(onnx_model: Path, plugin: Plugin) -> None:
    program = microc.compile(onnx_model, board="mps2-an386", plugins=plugin)
    assert "conv2d+snake" in [layer["op"] for layer in program.report()["layers"]]
    source = program.files()["model.c"]
    assert isinstance(source, str)
    assert "static inline uint32_t isqrt32(uint32_t x)" in source
    assert source.index("root >> 1") < source.index("(uint32_t)sqrt((double)x)")
    twin = Plugin(
        plugin.operators,
        plugin.tflite,
        plugin.onnx,
        (extern("isqrt32", plugin.externs[0].params, plugin.externs[0].meaning, "return 0u;"),),
    )
    other = microc.compile(onnx_model, board="mps2-an386", plugins=twin)
    assert other.module.fingerprint != program.module.fingerprint
    np.testing.assert_array_equal(
        program.library()(np.zeros((1, 1, 8, 8), np.float32), np.full((65, 2), 3, np.int16))[1], 4
    )


def custom_model(dtype: str) -> bytes:
    """One application of the custom operator Snake."""
    options = flexbuffers.Dumps({"alpha": 2.0})
    ends = [Tensor(name, (8, 64)) if dtype == "float32" else quantised(name, (8, 64), 0.05, -3) for name in ("x", "y")]
    return model(ends, [Op("CUSTOM", ("x",), ("y",), custom="Snake", custom_options=options)], ["x"], ["y"])


def test_a_tflite_model(tmp_path: Path, plugin: Plugin) -> None:
    path = tmp_path / "snake.tflite"
    path.write_bytes(custom_model("float32"))
    x = np.linspace(-4, 4, 512, dtype=np.float32).reshape(8, 64)
    with pytest.raises(UnsupportedError, match="CUSTOM:Snake"):
        microc.load(path)
    np.testing.assert_allclose(np.asarray(microc.compile(path, plugins=plugin)(x)), snake(x, 2.0), rtol=1e-5, atol=1e-5)


def test_a_quantised_tflite_model_becomes_a_table(tmp_path: Path, plugin: Plugin) -> None:
    path = tmp_path / "snake.tflite"
    path.write_bytes(custom_model("int8"))
    program = microc.compile(path, board="mps2-an386", plugins=plugin)
    assert [layer["op"] for layer in program.report()["layers"]] == ["lookup"]
    x = np.arange(512).astype(np.int8).reshape(8, 64)
    real = snake((x.astype(np.float64) + 3) * 0.05, 2.0)
    got = np.asarray(program.library()(x)).astype(np.int32)
    assert np.max(np.abs(got - np.clip(np.round(real / 0.05) - 3, -128, 127))) <= 1


def test_a_graph_file_takes_the_plugin_again(onnx_model: Path, plugin: Plugin, tmp_path: Path) -> None:
    saved = microc.save(microc.load(onnx_model, plugins=plugin), tmp_path / "net.mcg")
    assert [node.op for node in microc.load(saved, plugins=plugin).nodes] == ["conv2d", "snake", "magnitude"]
    with pytest.raises(UnsupportedError, match="magnitude, snake") as caught:
        microc.load(saved)
    assert "plugin" in caught.value.hint


def test_nothing_is_left_behind(plugin: Plugin) -> None:
    before = (set(registry()), set(SCALAR))
    with active((plugin, plugin)):
        assert "snake" in registry() and "isqrt32" in SCALAR
    assert (set(registry()), set(SCALAR)) == before and "snake" not in registry()


def test_the_command_line(onnx_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "check", str(OPERATORS)]) == 0
    assert "5 of 5 cases agree" in capsys.readouterr().out
    assert main(["check", str(onnx_model), "--plugin", str(OPERATORS)]) == 0
    assert main(["compile", str(onnx_model), "--plugin", str(OPERATORS), "-o", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "model.c").is_file()


@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_a_board_runs_them(onnx_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The square root in C on an emulated Cortex-M4, kernel by kernel against the host."""
    words = ["verify", str(onnx_model), "--plugin", str(OPERATORS), "--board", "mps2-an386", "--samples", "1"]
    assert main(words) == 0
    assert "mps2-an386 and host agree" in capsys.readouterr().out


def test_verify_finds_c_that_is_not_what_it_means(
    onnx_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The board runs the C text, the host the meaning."""
    text = OPERATORS.read_text(encoding="utf-8")
    assert "return root;" in text
    (tmp_path / "wrong.py").write_text(text.replace("return root;", "return root + 1u;"))
    assert main(["verify", str(onnx_model), "--plugin", str(tmp_path / "wrong.py"), "--samples", "1"]) == 1
    assert "magnitude" in capsys.readouterr().err


# ---------------------------------------------------------------- what check finds


def operator(**changes: Any) -> OpDef:
    """y = 2 x of float32, or what ``changes`` make of it."""
    parts: dict[str, Any] = {
        "infer": lambda attrs, types: (types[0],),
        "reference": lambda attrs, arrays: (arrays[0] * 2,),
        "scalar": lambda attrs, args: args[0] * 2,
        "cases": lambda: (Case({}, (TensorType((3, 4), "int32"),)),),
    }
    return OpDef("twice", **{**parts, **changes})


def problems(made: Plugin) -> str:
    return "; ".join(result.problem for result in check_plugin(made))


X = ir.Var("x", "int32")


@pytest.mark.parametrize(
    ("change", "externs", "found"),
    [
        ({}, (), ""),
        ({"scalar": lambda attrs, args: args[0] * 3}, (), "interpreted: 1"),
        ({"infer": lambda attrs, types: (TensorType((12,), "int32"),)}, (), "type inference gives"),
        ({"scalar": lambda attrs, args: args[0] * 2.5}, (), "interpreted"),
        ({"scalar": lambda attrs, args: ir.call("double_it", args[0])}, (extern("double_it", (X,), X * 2, "return x * 2;"),), ""),
        (
            {"scalar": lambda attrs, args: ir.call("double_it", args[0])},
            (extern("double_it", (X,), X * 2, "return x * 3;"),),
            "in C: 1",
        ),
        (
            {"scalar": lambda attrs, args: ir.call("double_it", args[0])},
            (extern("double_it", (X,), X * 3, "return x * 2;"),),
            "in C by meaning: 1",
        ),
    ],
)  # fmt: skip
def test_check_finds_what_disagrees(change: dict[str, Any], externs: tuple[Any, ...], found: str) -> None:
    said = problems(Plugin((operator(**change),), externs=externs))
    assert found in said if found else not said


def test_an_extern_that_does_it_all() -> None:
    """A C function over whole buffers: its meaning is a statement."""
    from microc import te

    source, target = ir.Buffer("source", (12,), "int32"), ir.Buffer("target", (12,), "int32")
    i = ir.Var("i")
    meaning = ir.For(i, ir.const(12, "int32"), ir.Store(target, (i,), source[i] * 2))
    whole = extern(
        "twice_all",
        (target, source),
        meaning,
        "for (int32_t i = 0; i < 12; ++i) {\n    target[i] = source[i] + source[i];\n}",
    )

    def compute(call: Any) -> te.Tensor:
        def build(operands: tuple[ir.Buffer, ...], results: tuple[ir.Buffer, ...]) -> ir.Stmt:
            zero = (ir.const(0, "int32"),)
            places = (ir.AddressOf(results[0], zero, 12, writes=True), ir.AddressOf(operands[0], zero, 12))
            return ir.Evaluate(ir.Call("twice_all", places, "int32"))

        return te.extern("twice", (call.operands[0].tensor((12,)),), (("out", (12,), "int32"),), build)[0]

    assert problems(Plugin((operator(scalar=None, compute=compute),), externs=(whole,))) == ""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import nothing_of_this_name", "fails: ModuleNotFoundError"),
        ("x = (", "fails: SyntaxError"),
        ("x = 1", "defines no plugin"),
        ("from microc.plugin import *\nPLUGIN = Plugin(operators=(OpDef('a', None, None),))", "needs either scalar or compute"),
        ("from microc.plugin import *\nPLUGIN = Plugin(operators=(OpDef('a', None, None, scalar=print),))", "has no test cases"),
        ("from microc.plugin import *\nPLUGIN = Plugin(onnx={'Snake': print})", "domain::operator"),
        ("from microc.plugin import *\nPLUGIN = Plugin(externs=(extern('sin', (), ir.const(1, 'int32'), ''),))", "'sin'"),
    ],
)  # fmt: skip
def test_plugins_that_are_refused(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=what) as caught:
        load_plugin(path)
    assert caught.value.where.startswith("broken.py")


def test_a_plugin_may_have_dataclasses_and_leaves_no_module(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom microc.plugin import Plugin\n"
        "@dataclass(frozen=True)\nclass Table:\n    size: int = 3\nPLUGIN = Plugin()\n"
    )
    found = load_plugin(path)
    assert found == Plugin(source="mine.py", digest=found.digest) and found.digest
    assert not any(name.startswith("microc_plugin") for name in sys.modules)


def test_names_that_are_taken(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        load_plugin(tmp_path / "absent.py")
    taken = Plugin((OpDef("conv2d", operator().infer, operator().reference, operator().scalar),), source="mine.py")
    graph = Graph(
        "net", ("x",), ("y",), (Node("relu", ("x",), ("y",)),), dict.fromkeys("xy", TensorType((1,), "float32"))
    )
    with pytest.raises(UsageError, match="already an operator 'conv2d'") as caught:
        microc.compile(graph, plugins=taken)
    assert caught.value.where == "mine.py"


CORE = EXAMPLE.parent / "custom_instruction" / "core.py"


def test_a_core_of_ones_own(tmp_path: Path) -> None:
    """Its instruction stands in the C, its meaning beside it; without the plugin nobody knows the core."""
    with pytest.raises(UsageError, match="unknown core 'acme-dot4'"):
        microc.compile(digits.INT8, target="acme-dot4")
    command = ["export", str(digits.INT8), "--plugin", str(CORE), "--target", "acme-dot4", "--format", "make"]
    assert main([*command, "-o", str(tmp_path / "package"), "--quiet"]) == 0
    text = next((tmp_path / "package").rglob("*_model.c")).read_text()
    assert "#if defined(ACME_DOT4)" in text and ".insn r 0x0b" in text and "acc_0_0 = dot4_i8(" in text


def test_every_core_can_be_extended(tmp_path: Path) -> None:
    """Also those whose sets have bodies of conversions that C calls by name."""
    file = tmp_path / "cores.py"
    file.write_text(
        "from dataclasses import replace\nfrom microc.plugin import CORES, Plugin\n"
        'PLUGIN = Plugin(cores=tuple(replace(core, name=f"my-{name}") for name, core in CORES.items()))\n'
    )
    microc.compile(digits.INT8, target="my-cortex-m4", plugins=file)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('family="acme"', "unknown family"),
        ('sets=(InstructionSet("acme", "1", {"dot5": Body("return 0;")}),)', "unknown intrinsics: dot5"),
    ],
)
def test_a_core_that_is_not_whole(change: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "core.py"
    head = "from dataclasses import replace\nfrom microc.plugin import CORES, Body, InstructionSet, Plugin\n"
    file.write_text(f'{head}PLUGIN = Plugin(cores=(replace(CORES["rv32imc"], name="acme", {change}),))\n')
    with pytest.raises(UsageError, match=says):
        load_plugin(file)
