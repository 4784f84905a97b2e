"""Compare an exported model with its original on the same lines."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress, count, islice
from pathlib import Path

import torch

from tfm.applications.export import Format
from tfm.applications.export.programs import PROGRAMS, Program, Translation
from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import CheckpointError, DataError
from tfm.folders.model_folder import ModelFolder, NoSplitError
from tfm.text.lines import read_lines
from tfm.text.segments import SOURCE
from tfm.translation.chain import Chain
from tfm.translation.engine import Engine
from tfm.translation.engines import MAX_DIFFERENCES
from tfm.translation.steps import Output, Segment
from tfm.vocabulary.subword import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A line that tfm (`ours`) and the other program (`theirs`) translate differently.

    At the maximum length, CTranslate2 omits EOS, but tfm appends it and counts its probability.
    """

    line_number: int  # counted from 1
    ours: str
    theirs: str
    gain: float  # log probability of theirs minus that of ours, in nats
    is_cut: bool  # theirs has the maximum length


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The comparison of the exported model with the original on the same lines."""

    program: str  # that runs the exported model
    num_lines: int  # that are not empty
    differences: Sequence[Difference]
    max_error: float  # of the log probability of a token of tfm's translations, in nats
    beam_size: int

    def require_close(self, out_dir: Path) -> None:
        """Raise CheckpointError if probabilities differ by more than rounding."""
        if not self.max_error <= MAX_DIFFERENCES["fp32"]:  # NaN is not close either
            raise CheckpointError(
                f"{out_dir} is not written: log probabilities of {self.program} differ from tfm's "
                f"by up to {self.max_error:.3g} nats per token: try another version of "
                f"{self.program}"
            )


def lines_to_check(model: ModelFolder, number: int, path: Path | None = None) -> list[str]:
    """Return the first lines of a file, or of the test set of a model; DataError without any."""
    advice = "give text with --check-input, or leave --check out"
    if path is None:
        with suppress(NoSplitError):
            path, _ = model.split("test", advice=advice)
    lines = []
    if path is not None:
        lines = [
            line.decode() for line in islice(read_lines(path, strict=True, part=SOURCE), number)
        ]
    if not any(line.strip() for line in lines):
        where = path or f"{Path(model.info.data_dir)}, the model's dataset"
        raise DataError(f"there is no test set from {model.info.source} in {where}: {advice}")
    return lines


def compare(
    model: ModelFolder, export_dir: Path, lines: Sequence[str], format_: Format = "ctranslate2"
) -> Agreement:
    """Translate lines with tfm in fp32 and with the other program, with equivalent settings.

    Empty lines are ignored. Without length penalty, which programs define differently, all stop
    once no better hypothesis is possible. PAD, BOS and UNK are not forbidden to CTranslate2, which
    would renormalize the other probabilities; a trained model does not produce them.
    """
    info, vocabulary = model.info, model.vocabulary
    cleaned = vocabulary.clean(lines)
    numbered = {number: line for number, line in enumerate(cleaned, start=1) if line}
    lines = list(numbered.values())
    equivalent = {"search": "beam", "length_penalty": 0.0, "num_groups": 1, "n_best": 1}
    if format_ == "onnx":  # its files have no search: greedy is the simplest
        equivalent["beam_size"] = 1
    config = SearchConfig.for_model(info.search, equivalent)
    program = PROGRAMS[format_](export_dir, vocabulary, config)
    inference = InferenceConfig(device="cpu", precision="fp32")
    engine = Engine.start([model], inference, owns_process=False)
    chain = Chain(engine=engine, vocabulary=vocabulary)
    max_positions = getattr(info.run.model, "learned_positions", None)
    ours = [best for [best] in chain.search_lines(lines, config)]
    theirs = _translate(program, lines, _limits(lines, vocabulary, config, max_positions))
    texts = vocabulary.outputs(their.token_ids for their in theirs)
    # Encoding a translation may give more pieces than the search, and too many to score.
    lengths = map(len, vocabulary.target.encode([our.text for our in ours]))
    fits = [max_positions is None or length < max_positions for length in lengths]
    scored_lines = list(compress(lines, fits))
    targets = [our.text for our in compress(ours, fits)]
    segments = list(map(Segment, count(1), scored_lines, targets))
    [(_, scored)] = chain.run([segments], config, scores_given=True)
    return Agreement(
        program=program.name,
        num_lines=len(lines),
        differences=[
            Difference(
                line_number=number,
                ours=our.text,
                theirs=text,
                gain=their.log_prob - our.log_prob,
                is_cut=their.is_cut,
            )
            for number, our, their, text in zip(numbered, ours, theirs, texts, strict=True)
            if our.text != text
        ],
        max_error=_max_error(program, scored_lines, [each for [each] in scored], vocabulary),
        beam_size=config.beam_size,
    )


def _limits(
    lines: Sequence[str], vocabulary: Vocabulary, config: SearchConfig, max_positions: int | None
) -> list[int]:
    """Return the maximum number of tokens of each translation, without EOS."""
    lengths = [min(len(ids), config.max_source_length) for ids in vocabulary.source.encode(lines)]
    limits = [length + config.max_extra_length for length in lengths]
    return [limit if max_positions is None else min(limit, max_positions - 1) for limit in limits]


def _translate(program: Program, lines: Sequence[str], limits: Sequence[int]) -> list[Translation]:
    """Translate lines; other programs have one maximum length per call, tfm one per sentence."""
    translations: dict[int, Translation] = {}
    for limit in set(limits):
        indices = [index for index, each in enumerate(limits) if each == limit]
        results = program.translate([lines[index] for index in indices], limit)
        translations.update(zip(indices, results, strict=True))
    return [translations[index] for index in range(len(lines))]


def _max_error(
    program: Program, lines: Sequence[str], ours: Sequence[Output], vocabulary: Vocabulary
) -> float:
    """Return the maximum difference in the log probability of a token of tfm's translations."""
    targets = [vocabulary.target.ids(our.pieces[:-1]) for our in ours]
    errors = [
        abs(our_log_prob - their_log_prob)
        for our, theirs in zip(ours, program.log_probs(lines, targets), strict=True)
        for our_log_prob, their_log_prob in zip(our.piece_log_probs or (), theirs, strict=True)
    ]
    return float(torch.tensor([0.0, *errors]).max())  # unlike Python's max, propagates NaN
