"""Compare the translations of `tfm generate` with those of a reference beam search.

The reference has no cache, batches or kernels: it runs the model on a source and the whole prefix
of each hypothesis, takes a softmax of the logits and sorts all continuations. Each sentence whose
best translations differ is listed with their scores; it is a float tie if the scores are equal
except for rounding. Then the text is translated in other orders and batches, which must not change
the translations either. The exit status is 1 if translations differ that are no ties.

    .venv/bin/python benchmarks/same_search.py --model runs/mine --text test.en --beams 1 4 8
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from tfm.config import DeviceName, InferencePrecision, SearchConfig
from tfm.data.subword import BOS, EOS, PAD, UNK, Vocabulary
from tfm.data.text import read_lines
from tfm.device.compute import choose_compute
from tfm.inference import engine as inference
from tfm.inference.batches import Chunk, SentenceEncoder, by_line
from tfm.inference.engine import load_models
from tfm.model.build import load_model
from tfm.model.transformer import Transformer
from tfm.search.scoring import Hypothesis, length_penalty
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import find_model

_TIE = 1e-4  # scores with a smaller relative difference are equal except for rounding
_MAX_TOKENS = (100, 1_000, 20_000)

# Token ids, BOS first, and their log probability.
Prefix = tuple[tuple[int, ...], float]
# The translations of a sentence that are compared.
Pair = tuple[Hypothesis, Hypothesis]


def main() -> None:
    """Compare the two at each beam size, and print Markdown."""
    arguments = _arguments()
    folder = find_model(arguments.model)
    lines = (line.decode() for line in read_lines(arguments.text, strict=True))
    text = list(islice((line for line in lines if line.strip()), arguments.lines))
    engine = Engine(folder, device=arguments.device)
    reference = ReferenceSearch(folder)
    print(f"{arguments.model}, {len(text):,} sentences of {arguments.text}, fp32\n")
    print("| beam | differ | of these float ties | reference, seconds | tfm, seconds |")
    print("|---|---|---|---|---|")
    differences, repeated = [], []
    compared: list[Pair] = []
    for beam in arguments.beams:
        config = SearchConfig(beam_size=beam, length_penalty=arguments.length_penalty)
        start = time.perf_counter()
        expected = [reference.best(line, config) for line in text]
        middle = time.perf_counter()
        found = engine.best(text, config)
        end = time.perf_counter()
        pairs = list(zip(found, expected, strict=True))
        seconds = f"{middle - start:.1f} | {end - middle:.1f}"
        print(f"| {beam} | {_count(pairs)} | {seconds} |", flush=True)
        differences += [
            f"- beam {beam}, sentence {number}: {_scores(*pair)}"
            for number, pair in enumerate(pairs, 1)
            if pair[0].tokens != pair[1].tokens
        ]
        compared += pairs
        for name, pairs in _repeat(engine, text, config, found):
            repeated.append(f"| {beam} | {name} | {_count(pairs)} |")
            compared += pairs
    print("\n" + "\n".join(differences or ["No sentence differs."]))
    print("\n| beam | repeated with | differ | of these float ties |\n|---|---|---|---|")
    print("\n".join(repeated))
    if any(one.tokens != other.tokens and not _is_tie(one, other) for one, other in compared):
        raise SystemExit(1)


class Engine:
    """The engine of `tfm generate`.

    Args:
        folder: A model folder.
        device: The device.
        precision: Precision of matrix products.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: DeviceName,
        precision: InferencePrecision = "fp32",
    ) -> None:
        compute = choose_compute(device, precision)
        self._engine = inference.Engine(load_models([folder], compute), compute)
        self._vocabulary = Vocabulary.load(folder, normalizes_space=False)

    def best(self, text: list[str], config: SearchConfig) -> list[Hypothesis]:
        """Return the best translation of each line."""
        encoder = SentenceEncoder(self._vocabulary, self._engine.limits, config)
        batches = encoder.to_search(Chunk(line_numbers=range(len(text)), lines=text))
        found = by_line(batches, (self._engine.search(batch, config) for batch in batches))
        return [found[number][0] for number in range(len(text))]


