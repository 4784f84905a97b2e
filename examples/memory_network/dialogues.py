"""Train memory networks to answer the questions of dialogues, which refer to earlier turns.

    python examples/memory_network/dialogues.py

Results are in dialogues.json beside this script; these are not computed again, so that the same
command continues after an interruption. The table is printed, the picture is dialogues.svg.
"""

import argparse
import json
import random
import statistics
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from dataset import Task
from networks import MemoryNetwork
from stories import MOVES, TAKES, Story, World, walk
from train import HERE, System, train

from tfm.disk.files import atomic_write, write_json
from tfm.plotting import Figure, drawing

HISTORIES = ("without history", "with history")
HOPS = (1, 2, 3)
NUM_TURNS = 4
KINDS = ("Where", "How many", "Who else")  # of questions that refer back
_DRAWN = 0  # the dialogue in the picture


def main() -> None:
    """Train what has no results yet, then print all; draw a network with history and three hops."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--dialogues", type=int, default=2_000, help="to train, and to test")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results and picture")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # operations are small
    path = arguments.out / "dialogues.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for seed, history, hops in product(arguments.seeds, HISTORIES, HOPS):
        if (key := f"{history}, {hops} hops, seed {seed}") not in results:
            task = Task(0, NUM_TURNS * arguments.dialogues, partial(make, history))
            system, start = System(hops, linear_start=True), time.process_time()
            network = train(task, system, seed=seed, num_epochs=arguments.epochs, title=key)
            seconds = round(time.process_time() - start, 1)
            results[key] = {**accuracies(network, task), "CPU seconds": seconds}
            write_json(path, results)
            if history == "with history" and hops == max(HOPS) and seed == arguments.seeds[0]:
                draw(network, task, arguments.out / "dialogues.svg")
    print("\n".join(table_lines(results)))


def make(history: str, _: int, num_turns: int, seed: int) -> list[Story]:
    """Make dialogues of four turns, each turn a story with a question.

    With history, each earlier question with its answer is a sentence after those of the story.
    """
    random_ = random.Random(seed)
    turns: list[Story] = []
    while len(turns) < num_turns:
        world = walk(random_, shortest=10, longest=20)
        if world.history_of:
            turns += _dialogue(world, history)
    return turns


def _dialogue(world: World, history: str) -> list[Story]:
    """Return the turns of a dialogue, each about the last person named; none if it gets stuck."""
    random_ = world.random
    events = [(e[0], " ".join(e[1:-2]), e[-1]) for e in map(str.split, world.sentences)]
    takes = [(person, thing) for person, verb, thing in events if verb in TAKES]
    turns: list[Story] = []
    earlier: list[str] = []
    person, asked = random_.choice(list(world.place_of)), {"Where"}
    question, answer = f"Where is {person}", world.place_of[person]
    if random_.random() < 0.5:
        thing = random_.choice([thing for _, thing in takes])
        person, asked = {thing: person for person, thing in takes}[thing], set()
        question, answer = f"Who took the {thing} last", person
    while True:
        memory = [*world.sentences, *(earlier if history == "with history" else ())]
        turns.append(Story(tuple(memory), question, answer))
        earlier.append(f"{question} {answer}")
        if len(turns) == NUM_TURNS:
            return turns
        here = world.place_of[person]
        others = [p for p, verb, place in events if verb in MOVES and place == here and p != person]
        follow_ups = [kind for kind in ("How many", "Where") if kind not in asked]
        if "Where" in asked and others and world.place_of[others[-1]] != here:
            follow_ups.append("Who else")  # came there last
        if not follow_ups:
            return []
        question = random_.choice(follow_ups)
        asked.add(question)
        if question == "Where":
            answer = here
        elif question == "How many":  # things he or she took
            answer = str(sum(taker == person for taker, _ in takes))
        else:
            answer = person = others[-1]
            asked = set()


@torch.no_grad()
def accuracies(network: MemoryNetwork, task: Task) -> dict[str, float]:
    """Return the percentage of right answers to test questions, by kind."""
    is_right = (network(task.test).argmax(1) == task.test.answers).tolist()
    by_kind: dict[str, list[bool]] = {"opening": [], **{kind: [] for kind in KINDS}}
    for turn, (story, each) in enumerate(zip(task.test_stories, is_right, strict=True)):
        kind = next((k for k in KINDS if turn % NUM_TURNS and k in story.question), "opening")
        by_kind[kind].append(each)
    return {kind: 100 * statistics.mean(answers) for kind, answers in by_kind.items()}


def table_lines(results: dict[str, Any]) -> list[str]:
    """Return a Markdown table of accuracy in percent, the mean over seeds ± deviation."""
    columns = ["opening", *KINDS, "CPU seconds"]
    lines = [f"| questions | hops | {' | '.join(columns)} |", "|" + "---|" * (2 + len(columns))]
    for history, hops in product(HISTORIES, HOPS):
        start = f"{history}, {hops} hops, "
        runs = [run for key, run in results.items() if key.startswith(start)]
        figures = [[run[column] for run in runs] for column in columns if runs]
        cells = [
            f"{statistics.mean(each):.1f} ± {_deviation(each):.1f}" for each in figures if each
        ]
        lines.append(f"| {history} | {hops} | {' | '.join(cells)} |")
    return lines


def _deviation(figures: list[float]) -> float:
    return statistics.stdev(figures) if len(figures) > 1 else 0.0


@torch.no_grad()
def draw(network: MemoryNetwork, task: Task, path: Path) -> None:
    """Draw where the hops of each question of a test dialogue look."""
    turns = task.test_stories[NUM_TURNS * _DRAWN :][:NUM_TURNS]
    logits, attention = network.run(task.batch(turns))
    sentences = turns[-1].sentences
    with drawing({"svg.hashsalt": "tfm", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 5), layout="constrained")
        axes = figure.subplots(1, NUM_TURNS, sharey=True)
        for axis, turn, answer, hops in zip(axes, turns, logits.argmax(1), attention, strict=True):
            panel = torch.zeros(len(sentences), len(hops))  # in the order of the story
            panel[: len(turn.sentences)] = hops[:, : len(turn.sentences)].flip(1).mT
            axis.imshow(panel.numpy(), aspect="auto", cmap="Greys", vmin=0, vmax=1)
            title = f"{turn.question}?\n{task.words[int(answer)]}\n(correct: {turn.answer})"
            axis.set(title=title, xlabel="hop", yticks=range(len(sentences)))
            axis.set_xticks(range(len(hops)), range(1, 1 + len(hops)))
        axes[0].set_yticklabels(sentences)
        with atomic_write(path) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
