"""Made-up pictures of one to four shapes, and captions that say where the shapes are.

A picture shows one group or two groups of shapes. A group has one or two shapes of the same size,
color and kind. One group is in a corner; of two, one is left of or above the other:

    a small red circle at the top left
    two large blue squares left of a small yellow triangle

Two groups have two correct captions, one beginning with each group.
"""

import re
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tfm.vocabulary.subword import EOS, UNK

Size = Literal["small", "large"]
Color = Literal["red", "green", "blue", "yellow"]
Kind = Literal["circle", "square", "triangle"]
SIZES: tuple[Size, ...] = get_args(Size)
COLORS: tuple[Color, ...] = get_args(Color)
KINDS: tuple[Kind, ...] = get_args(Kind)
# No picture for training has these; any two of the three words are seen together.
HELD_OUT: tuple[tuple[Size, Color, Kind], ...] = (
    ("small", "red", "triangle"),
    ("small", "blue", "circle"),
    ("large", "green", "square"),
    ("large", "yellow", "circle"),
)
_INVERSE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_WHERE = re.compile("left of|right of|above|below|at the .*")
WORDS = (
    *("a", "two", "at", "the", "top", "bottom", "left", "right", "of", "above", "below"),
    *(*SIZES, *COLORS, *KINDS, *(f"{kind}s" for kind in KINDS)),
)
_FIRST_WORD = UNK + 1  # ids before it are special
VOCABULARY_SIZE = _FIRST_WORD + len(WORDS)
MAX_WORDS = 10  # two large yellow triangles left of two small blue squares

PICTURE_SIZE = 32  # pixels
NUM_PLACES = 4  # per side; a shape fills at most one
_PLACE_SIZE = PICTURE_SIZE / NUM_PLACES
_RADIUS: dict[Size, float] = {"small": 2.2, "large": 3.8}  # pixels
_SHIFT = 0.6  # pixels by which a shape is off the middle of its place
_RGB: dict[Color, tuple[float, float, float]] = {
    "red": (0.9, 0.2, 0.2),
    "green": (0.2, 0.75, 0.3),
    "blue": (0.25, 0.4, 0.95),
    "yellow": (0.95, 0.85, 0.2),
}
_NOISE = 0.05  # standard deviation

Array: TypeAlias = npt.NDArray[np.float32]
Place = tuple[int, int]  # column and row, from the top left


class Group(NamedTuple):
    """One shape, or two equal ones side by side or one below the other."""

    size: Size
    color: Color
    kind: Kind
    places: tuple[Place, ...]

    @property
    def is_held_out(self) -> bool:
        """Whether the combination of size, color and kind is left out of training."""
        return self[:3] in HELD_OUT

    def __str__(self) -> str:
        number, plural = ("a", "") if len(self.places) == 1 else ("two", "s")
        return f"{number} {self.size} {self.color} {self.kind}{plural}"


class Scene(NamedTuple):
    """The content of a picture: one group, or two."""

    groups: tuple[Group, ...]
    where: str  # where the first group is: in a corner, or in relation to the second

    def captions(self) -> tuple[str, str]:
        """Return the two correct captions; they are equal if there is one group."""
        first, *others = self.groups
        if not others:
            caption = f"{first} {self.where}"
            return caption, caption
        [second] = others
        return f"{first} {self.where} {second}", f"{second} {_INVERSE[self.where]} {first}"


def random_scenes(number: int, random: np.random.Generator, *, held_out: bool) -> list[Scene]:
    """Draw scenes with no group of the held-out combinations, or with at least one."""
    scenes: list[Scene] = []
    while len(scenes) < number:
        scene = _random_scene(random)
        if scene and any(group.is_held_out for group in scene.groups) == held_out:
            scenes.append(scene)
    return scenes


