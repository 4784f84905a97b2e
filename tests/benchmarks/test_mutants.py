"""The script that changes the package in one place at a time, to see what its tests notice."""

import ast
from collections import Counter

import mutants

SOURCE = '''
def scale(x: int = 3, *, name: str | None = None) -> int:
    """Return "1 + 2" of a text."""
    if not x > 1 and name in ("a", "ä"):
        raise ValueError(f"{x + 1} é")
    x += 1
    print(x * 2)
    return x // 2

def choose(a, b, kind):
    if kind:
        return max(a, -b)
    match b:
        case float():
            return round(a, b) if a else b
    try:
        return 7
    except OSError:
        return None
'''


def test_mutants_change_one_place_each_and_no_text_or_type():
    found = mutants.mutants_of("tfm/x.py", SOURCE)
    assert {(each.line, each.before, each.after) for each in found} >= {
        (2, "3", "4"),
        (2, "None", "0"),
        (4, "not x > 1", "(x > 1)"),
        (4, "x > 1", "(x >= 1)"),
        (4, 'name in ("a", "ä")', "(name not in ('a', 'ä'))"),
        (4, 'not x > 1 and name in ("a", "ä")', "(not x > 1 or name in ('a', 'ä'))"),
        (4, 'not x > 1 and name in ("a", "ä")', "(not (not x > 1 and name in ('a', 'ä')))"),
        (5, 'raise ValueError(f"{x + 1} é")', "pass"),
        (6, "x += 1", "pass"),
        (7, "print(x * 2)", "pass"),
        (7, "x * 2", "(x // 2)"),
        (6, "x += 1", "x -= 1"),
        (8, "x // 2", "None"),
        (11, "kind", "False"),
        (12, "max(a, -b)", "max(-b, a)"),
        (12, "max", "min"),
        (12, "-b", "(b)"),
        (14, "float()", "float() if False"),
        (15, "round(a, b)", "round(b, a)"),
        (15, "a", "True"),
        (18, "OSError", "()"),
    }
    for each in found:
        assert SOURCE.encode()[each.start : each.end].decode() == each.before
        ast.parse(each.applied())
    assert not [each for each in found if each.before.startswith(("int", "str", '"'))]


def test_mutants_are_drawn_by_a_seed_and_spread_over_the_modules(tmp_path):
    for name, copies in (("a", 1), ("b", 9)):
        (tmp_path / "tfm").mkdir(exist_ok=True)
        (tmp_path / f"tfm/{name}.py").write_text(SOURCE * copies, encoding="utf-8")
    drawn = mutants.draw(tmp_path, 20, seed=1)
    assert drawn == mutants.draw(tmp_path, 20, seed=1) != mutants.draw(tmp_path, 20, seed=2)
    numbers = [sum(each.path == f"tfm/{name}.py" for each in drawn) for name in "ab"]
    assert numbers[0] == 2
    assert numbers[1] > 14  # some may be drawn twice


def test_mutants_drawn_by_folder_come_from_each_in_turn(tmp_path):
    for name, copies in (("one", 1), ("two", 30), ("two/inner", 3)):
        (tmp_path / f"tfm/{name}").mkdir(parents=True)
        (tmp_path / f"tfm/{name}/a.py").write_text(SOURCE * copies, encoding="utf-8")
    drawn = mutants.draw_by_folder(tmp_path, 12, seed=1)
    assert drawn == mutants.draw_by_folder(tmp_path, 12, seed=1)
    assert drawn != mutants.draw_by_folder(tmp_path, 12, seed=2)
    assert Counter(each.path for each in drawn) == dict.fromkeys(
        ["tfm/one/a.py", "tfm/two/a.py", "tfm/two/inner/a.py"], 4
    )