class ReferenceSearch:
    """Beam search of one sentence at a time, straight from the definition.

    Args:
        folder: A model folder.
    """

    def __init__(self, folder: Path) -> None:
        model = load_model(folder, load_info(folder)).eval()
        if not isinstance(model, Transformer):
            raise SystemExit(f"{folder} holds no Transformer")
        self._model = model
        self._source = Vocabulary.load(folder).source

    @torch.inference_mode()
    def best(self, line: str, config: SearchConfig) -> Hypothesis:
        """Return the best translation of a line."""
        [ids] = self._source.encode([line])
        source = [*ids, EOS]
        max_length = len(source) + config.max_extra_length
        if self._model.max_positions is not None:
            max_length = min(max_length, self._model.max_positions)
        max_penalty = length_penalty(max_length, config.length_penalty)
        finished: list[Hypothesis] = []
        active: list[Prefix] = [((BOS,), 0.0)]
        best_score = -torch.inf
        for length in range(1, max_length + 1):
            chosen = self._best(
                config.beam_size,
                source,
                active,
                may_end=length > config.min_length,
                must_end=length == max_length,
            )
            penalty = length_penalty(length, config.length_penalty)
            finished += [
                Hypothesis(tokens=tokens[1:-1], log_prob=log_prob, score=log_prob / penalty)
                for tokens, log_prob in chosen
                if tokens[-1] == EOS
            ]
            active = [prefix for prefix in chosen if prefix[0][-1] != EOS]
            best_score = max((output.score for output in finished), default=-torch.inf)
            # Log probabilities only fall, and the maximum length has the greatest divisor.
            if all(log_prob / max_penalty <= best_score for _, log_prob in active):
                break
        return max(finished, key=lambda hypothesis: hypothesis.score)

    def _best(
        self,
        size: int,
        source: list[int],
        prefixes: list[Prefix],
        *,
        may_end: bool,
        must_end: bool,
    ) -> list[Prefix]:
        """Return the most probable continuations of prefixes by one token."""
        totals = torch.stack(
            [self._log_probs(source, tokens) + log_prob for tokens, log_prob in prefixes]
        )
        if must_end:
            totals[:, :EOS] = totals[:, EOS + 1 :] = -torch.inf
        elif not may_end:
            totals[:, EOS] = -torch.inf
        ordered, indices = totals.flatten().sort(descending=True, stable=True)
        best = zip(ordered[:size].tolist(), indices[:size].tolist(), strict=True)
        return [
            ((*prefixes[index // totals.size(1)][0], index % totals.size(1)), log_prob)
            for log_prob, index in best
            if log_prob > -torch.inf
        ]

    def _log_probs(self, source: list[int], tokens: tuple[int, ...]) -> Tensor:
        """Return log probabilities [V] of the next token; -inf for tokens never produced."""
        lengths = torch.tensor([len(source)])
        hidden_states = self._model(torch.tensor([source]), lengths, torch.tensor([tokens]))
        log_probs: Tensor = self._model.logits(hidden_states)[0, -1].log_softmax(dim=-1)
        log_probs[[PAD, BOS, UNK]] = -torch.inf
        return log_probs


def _repeat(
    engine: Engine, text: list[str], config: SearchConfig, found: list[Hypothesis]
) -> Iterator[tuple[str, list[Pair]]]:
    """Translate in other orders and batches; yield their names and the pairs to compare."""
    for seed in range(3):
        order = random.Random(seed).sample(range(len(text)), len(text))
        again = engine.best([text[i] for i in order], config)
        yield (
            f"random order {seed}",
            [(found[i], each) for i, each in zip(order, again, strict=True)],
        )
    for max_tokens in _MAX_TOKENS:
        again = engine.best(text, replace(config, max_tokens=max_tokens))
        yield f"--max-tokens {max_tokens:,}", list(zip(found, again, strict=True))


def _count(pairs: list[Pair]) -> str:
    differing = [pair for pair in pairs if pair[0].tokens != pair[1].tokens]
    return f"{len(differing)} | {sum(_is_tie(*pair) for pair in differing)}"


def _is_tie(one: Hypothesis, other: Hypothesis) -> bool:
    return abs(one.score - other.score) <= _TIE * abs(other.score)


def _scores(found: Hypothesis, expected: Hypothesis) -> str:
    kind = "a float tie" if _is_tie(found, expected) else "not a tie"
    return f"tfm {found.score:.6f}, reference {expected.score:.6f}, {kind}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="model or run folder")
    parser.add_argument("--text", type=Path, required=True, help="text, one sentence per line")
    parser.add_argument("--lines", type=int, default=500, help="number of sentences")
    parser.add_argument(
        "--beams", type=int, nargs="+", default=[1, 4, 8], help="beam sizes to compare"
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="device of tfm's search"
    )
    parser.add_argument("--length-penalty", type=float, default=0.6, help="exponent α, at least 0")
    return parser.parse_args()


if __name__ == "__main__":
    main()
