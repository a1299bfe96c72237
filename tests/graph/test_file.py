# SPDX-License-Identifier: Apache-2.0
"""A graph file carries everything in the same bytes, and nothing hostile or damaged gets through."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from microc.errors import ModelError
from microc.graph.file import from_bytes, is_graph_file, to_bytes
from microc.graph.ir import Graph, TensorType
from microc.graph.text import to_text
from tests.graph.graphs import diamond, graphs
from tests.support.campaign import examples


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(contents: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return file.getvalue()


@given(graphs())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_round_trip(graph: Graph) -> None:
    data = to_bytes(graph)
    assert is_graph_file(data) and data == to_bytes(graph)
    again = from_bytes(data, "net.mcg")
    assert to_text(again) == to_text(graph)
    for name, array in (*graph.consts.items(), *graph.state.items()):
        found = {**again.consts, **again.state}[name]
        assert (found.dtype, found.shape) == (array.dtype, array.shape) and found.tobytes() == array.tobytes()
        assert not found.flags.writeable


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"])
def test_dtypes_orders_and_empty_arrays(dtype: str) -> None:
    data = np.arange(12).reshape(3, 4).astype(dtype)
    kinds = {
        "a": data,
        "b": np.asfortranarray(data),
        "c": data[:0],
        "d": data[0, 0].reshape(()),
        "e": data.astype(">i4"),
    }
    consts = {name: array if name != "e" else array.astype("<i4") for name, array in kinds.items()}
    types = {name: TensorType(array.shape, str(array.dtype)) for name, array in consts.items()}
    graph = Graph("net", (), ("a",), (), types, kinds)
    again = from_bytes(to_bytes(graph), "net.mcg")
    for name, array in consts.items():
        np.testing.assert_array_equal(again.consts[name], array, strict=True)


def test_dtypes_that_numpy_lacks_are_stored_as_bits() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    data = np.arange(-8, 8).reshape(2, 8).astype(ml_dtypes.bfloat16)
    graph = Graph("net", (), ("a",), (), {"a": TensorType((2, 8), "bfloat16")}, {"a": data})
    file = to_bytes(graph)
    assert "const0.bfloat16.npy" in members(file)
    again = from_bytes(file, "net.mcg").consts["a"]
    assert again.dtype == data.dtype and again.tobytes() == data.tobytes() and again.shape == (2, 8)


def test_numpy_opens_it() -> None:
    with np.load(io.BytesIO(to_bytes(diamond())), allow_pickle=False) as data:
        assert np.array_equal(data["const0"], np.ones((2, 3)))


HOSTILE = {
    "compressed": lambda parts: archive_of(parts, zipfile.ZIP_DEFLATED),
    "no version": lambda parts: archive_of({"microc-graph": b"", "graph.txt": parts["graph.txt"]}),
    "version of letters": lambda parts: archive_of({**parts, "microc-graph": b"one"}),
    "text missing": lambda parts: archive_of({"microc-graph": b"1\n"}),
    "text not ASCII": lambda parts: archive_of({**parts, "graph.txt": b"graph \xff\n"}),
    "array missing": lambda parts: archive_of({k: v for k, v in parts.items() if k != "const0.npy"}),
    "array cut": lambda parts: archive_of({**parts, "const0.npy": parts["const0.npy"][:-1]}),
    "array of bits of another size": lambda parts: renamed(parts, "const0.int64.npy"),
    "array of bits of a vector": lambda parts: renamed(parts, "const0.int8x4.npy"),
    "array of bits of nothing": lambda parts: renamed(parts, "const0.object.npy"),
    "array pickled": lambda parts: archive_of({**parts, "const0.npy": pickled()}),
    "array of a huge shape": lambda parts: archive_of({**parts, "const0.npy": header(b"(4294967296, 4294967296)")}),
    "array of an overflowing shape": lambda parts: archive_of(
        {**parts, "const0.npy": header(b"(" + b"9" * 5000 + b",)")}
    ),
    "array of many axes": lambda parts: archive_of({**parts, "const0.npy": header(b"(" + b"0, " * 99 + b")")}),
    "header that evaluates": lambda parts: archive_of({**parts, "const0.npy": header(b"(" * 200)}),
    "other members only": lambda parts: archive_of({"x": b"1"}),
}


def renamed(parts: dict[str, bytes], name: str) -> bytes:
    return archive_of({**{k: v for k, v in parts.items() if k != "const0.npy"}, name: parts["const0.npy"]})


def pickled() -> bytes:
    member = io.BytesIO()
    np.save(member, np.array([{}], object), allow_pickle=True)
    return member.getvalue()


def header(shape: bytes) -> bytes:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + b", }\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name: str) -> None:
    data = HOSTILE[name](members(to_bytes(diamond())))
    tracemalloc.start()
    with pytest.raises(ModelError) as caught:
        from_bytes(data, "net.mcg")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert caught.value.where.startswith("net.mcg")


def test_a_newer_version_says_so() -> None:
    data = archive_of({**members(to_bytes(diamond())), "microc-graph": b"7\n"})
    with pytest.raises(ModelError, match="version of the format; got 7"):
        from_bytes(data, "net.mcg")


def test_members_that_share_bytes_are_refused() -> None:
    """A central directory may list one member a thousand times: a small file, a lot of memory."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("const0.npy", bytes(1 << 16))
        info = archive.infolist()[0]
        for number in range(1, 200):
            twin = zipfile.ZipInfo(f"const{number}.npy")
            twin.CRC, twin.file_size, twin.compress_size, twin.header_offset = info.CRC, 1 << 16, 1 << 16, 0
            archive.filelist.append(twin)
            archive.NameToInfo[twin.filename] = twin
    with pytest.raises(ModelError, match="damaged"):
        from_bytes(file.getvalue(), "net.mcg")


def test_damage_anywhere_is_noticed() -> None:
    data, dice = to_bytes(diamond()), random.Random(3)
    for end in range(0, len(data), 7):
        with pytest.raises(ModelError):
            from_bytes(data[:end], "net.mcg")
    text = to_text(diamond())
    for _ in range(300):
        broken = bytearray(data)
        broken[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        try:  # a bit of a date or an attribute of a member says nothing
            assert to_text(from_bytes(bytes(broken), "net.mcg")) == text
        except ModelError as error:
            assert error.where.startswith("net.mcg")
