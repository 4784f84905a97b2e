"""The example of dialogues, at a tiny size."""

EXAMPLE = "memory_network/dialogues"


def test_the_example_trains_and_draws(example, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", f"_ --dialogues=10 --epochs=1 --out={tmp_path}".split())
    example.main()
    assert (tmp_path / "dialogues.svg").read_text().startswith("<?xml")


def test_questions_refer_to_the_last_person_named(example):
    alone, turns = (example.make(history, 0, 400, 1) for history in example.HISTORIES)
    for index, (turn, short) in enumerate(zip(turns, alone, strict=True)):
        said = [f"{each.question} {each.answer}" for each in turns[index - index % 4 : index]]
        assert turn.sentences == (*short.sentences, *said)
        moves = [each.split() for each in short.sentences if " to the " in each]
        places = {person: place for person, *_, place in moves}
        if turn.question.startswith("Where"):
            named = [word for word in " ".join([*said, turn.question]).split() if word in places]
            assert turn.answer == places[named[-1]]
