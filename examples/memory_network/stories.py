"""Made-up stories with one question each, in the style of bAbI tasks 1, 2, 3, 15 and 16.

The tasks are those of Weston et al. 2015 ("Towards AI-Complete Question Answering"); the sentences
come from the small simulation below, not from their data.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PEOPLE = ("Mary", "John", "Sandra", "Daniel")
_PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
_THINGS = ("apple", "football", "milk")
MOVES = ("moved to", "went to", "journeyed to", "travelled to")
TAKES = ("took", "got", "grabbed", "picked up")
_DROPS = ("dropped", "left", "discarded", "put down")

_PLURALS = {"mouse": "mice", "cat": "cats", "wolf": "wolves", "sheep": "sheep"}
_GIRLS = ("Emily", "Gertrude", "Jessica", "Winona")

_ANIMALS = ("Bernhard", "Brian", "Greg", "Julius", "Lily")
_SPECIES = ("frog", "lion", "rhino", "swan")
_COLORS = ("gray", "green", "white", "yellow")
_LEFT_OUT = 0.3  # of the sentences of task 16 that the answer does not need


@dataclass(frozen=True)
class Story:
    """Sentences in order, without full stops; a question; an answer of one word."""

    sentences: tuple[str, ...]
    question: str
    answer: str


FROGS_TASK = 16
# The example of Sukhbaatar et al. 2015 for task 16, as lectures quote it.
FROGS = Story(
    ("Brian is a frog", "Lily is gray", "Brian is yellow", "Julius is green", "Greg is a frog"),
    "What color is Greg",
    "yellow",
)


def make(task: int, num_stories: int, seed: int) -> list[Story]:
    """Make distinct stories of a task."""
    random_ = random.Random(seed)
    stories: dict[Story, None] = {}
    while len(stories) < num_stories:
        story = TASKS[task](random_)
        if story is not None:
            stories[story] = None
    return list(stories)


@dataclass
class World:
    """People who walk about and carry things.

    Attributes:
        sentences: What happened.
        place_of: Where each person is who has moved.
        carrier_of: Who carries a thing.
        history_of: The places where a thing is known to have been, each different from the next.
    """

    random: random.Random
    sentences: list[str] = field(default_factory=list)
    place_of: dict[str, str] = field(default_factory=dict)
    carrier_of: dict[str, str] = field(default_factory=dict)
    history_of: dict[str, list[str]] = field(default_factory=dict)

    def move(self) -> None:
        """Let somebody walk to another place with all that they carry."""
        person = self.random.choice(PEOPLE)
        place = self.random.choice([p for p in _PLACES if p != self.place_of.get(person)])
        self.place_of[person] = place
        for thing, carrier in self.carrier_of.items():
            if carrier == person:
                self.history_of[thing].append(place)
        self.sentences.append(f"{person} {self.random.choice(MOVES)} the {place}")

    def take_or_drop(self) -> None:
        """Let somebody drop a thing or take one that lies there; else, walk."""
        things = [t for t in _THINGS if t in self.carrier_of or self._takers(t)]
        if not things:
            return self.move()
        thing = self.random.choice(things)
        if thing in self.carrier_of:
            person, verbs = self.carrier_of.pop(thing), _DROPS
        else:
            person, verbs = self.random.choice(self._takers(thing)), TAKES
            self.carrier_of[thing] = person
            self.history_of.setdefault(thing, [self.place_of[person]])
        self.sentences.append(f"{person} {self.random.choice(verbs)} the {thing}")
        return None

    def _takers(self, thing: str) -> list[str]:
        """Return who can take a thing: all whose place is known, until its own place is known."""
        history = self.history_of.get(thing)
        return [p for p, place in self.place_of.items() if not history or history[-1] == place]

    def story(self, question: str, answer: str) -> Story:
        """Return what happened, with a question."""
        return Story(tuple(self.sentences), question, answer)


def _one_fact(random_: random.Random) -> Story:
    """Make a story of task 1: Where is Mary?"""
    world = World(random_)
    for _ in range(random_.randint(2, 10)):
        world.move()
    person = random_.choice(list(world.place_of))
    return world.story(f"Where is {person}", world.place_of[person])


def _two_facts(random_: random.Random) -> Story | None:
    """Make a story of task 2: Where is the milk? None if nobody took anything."""
    world = walk(random_, shortest=4, longest=16)
    if not world.history_of:
        return None
    thing = random_.choice(list(world.history_of))
    return world.story(f"Where is the {thing}", world.history_of[thing][-1])


def _three_facts(random_: random.Random) -> Story | None:
    """Make a story of task 3: Where was the milk before the office? None if nothing moved."""
    world = walk(random_, shortest=8, longest=24)
    travelled = [thing for thing, places in world.history_of.items() if len(places) > 1]
    if not travelled:
        return None
    thing = random_.choice(travelled)
    places = world.history_of[thing]
    # The last time that it came to each place.
    arrivals = [i for i in range(1, len(places)) if places[i] not in places[i + 1 :]]
    arrival = random_.choice(arrivals)
    question = f"Where was the {thing} before the {places[arrival]}"
    return world.story(question, places[arrival - 1])


def walk(random_: random.Random, *, shortest: int, longest: int) -> World:
    """Let people walk, take and drop things."""
    world = World(random_)
    for _ in range(random_.randint(shortest, longest)):
        random_.choice((world.move, world.take_or_drop))()
    return world


def _deduction(random_: random.Random) -> Story:
    """Make a story of task 15: What is Emily afraid of?"""
    feared_by = {s: random_.choice([o for o in _PLURALS if o != s]) for s in _PLURALS}
    species_of = {girl: random_.choice(list(_PLURALS)) for girl in _GIRLS}
    sentences = [f"{_PLURALS[s]} are afraid of {_PLURALS[o]}" for s, o in feared_by.items()]
    sentences += [f"{girl} is a {species}" for girl, species in species_of.items()]
    girl = random_.choice(_GIRLS)
    question = f"What is {girl} afraid of"
    return Story(_shuffled(sentences, random_), question, feared_by[species_of[girl]])


def _induction(random_: random.Random) -> Story | None:
    """Make a story of task 16: What color is Greg? None if no other is of his species."""
    species_of = {animal: random_.choice(_SPECIES) for animal in _ANIMALS}
    colors = random_.sample(_COLORS, len(_COLORS))
    color_of = dict(zip(_SPECIES, colors, strict=True))
    asked = random_.choice(_ANIMALS)
    twins = [a for a in _ANIMALS if a != asked and species_of[a] == species_of[asked]]
    if not twins:
        return None
    twin = random_.choice(twins)
    sentences = []
    for animal, species in species_of.items():
        told = [f"{animal} is a {species}"]
        if animal != asked:
            told.append(f"{animal} is {color_of[species]}")
        is_needed = animal in {asked, twin}
        sentences += [s for s in told if is_needed or random_.random() > _LEFT_OUT]
    question = f"What color is {asked}"
    return Story(_shuffled(sentences, random_), question, color_of[species_of[asked]])


def _shuffled(sentences: Sequence[str], random_: random.Random) -> tuple[str, ...]:
    return tuple(random_.sample(sentences, len(sentences)))


TASKS: dict[int, Callable[[random.Random], Story | None]] = {
    1: _one_fact,
    2: _two_facts,
    3: _three_facts,
    15: _deduction,
    16: _induction,
}