def _random_scene(random: np.random.Generator) -> Scene | None:
    """Draw groups and places; None if the caption would not be clear."""
    num_groups = 1 if random.random() < 0.1 else 2
    by_group = [_random_places(random) for _ in range(num_groups)]
    places = [place for group in by_group for place in group]
    if len(set(places)) < len(places) or max(map(max, places)) == NUM_PLACES:
        return None  # on top of each other, or outside
    where = _relation(*by_group) if num_groups == 2 else _corner(places)
    if where is None:
        return None
    groups = tuple(
        Group(
            SIZES[random.integers(len(SIZES))],
            COLORS[random.integers(len(COLORS))],
            KINDS[random.integers(len(KINDS))],
            each,
        )
        for each in by_group
    )
    return Scene(groups, where) if len({group[:3] for group in groups}) == num_groups else None


def _random_places(random: np.random.Generator) -> tuple[Place, ...]:
    """Draw a place, or two that touch; the second may be outside."""
    column, row, chosen = random.integers(NUM_PLACES, size=3).tolist()
    neighbors: list[tuple[Place, ...]] = [(), (), ((column + 1, row),), ((column, row + 1),)]
    return ((column, row), *neighbors[chosen])


def _corner(places: list[Place]) -> str | None:
    """Return which corner all places are in, if there is one."""
    half = NUM_PLACES // 2
    corners = {
        f"at the {'top' if row < half else 'bottom'} {'left' if column < half else 'right'}"
        for column, row in places
    }
    return corners.pop() if len(corners) == 1 else None


def _relation(first: tuple[Place, ...], second: tuple[Place, ...]) -> str | None:
    """Return where the first group is, if there is one answer.

    It is "left of" the second if all of it is, and no group is wholly above the other.
    """
    relations = []
    for axis, names in enumerate((("left of", "right of"), ("above", "below"))):
        ones, others = ([place[axis] for place in places] for places in (first, second))
        if max(ones) < min(others):
            relations.append(names[0])
        elif min(ones) > max(others):
            relations.append(names[1])
    return relations[0] if len(relations) == 1 else None


def draw(scenes: list[Scene], random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Draw scenes on a dark, noisy background: [N, 3, height, width], from 0 to 255."""
    pictures = np.full((len(scenes), 3, PICTURE_SIZE, PICTURE_SIZE), 0.1, dtype=np.float32)
    for picture, scene in zip(pictures, scenes, strict=True):
        for group in scene.groups:
            color = np.array(_RGB[group.color], dtype=np.float32)[:, None, None]
            for place in group.places:
                shift = random.uniform(-_SHIFT, _SHIFT, 2)
                x, y = (_PLACE_SIZE * (i + 0.5) + d for i, d in zip(place, shift, strict=True))
                covered = _coverage(group, x, y)
                picture += covered * (random.uniform(0.8, 1.0) * color - picture)
        picture += random.normal(0, _NOISE, picture.shape)
    return (255 * pictures.clip(0, 1)).astype(np.uint8)


def _coverage(group: Group, x: float, y: float) -> Array:
    """Return the share of each pixel [height, width] that a shape around (x, y) covers, about."""
    pixels = np.arange(PICTURE_SIZE, dtype=np.float32) + 0.5
    dx, dy, radius = pixels[None] - x, pixels[:, None] - y, _RADIUS[group.size]
    match group.kind:
        case "circle":
            outside = np.hypot(dx, dy) - radius
        case "square":
            outside = np.maximum(abs(dx), abs(dy)) - 0.9 * radius
        case "triangle":  # its tip is above
            outside = np.maximum(0.9 * abs(dx) - 0.45 * (dy + radius), dy - 0.9 * radius)
    return (0.5 - outside).clip(0, 1)


def encode(caption: str) -> list[int]:
    """Return the token ids of a caption, and EOS."""
    return [*(_FIRST_WORD + WORDS.index(word) for word in caption.split()), EOS]


def decode(tokens: tuple[int, ...] | list[int]) -> str:
    """Return the caption of token ids without EOS."""
    return " ".join(WORDS[token - _FIRST_WORD] for token in tokens)


def without_where(caption: str) -> str:
    """Return a caption without the words that say where a group is."""
    return _WHERE.sub("…", caption)
