# SPDX-License-Identifier: Apache-2.0
"""Classes of values behave as frozen dataclasses do, but for a change at run time, which the type checker refuses."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest

from microc.base.immutable import frozen


@frozen
class Ours:
    """A value."""

    name: str
    count: int = 3
    parts: tuple[int, ...] = field(default=(), repr=False)
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Theirs:
    """The same by Python's own."""

    name: str
    count: int = 3
    parts: tuple[int, ...] = field(default=(), repr=False)
    note: str = field(default="", compare=False)


@frozen
class Single:
    """One field: what it is equal to is decided as by a tuple."""

    value: float


@frozen
class Empty:
    """No field."""


@frozen
class Spoken:
    """Methods of its own."""

    word: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spoken) and self.word.lower() == other.word.lower()

    def __hash__(self) -> int:
        return hash(self.word.lower())

    def __repr__(self) -> str:
        return self.word


@pytest.mark.parametrize("change", [{}, {"count": 4}, {"parts": (1,)}, {"note": "seen"}])
def test_comparison_hash_and_repr_are_those_of_a_dataclass(change: dict[str, Any]) -> None:
    ours, theirs = (Ours("a"), replace(Ours("a"), **change)), (Theirs("a"), replace(Theirs("a"), **change))
    assert (ours[0] == ours[1]) is (theirs[0] == theirs[1])
    assert [hash(each) for each in ours] == [hash(each) for each in theirs]
    assert [repr(each).replace("Ours", "Theirs") for each in ours] == [repr(each) for each in theirs]


def test_another_class_is_never_equal() -> None:
    others: tuple[object, ...] = (Theirs("a"), "a", None)
    assert all(Ours("a") != other for other in others)


def test_one_field_and_none() -> None:
    nan = float("nan")
    assert Single(nan) == Single(nan), "the same object, as in a tuple"
    assert {Single(1.0), Single(1.0)} == {Single(1.0)}
    assert Empty() == Empty()
    assert repr(Empty()).endswith("Empty()")


def test_a_class_keeps_its_own_methods() -> None:
    assert Spoken("A") == Spoken("a")
    assert len({Spoken("A"), Spoken("a")}) == 1
    assert repr(Spoken("A")) == "A"


def test_it_has_slots_fields_patterns_and_pickles() -> None:
    names = [each.name for each in fields(Ours("a"))]
    assert names == ["name", "count", "parts", "note"] == list(vars(Ours)["__match_args__"])
    assert not hasattr(Ours("a"), "__dict__")
    assert pickle.loads(pickle.dumps(Ours("a", 7))) == Ours("a", 7)


@frozen
class Extended(Ours):
    """Fields of its own, behind those of its base: a keyword without a default, a default that is built, a check."""

    order: str = field(kw_only=True)
    seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.order:
            raise ValueError("no order")


def test_objects_are_created_as_by_a_dataclass() -> None:
    first, second = Extended("a", order="x"), Extended("a", 1, order="x", seen=[2])
    assert (first.count, first.seen, second.count, second.seen) == (3, [], 1, [2])
    assert Extended("a", order="x").seen is not first.seen
    assert replace(first, name="b") == Extended("b", order="x")
    with pytest.raises(TypeError, match=r"Extended.__init__\(\) missing 1 required keyword-only argument: 'order'"):
        Extended("a")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="no order"):
        Extended("a", order="")
    assert Ours("a").name == "a"


@frozen
class Derived:
    """Fields that are no parameters: one with a default, one that is built, one that the check sets."""

    name: str
    length: int = field(default=0, init=False)
    seen: list[int] = field(default_factory=list, init=False)
    upper: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "upper", self.name.upper())


def test_fields_that_are_no_parameters() -> None:
    first, second = Derived("a"), Derived(name="b")
    assert (first.length, first.seen, first.upper, second.upper) == (0, [], "A", "B")
    assert first.seen is not second.seen
    with pytest.raises(TypeError, match=r"Derived.__init__\(\) got an unexpected keyword argument 'length'"):
        Derived("a", length=1)  # type: ignore[call-arg]


def test_fields_named_as_what_init_calls() -> None:
    @frozen
    class Pair:
        make_x: int
        x: list[int] = field(default_factory=list)

    assert Pair(3).x == [] and Pair(3).make_x == 3
