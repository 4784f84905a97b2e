"""Count the search errors of beam search (Stahlberg and Byrne 2019).

If exact search proves that an output is the best, a worse result of beam search is a search error.
Exact search starts from greedy search, independently of the beam. Run it on a model folder and a
text, or on test sentences of the synthetic corpus:

    .venv/bin/python benchmarks/search_errors.py runs/numbers-en-de-quickstart
    .venv/bin/python benchmarks/search_errors.py runs/mine --text test.en --length-penalty 0
"""

import statistics
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer

from tfm.config import SearchConfig
from tfm.data.subword import EOS, Vocabulary
from tfm.data.synthetic.corpus import generate_pairs
from tfm.data.text import read_lines
from tfm.model.build import load_model
from tfm.search.beam import beam_search
from tfm.search.exact import ExactResult, exact_search
from tfm.search.scoring import Hypothesis
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import find_model

_ROUNDING = 1e-4  # scores closer than this are equal


def main(
    model_path: Annotated[Path, typer.Argument(metavar="MODEL", help="Model or run folder.")],
    text: Annotated[
        Path | None,
        typer.Option(help="Text, one sentence per line; the synthetic test set if not given."),
    ] = None,
    sentences: Annotated[int, typer.Option(help="Number of sentences.", min=1)] = 50,
    beam: Annotated[int, typer.Option(help="Beam size to compare with.")] = 4,
    length_penalty: Annotated[float, typer.Option(help="Exponent α.")] = 0.6,
    max_extra_length: Annotated[
        int, typer.Option(help="Maximum number of tokens by which outputs exceed their source.")
    ] = 50,
    node_limit: Annotated[int, typer.Option(help="Maximum number of prefixes to extend.")] = 10_000,
) -> None:
    """Compare beam search with exact search."""
    exact = SearchConfig(
        search="exact",
        beam_size=1,
        length_penalty=length_penalty,
        max_extra_length=max_extra_length,
        node_limit=node_limit,
    )
    beam_config = replace(exact, search="beam", beam_size=beam)
    folder = find_model(model_path)
    model = load_model(folder, load_info(folder)).eval()
    source_model = Vocabulary.load(folder).source
    beam_seconds = exact_seconds = 0.0
    pairs: list[tuple[Hypothesis, ExactResult]] = []
    with torch.inference_mode():
        for ids in source_model.encode(_sentences(text, sentences)):
            source = torch.tensor([[*ids, EOS]])
            lengths = torch.tensor([source.size(1)])
            start = time.perf_counter()
            [[found]] = beam_search(model, source, lengths, beam_config)
            beam_seconds += time.perf_counter() - start
            start = time.perf_counter()
            [result] = exact_search(model, source, lengths, exact)
            exact_seconds += time.perf_counter() - start
            pairs.append((found, result))
    _report(pairs)
    print(f"seconds: beam {beam_seconds:.1f}, exact {exact_seconds:.1f}")


def _sentences(text: Path | None, num_sentences: int) -> list[str]:
    if text is None:
        return [english for english, _ in generate_pairs("test", num_pairs=num_sentences, seed=1)]
    lines = (line.decode() for line in read_lines(text, strict=True))
    return list(islice((line for line in lines if line.strip()), num_sentences))


def _report(pairs: list[tuple[Hypothesis, ExactResult]]) -> None:
    proven = [(found, result) for found, result in pairs if result.proven]
    gains = [result.hypotheses[0].score - found.score for found, result in proven]
    nodes = sorted(result.num_nodes for _, result in pairs)
    print(f"sentences: {len(pairs)}")
    print(f"proven: {len(proven)}, {len(proven) / len(pairs):.1%}")
    if proven:
        missed = sum(gain > _ROUNDING for gain in gains)
        empty = sum(not result.hypotheses[0].tokens for _, result in proven)
        print(f"of these, the beam missed the best: {missed}, {missed / len(proven):.1%}")
        print(f"of these, the best is empty: {empty}, {empty / len(proven):.1%}")
        print(f"of these, score of the best minus the beam's: {min(gains):.6f} to {max(gains):.6f}")
        print(f"exact search is never below the beam: {min(gains) >= -_ROUNDING}")
    print(
        f"nodes: {sum(nodes):,} in total, median {statistics.median(nodes):,.0f}, max {nodes[-1]:,}"
    )


if __name__ == "__main__":
    typer.run(main)
