"""Fields of configs, on configs that exist only here."""

import dataclasses

import numpy as np
import pytest

from bert_jax.config import fields
from bert_jax.config.fields import field
from bert_jax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Circle:
    kind: str = "circle"
    radius: float = field(1.0, more_than=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Square:
    kind: str = "square"
    side: float = field(2.0, more_than=0)
    color: str = field("red", choices=("red", "blue"), free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    x: int = field(0, at_least=-5, at_most=5)
    y: int = field(0, free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    kind: str = "drawing"
    shape: Circle | Square = Circle()
    points: tuple[Point, ...] = (Point(),)
    weights: tuple[float, ...] = field((0.5, 1.0), at_least=0)
    bold: bool = False

    def check(self, where):
        if len(self.points) > 3:
            raise UserError(f"{where}points: at most three")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Album:
    kind: str = "album"
    first: Drawing = Drawing()


CHANGED = Drawing(shape=Square(color="blue"), points=(Point(x=1), Point(y=7)))


def test_conversions_are_inverse():
    cfg = fields.to_configdict(Album(first=CHANGED))
    cfg.first.points[1].y = 8
    cfg.first.weights = (1, np.float64(0.25))
    rebuilt = fields.from_dict(Album, cfg).first
    assert rebuilt.shape == CHANGED.shape
    assert rebuilt.points == (Point(x=1), Point(y=8))
    assert rebuilt.weights == (1.0, 0.25)
    assert [type(weight) for weight in rebuilt.weights] == [float, float]
    assert fields.from_dict(Drawing, fields.to_dict(CHANGED)) == CHANGED
    values = {"points": [], "shape": {"kind": "square"}}
    assert fields.from_dict(Drawing, values) == Drawing(shape=Square(), points=())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": {"kind": "line"}}, r"shape\.kind='line' must be 'circle' or 'squa"),
        ({"shape": {"kind": "circle", "side": 1.0}}, r"field shape\.side; known here:"),
        ({"points": [{"z": 1}]}, r"unknown config field points\[0\]\.z"),
        ({"points": [5]}, r"field points\[0\]=5: expected a group of fields"),
        ({"weights": [True]}, r"weights\[0\]=True: expected float"),
        ({"bold": 1}, "field bold=1: expected bool"),
        ({"kind": "album"}, "this is a config for 'album', not 'drawing'"),
        # Limits.
        ({"shape": {"kind": "circle", "radius": 0}}, r"radius=0\.0 must be more than"),
        ({"shape": {"kind": "square", "color": "pink"}}, "one of 'red', 'blue'"),
        ({"points": [{}, {"x": 9}]}, r"points\[1\]\.x=9 must be at least -5"),
        ({"points": [{"y": 2**31}]}, r"points\[0\]\.y=2147483648 must be from -2147"),
        ({"points": [{"y": -(2**40)}]}, "y=-1099511627776 must be from -2147483648 to"),
        ({"weights": [0.1, -1.0]}, r"weights\[1\]=-1\.0 must be at least 0"),
        ({"weights": [float("inf")]}, r"weights\[0\]=inf must be a finite number"),
        ({"points": [{}] * 4}, "points: at most three"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        fields.from_dict(Drawing, values)


def test_differences_are_free_or_not():
    new = dataclasses.replace(CHANGED, points=(Point(x=2), Point(y=9)), weights=(0.5,))
    assert fields.differences(CHANGED, new, free=False) == [
        "points[0].x: was 1, is now 2",
        "weights: was (0.5, 1.0), is now (0.5,)",
    ]
    assert fields.differences(CHANGED, new, free=True) == [
        "points[1].y: was 7, is now 9"
    ]
    assert fields.differences(Drawing(), CHANGED, free=False) == [
        "shape.kind: was 'circle', is now 'square'",
        "number of points: was 1, is now 2",
        "points[0].x: was 0, is now 1",
    ]
    assert fields.differences(CHANGED, CHANGED, free=False) == []


def test_open_fields_are_filled_in():
    album = Album(first=Drawing(shape=Circle()))
    filled = fields.fill_in(album, "first.bold", True, "")
    assert filled.first.bold
    assert fields.fill_in(filled, "first.bold", True, "") == filled
    with pytest.raises(UserError, match=r"^first\.bold=True, but it is not$"):
        fields.fill_in(filled, "first.bold", False, "it is not")


def test_required_values_of_other_fields():
    requirements = [("shape.kind", "circle", "points")]
    fields.require(Drawing(), "first.", requirements)
    message = r"^first\.shape\.kind=square .*; set first\.shape\.kind='circle'"
    with pytest.raises(UserError, match=message):
        fields.require(CHANGED, "first.", requirements)
