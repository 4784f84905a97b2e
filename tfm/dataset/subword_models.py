"""The step learn-bpe: training text of a dataset → its subword models."""

from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from tfm.config import SubwordConfig, Values
from tfm.dataset.manifest import Manifest
from tfm.dataset.rerun import is_due
from tfm.disk.files import atomic_write, write_text
from tfm.errors import DataError
from tfm.reporting import say
from tfm.vocabulary.foreign import load_subword_models
from tfm.vocabulary.learning import learn_subword_models
from tfm.vocabulary.subword import model_paths

STEP = "learn-bpe"


def update(manifest: Manifest, config: SubwordConfig, *, force: bool = False) -> bool:
    """Learn the subword models of a dataset; return False if text and settings are unchanged."""
    data_dir = manifest.data_dir
    symbols = dict.fromkeys([*(config.symbols or "").split(), *manifest.text_tags()])
    config = replace(config, symbols=" ".join(symbols) or None)
    files = manifest.shard_files(["train"], appended=False)
    if not files:
        raise DataError(f"{data_dir} has no training text: run tfm prepare first")
    source, target = zip(*files, strict=True)
    models = load_subword_models([Path(each) for each in config.subwords])
    inputs: Values
    if models:
        inputs = {"subwords": [model.fingerprint for model in models]}
    else:
        settings = {name: value for name, value in asdict(config).items() if name != "subwords"}
        sides = chain.from_iterable(files)
        fingerprints = {path.name: manifest.text_fingerprint(path) for path in sides}
        inputs = {"text": fingerprints, "settings": settings}
    needed = ("settings", "subwords", "text")
    if not is_due(manifest, STEP, inputs, output=data_dir, needed=needed, force=force):
        return False
    models = models or learn_subword_models(source, target, config)
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
