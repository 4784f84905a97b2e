"""Code of users outside of the checkout, which is named as MODULE:NAME: that of the page."""

import json
import re
import sys
from pathlib import Path

import pytest

from tfm import Translator, generate, train
from tfm.errors import UsageError

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "extend.md"
_MODEL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 32}
_RUN = {"arch": "tiny", **_MODEL, "num_heads": 2, "log_steps": 1, "average": False}


@pytest.fixture
def mine(elsewhere, monkeypatch):
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    (elsewhere / "mine.py").write_text("\n".join(code), encoding="utf-8")
    (elsewhere / "broken.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(elsewhere)
    yield elsewhere
    sys.modules.pop("mine", None)


def test_a_schedule_sets_the_rate_and_runs_only_if_it_is_named_again(mine, data_dir):
    named = {"lr_schedule": "mine:triangles", "validation_beam": 0, "best_metric": "loss"}
    train(data_dir, run="run", max_steps=3, warmup_steps=2, learning_rate=0.01, **named, **_RUN)
    lines = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert rates == pytest.approx([0.005, 0.01, 0.005])
    del sys.modules["mine"]
    with pytest.raises(UsageError, match="resume with --lr-schedule mine:triangles"):
        train(run="run", max_steps=4)
    assert Translator.load("run").translate(["one two"])
    assert "mine" not in sys.modules
    assert train(run="run", max_steps=4, lr_schedule="mine:triangles").step == 4


def losses(run):
    lines = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_a_loss_trains_and_is_counted_as_cross_entropy(mine, data_dir):
    with (mine / "mine.py").open("a") as file:
        file.write("def plain(logits, targets): return focal(logits.detach(), targets) * 0 + ")
        file.write("-logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]\n")
    settings = {**_RUN, "max_steps": 4, "precision": "fp32", "learning_rate": 0.01}
    train(data_dir, run="own", label_smoothing=0, **settings)
    train(data_dir, run="same", loss="mine:plain", **settings)
    train(data_dir, run="focal", loss="mine:focal", **settings)
    assert losses("same") == pytest.approx(losses("own"), rel=1e-4)
    assert losses("focal")[0] == losses("same")[0]  # before any update
    assert losses("focal")[-1] != losses("same")[-1]
    with pytest.raises(UsageError, match="resume with --loss mine:focal"):
        train(run="focal", max_steps=5)


def test_a_loss_of_another_shape_is_refused(mine, data_dir):
    (mine / "mine.py").write_text("def total(logits, targets):\n    return logits.sum()\n")
    with pytest.raises(UsageError, match=r"loss mine:total returns \[\], but must return \["):
        train(data_dir, run="run", loss="mine:total", max_steps=1, **_RUN)


def test_a_step_is_around_those_of_tfm(mine, trained_run):
    Path("in.en").write_text('one two\n"one two"\n', encoding="utf-8")
    plain, quoted = generate(trained_run, input="in.en", step="mine:Quotes")
    assert quoted == f'"{plain.removesuffix(chr(10))}"\n'


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Quotes", "no module nowhere"),
        ("mine:Quote", "mine has no Quote"),
        ("mine:triangles", "must be a class"),
        ("mine", "must be of the form MODULE:NAME"),
    ],
)
def test_a_name_without_code_of_its_kind_is_refused(mine, trained_run, name, message):
    Path("in.en").write_text("one two\n", encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        generate(trained_run, input="in.en", step=name)


def test_a_missing_import_of_the_users_module_is_not_hidden(mine, trained_run):
    Path("in.en").write_text("one two\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        generate(trained_run, input="in.en", step="broken:Quotes")


def test_a_rate_that_is_no_number_ends_the_run(mine, data_dir):
    Path("mine.py").write_text("def rate(step, run):\n    return float('nan')\n")
    with pytest.raises(UsageError, match="mine:rate returns nan for step 1"):
        train(data_dir, run="run", lr_schedule="mine:rate", max_steps=2, **_RUN)
