"""tfm learn-bpe: training text of a dataset → its subword model."""

from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path

from tfm.config import SubwordConfig, Table
from tfm.config.values import differences
from tfm.dataset.manifest import Manifest
from tfm.dataset.text_parts import lock_dataset
from tfm.disk.files import atomic_write, write_text
from tfm.errors import DataError
from tfm.reporting import say
from tfm.stages.dataset_runs import check_runs
from tfm.text.lines import read_lines
from tfm.vocabulary import learning
from tfm.vocabulary.foreign import load_subword_models
from tfm.vocabulary.subword import SubwordModel, model_paths

STEP = "learn-bpe"
_UNUSED = ("threads", "subwords")  # settings without effect on a model that is learned


def learn_bpe(data_dir: Path, config: SubwordConfig, *, force: bool = False) -> bool:
    """Learn the subword model of a dataset; return False if text and settings are unchanged."""
    with lock_dataset(data_dir):
        return update_subword_models(Manifest.load(data_dir), config, force=force)


def update_subword_models(manifest: Manifest, config: SubwordConfig, *, force: bool) -> bool:
    """Do the work of `learn_bpe` for a caller that holds the lock of the folder."""
    data_dir = manifest.data_dir
    symbols = dict.fromkeys([*(config.symbols or "").split(), *manifest.text_tags()])
    config = replace(config, symbols=" ".join(symbols) or None)
    parts = list(manifest.part_sizes(appended=False)) or manifest.text_parts("train") or ["train"]
    texts = [list(side) for side in zip(*map(manifest.text_paths, parts), strict=True)]
    for path in chain(*texts):
        if not path.is_file():
            raise DataError(f"{path} does not exist: run tfm prepare first")
    models = load_subword_models([Path(each) for each in config.subwords])
    inputs: Table
    if models:
        inputs = {"subwords": [model.fingerprint for model in models]}
    else:
        settings = {name: value for name, value in asdict(config).items() if name not in _UNUSED}
        fingerprints = {path.name: manifest.text_fingerprint(path) for path in chain(*texts)}
        inputs = {"text": fingerprints, "settings": settings}
    if not force and manifest.is_current(STEP, inputs):
        say(f"learn-bpe: {data_dir} unchanged")
        return False
    if changes := _changes(manifest.inputs(STEP), inputs):
        check_runs(data_dir, changes, force=force)
        say(f"learn-bpe: {data_dir} again: {'; '.join(changes)}")
    models = models or _learn_models(texts, config)
    paths = model_paths(data_dir, separate=len(models) > 1)
    outputs = []
    for path, model in zip(paths, models, strict=True):
        vocab_path = path.with_suffix(".vocab")  # the pieces as text
        write_text(vocab_path, model.vocab_text())
        with atomic_write(path) as file:
            file.write(model.content)
        outputs += [path, vocab_path]
    for stale in model_paths(data_dir, separate=len(models) == 1):
        stale.unlink(missing_ok=True)
        stale.with_suffix(".vocab").unlink(missing_ok=True)
    sizes = [len(model) for model in models]
    result = {"vocab_sizes": sizes, "fingerprints": [model.fingerprint for model in models]}
    manifest.record(STEP, inputs=inputs, outputs=outputs, result=result)
    manifest.keep_settings(config)
    manifest.save()
    origin = f" of {' and '.join(config.subwords)}" if config.subwords else ""
    for path, size in zip(paths, sizes, strict=True):
        say(f"learn-bpe: {path} with {size:,} pieces{origin}")
    return True


def _changes(before: Table | None, after: Table) -> list[str]:
    """Describe how inputs of this step differ from those before, if there are any."""
    if before is None:
        return []
    changes = differences(before.get("settings", {}), after.get("settings", {}))
    if before.get("subwords") != after.get("subwords"):
        changes = ["another subword model is used"]
    is_other_text = "text" in before and "text" in after and before["text"] != after["text"]
    return [*changes, "the training text has changed"] if is_other_text else changes


def _learn_models(texts: list[list[Path]], config: SubwordConfig) -> list[SubwordModel]:
    """Learn a joint model, or models of source and target, from the parts of both sides."""
    source, target = texts
    more = f" and {len(source) - 1} more parts" if source[1:] else ""
    say(f"learn-bpe: learning from {source[0]} and {target[0]}{more}")
    if not config.separate:
        return [_learn(texts, config)]
    if config.target_words:
        target_model = learning.learn_word_model(target)
        return [_learn([source], config), target_model]
    target_config = replace(config, symbols=None)
    return [_learn([source], config), _learn([target], target_config)]


def _learn(texts: list[list[Path]], config: SubwordConfig) -> SubwordModel:
    """Learn one model; the default vocabulary size is reduced if the text is too small for it."""
    learn = partial(learning.learn_subword_model, [*chain(*texts)], config)
    if config.vocab_size is not None:
        return learn(vocab_size=config.vocab_size)
    num_pairs = sum(1 for path in texts[0] for _ in read_lines(path, strict=False))
    size = learning.default_vocab_size(num_pairs, for_trees=config.target_words)
    try:
        model = learn(vocab_size=size)
    except learning.VocabularySizeError as error:
        model = learn(vocab_size=error.nearest)
    say(
        f"learn-bpe: chose {len(model):,} pieces for {num_pairs:,} pairs (choose another number "
        "with --vocab-size)"
    )
    return model
