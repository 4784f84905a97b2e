"""The example of the memory network, at a tiny size."""

import json

import pytest
import torch

EXAMPLE = "memory_network"


def test_the_example_trains_and_scores_and_is_not_repeated(example, tmp_path, monkeypatch, capsys):
    arguments = ["--stories", "40", "--epochs", "1", "--seeds", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["train.py", *arguments])
    example.main()
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results) == sum(len(system.tasks) for system in example.SYSTEMS.values())
    table = capsys.readouterr().out
    assert "Brian is a frog. | " in table
    monkeypatch.setattr(example, "train", None)  # nothing is trained again
    example.main()
    assert capsys.readouterr().out == table


def test_a_memory_network_learns_to_find_one_fact(example):
    task = example.Task(1, 500)
    network = example.train(task, example.System(1), seed=1, num_epochs=40, title="")
    assert example.accuracy(network, task.test) > 0.95


def test_attention_sums_to_one_and_not_to_padding_which_changes_no_answer(example):
    task = example.Task(2, 20)
    network = example.MemoryNetwork(task.bags, task.num_slots, num_hops=3)
    _, attention = network.run(task.test)
    assert torch.allclose(attention.sum(2), torch.ones(20, 3))
    is_padding = torch.arange(attention.size(2)) >= task.test.num_slots[:, None]
    assert attention.mT[is_padding].count_nonzero() == 0
    for model in (network, example.Transformer(task.bags, task.num_slots).eval()):
        story = task.test.rows(torch.tensor([0]))
        short = story._replace(slots=story.slots[:, : int(story.num_slots)])
        torch.testing.assert_close(model(short), model(task.test)[:1], rtol=0, atol=1e-5)


def test_each_hop_changes_the_answer(example):
    task = example.Task(2, 20)
    network = example.MemoryNetwork(task.bags, task.num_slots, num_hops=3)
    before = network(task.test)
    for hop in range(1, 4):  # the vectors that are added by a hop
        with torch.no_grad():
            network.times[hop] += 1.0
        after = network(task.test)
        assert not torch.allclose(before, after)
        before = after


@pytest.mark.parametrize("temporal", [True, False])
def test_the_order_of_sentences_counts_with_temporal_encoding_only(example, temporal):
    task = example.Task(2, 20)
    network = example.MemoryNetwork(task.bags, task.num_slots, num_hops=2, temporal=temporal)
    story = task.test.rows(torch.tensor([0]))
    num_slots = int(story.num_slots)
    reverse = story._replace(slots=story.slots[:, :num_slots].flip(1))
    assert torch.allclose(network(story), network(reverse), atol=1e-6) != temporal


def test_positions_of_words_are_encoded_as_in_the_paper(example):
    from networks import encode_positions, sentence_vectors

    words = torch.randn(5, example.MemoryNetwork(torch.zeros(2, 1, 5), 1, num_hops=1).words.size(2))
    sentence = [3, 1, 3, 0]
    bags = encode_positions([[], sentence], vocab_size=5)
    vectors = sentence_vectors(bags, words)
    width, length = words.size(1), len(sentence)
    assert vectors[0].count_nonzero() == 0
    for k in range(1, width + 1):
        expected = sum(
            ((1 - j / length) - (k / width) * (1 - 2 * j / length)) * words[word, k - 1]
            for j, word in enumerate(sentence, start=1)
        )
        torch.testing.assert_close(vectors[1, k - 1], expected)


def test_empty_memories_do_not_change_the_order_of_a_story(example):
    torch.manual_seed(1)
    task = example.Task(3, 50)
    noisy = example.add_empty(task.train, task.num_empty)
    num_empty = noisy.num_slots - task.train.num_slots
    assert num_empty.sum() > 0
    assert num_empty.max() <= task.num_empty
    for before, after in zip(task.train.slots, noisy.slots, strict=True):
        assert after[after > 0].tolist() == before[before > 0].tolist()


@pytest.mark.parametrize("task", [1, 2, 3, 15, 16])
def test_answers_follow_from_stories(example, task):
    from stories import make

    stories = make(task, 200, seed=7)
    assert stories == make(task, 200, seed=7)
    assert stories != make(task, 200, seed=8)
    for story in stories:
        assert answers(task, story) == {story.answer}


def test_the_frogs_are_a_story_of_their_task(example):
    assert answers(example.FROGS_TASK, example.FROGS) == {"yellow"}


def answers(task: int, story) -> set[str]:
    """Return what the sentences of a story say, read again without the simulation."""
    facts = [sentence.split() for sentence in story.sentences]
    question = story.question.split()
    if task <= 3:
        return {answer_by_replay(task, facts, question)}
    if task == 15:
        plurals = {"mice": "mouse", "cats": "cat", "wolves": "wolf", "sheep": "sheep"}
        feared = {plurals[f[0]]: plurals[f[-1]] for f in facts if "afraid" in f}
        [species] = [f[-1] for f in facts if f[0] == question[2] and "a" in f]
        return {feared[species]}
    species = {f[0]: f[-1] for f in facts if "a" in f}
    colors = {f[0]: f[-1] for f in facts if "a" not in f}
    assert question[-1] not in colors
    kin = {name for name, kind in species.items() if kind == species[question[-1]]}
    return {colors[name] for name in kin if name in colors}


def answer_by_replay(task: int, facts: list[list[str]], question: list[str]) -> str:
    places, holders, histories = {}, {}, {}
    for person, *verb, _, noun in facts:
        if noun in {"apple", "football", "milk"}:
            if verb[0] in {"took", "got", "grabbed", "picked"}:
                assert noun not in holders
                holders[noun] = person
                history = histories.setdefault(noun, [places[person]])
                assert history[-1] == places[person]
            else:
                assert holders.pop(noun) == person
        else:
            places[person] = noun
            for thing, holder in holders.items():
                if holder == person:
                    histories[thing].append(noun)
    if task == 1:
        return places[question[-1]]
    if task == 2:
        return histories[question[-1]][-1]
    history = histories[question[3]]
    last = max(i for i, place in enumerate(history) if place == question[-1])
    return history[last - 1]
