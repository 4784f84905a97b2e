"""Event files for TensorBoard: the curves of metrics.jsonl, which never go back in steps."""

import json
import struct

import pytest

from tfm.commands.train import train_model
from tfm.training.metrics_log import EventFile, MetricsLog

pytest.importorskip("tensorboardX")


def events(folder):
    """The events in the only event file of a folder; checksums are not verified."""
    from tensorboardX.proto.event_pb2 import Event

    [path] = folder.glob("events.out.tfevents.*")
    content, found = path.read_bytes(), []
    while content:
        [size] = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + size]))
        content = content[16 + size :]
    return found


def curves(folder):
    """{tag: [(step, value)]} of an event file."""
    found = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def line(kind, step, **figures):
    return {"kind": kind, "step": step, "epoch": 1, "minutes": step / 10, **figures}


def test_finite_numbers_are_on_disk_at_once(tmp_path):
    file = EventFile(tmp_path)
    file.append(line("train", 1, loss=2.5, gradient_norm=float("nan"), text_pairs=[1], name="x"))
    assert curves(tmp_path) == {"train/loss": [(1, 2.5)]}
    assert events(tmp_path)[0].file_version == "brain.Event:2"  # without, no program reads them
    file.append(line("validation", 2, **{"bleu": 12.5, "general:loss": 3.0}))
    file.append({"kind": "skipped", "step": 2, "epoch": 1, "loss": "nan", "pairs": [1]})
    assert curves(tmp_path)["validation/general/loss"] == [(2, 3.0)]
    assert set(curves(tmp_path)) == {"train/loss", "validation/bleu", "validation/general/loss"}
    file.close()


def test_sample_translations_are_texts_in_which_markup_is_no_markup(tmp_path):
    sample = {"line": 7, "source": "# two *dogs*", "reference": "zwei Hunde", "output": "<b>狗</b>"}
    file = EventFile(tmp_path)
    file.append(line("validation", 5, loss=2.5, samples=[sample]))
    file.close()
    *_, event = events(tmp_path)
    [text] = [value for value in event.summary.value if value.HasField("tensor")]
    assert text.metadata.plugin_data.plugin_name == "text"
    assert text.tag.startswith("validation/sample 7")
    expected = "    # two *dogs*\n    zwei Hunde\n    <b>狗</b>"
    assert text.tensor.string_val == [expected.encode()]


def test_event_files_of_other_programs_stay(tmp_path):
    (tmp_path / "events.out.tfevents.1700000000.host").write_bytes(b"of another program")
    for _ in range(2):
        EventFile(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_resumed_run_continues_the_same_curves(tmp_path):
    log, file = MetricsLog(tmp_path, step=0), EventFile(tmp_path)
    for step in (1, 2, 3, 4):  # the last two after the checkpoint
        log.append(line("train", step, gradient_norm=float(step)))
        file.append(line("train", step, gradient_norm=float(step)))
    file.close()
    MetricsLog(tmp_path, step=2)
    file = EventFile(tmp_path)
    file.append(line("train", 3, gradient_norm=30.0))
    file.close()
    assert curves(tmp_path) == {"train/gradient_norm": [(1, 1.0), (2, 2.0), (3, 30.0)]}
    times = [event.wall_time for event in events(tmp_path)[1:]]
    assert times[1] - times[0] == pytest.approx(6)  # a tenth of a minute


def test_a_full_disk_ends_the_file_with_one_warning(tmp_path, monkeypatch, capsys):
    file = EventFile(tmp_path)

    def fail():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file._writer, "flush", fail)
    for step in (1, 2):
        file.append(line("train", step, loss=1.0))
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_training_writes_event_files_that_agree_with_metrics(data_dir, tiny_run, tmp_path):
    settings = {"checkpoint_steps": 2, "log_steps": 1, "tensorboard": True}
    for steps in (3, 5):
        train_model(data_dir, tmp_path / "run", tiny_run(training={"max_steps": steps, **settings}))
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    losses = {each["step"]: each["loss"] for each in lines if each["kind"] == "train"}
    written = curves(tmp_path / "run")
    assert [step for step, _ in written["train/loss"]] == [1, 2, 3, 4, 5]
    assert dict(written["train/loss"]) == pytest.approx(losses, rel=1e-6)
    assert "validation/loss" in written


def test_a_missing_package_is_named_before_anything_is_loaded(run, elsewhere, monkeypatch):
    monkeypatch.setattr("tfm.commands.train.find_spec", lambda _: None)
    (elsewhere / "data").mkdir()
    code, _, err = run("train", "data", "--tensorboard", "--processes", "2")
    assert (code, err.count("\n")) == (2, 1)
    assert "run pip install tensorboardx" in err
    assert run("train", "--arch", "tiny", "--tensorboard", "--print-config")[0] == 0
