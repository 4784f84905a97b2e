"""Translator: text in, text out."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tfm.backends.plain import Backend
from tfm.backends.selection import inference_backend, verified_compute
from tfm.config import DeviceName, InferencePrecision, Kernels, SearchConfig
from tfm.data.subword import Vocabulary
from tfm.device.compute import Compute
from tfm.errors import UsageError
from tfm.inference.batches import Chunk
from tfm.inference.engine import Engine, load_models
from tfm.inference.lines import ScoredTarget, Translation, score_lines, translate_lines
from tfm.model.build import Model
from tfm.storage.checkpoint.model_folder import load_info
from tfm.storage.checkpoint.run_folder import find_model


class Translator:
    """Translates plain text with one model or an ensemble.

    Args:
        models: At least one model, on the device.
        vocabulary: The vocabulary of all of them.
        compute: Device and arithmetic.
        default_search: How to search where nobody says otherwise.
        backend: What to compute the models' layers with; those made for inference on the device
            if not given.
    """

    def __init__(
        self,
        models: Sequence[Model],
        vocabulary: Vocabulary,
        compute: Compute,
        *,
        default_search: SearchConfig | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._engine = Engine(models, compute, backend=backend)
        self._vocabulary = vocabulary
        self._default_search = default_search or SearchConfig()

    @classmethod
    def load(
        cls,
        path: Path | str,
        *more_paths: Path | str,
        device: DeviceName = "auto",
        precision: InferencePrecision = "auto",
        kernels: Kernels = "auto",
    ) -> "Translator":
        """Read models from disk.

        Args:
            path: A model or run folder.
            *more_paths: Others, which make an ensemble with it.
            device: Where to compute.
            precision: Arithmetic of matrix products.
            kernels: Operations of the layers: "fast" ones, "plain" ones, or "auto", which takes
                fast ones where they have been measured to be.

        Raises:
            CheckpointError: A folder holds no sound model, or models differ in vocabulary.
            UsageError: The settings do not suit this machine.
        """
        compute = verified_compute(device, precision)
        backend = inference_backend(compute, kernels)
        folders = [find_model(Path(folder)) for folder in (path, *more_paths)]
        models = load_models(folders, compute)
        default_search = SearchConfig.for_model(load_info(folders[0]).search, {})
        return cls(
            models,
            Vocabulary.load(folders[0]),
            compute,
            default_search=default_search,
            backend=backend,
        )

    def translate(self, lines: Iterable[str], config: SearchConfig | None = None) -> list[str]:
        """Translate sentences.

        Args:
            lines: Plain text, a sentence each; empty ones stay empty.
            config: How to search; as suits the model if not given.

        Returns:
            The best translation of each, in one line: a line end in it becomes a space.
        """
        return [best[0].text for best in self.search(lines, config)]

    def search(
        self,
        lines: Iterable[str],
        config: SearchConfig | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        first_line: int = 1,
    ) -> list[list[Translation]]:
        """Translate sentences, with scores and alternatives.

        A prefix is cut into pieces by itself, and the translation goes on after its last piece,
        which may be within a word: after "Haus" may come "tür". Pieces carry the space before their
        word, so a prefix should not end in one.

        Args:
            lines: Plain text, a sentence each; empty ones stay empty, unless they have a prefix.
            config: How to search; as suits the model if not given.
            prefixes: For each sentence the text that its translations must start with; empty where
                they are free.
            first_line: Number of the first line, for messages and for what is drawn at random.

        Returns:
            For each sentence its `n_best` translations, best first.

        Raises:
            UsageError: The settings contradict each other.
            DataError: A line or prefix has more tokens than the model can take, or there are more
                prefixes than lines, or fewer.
        """
        chunk = Chunk(first_line=first_line, lines=list(lines), paired_lines=prefixes)
        config = self._checked(config)
        [(_, found)] = translate_lines(self._engine, self._vocabulary, [chunk], config)
        return found

    def score_targets(
        self,
        lines: Iterable[str],
        targets: Sequence[str],
        config: SearchConfig | None = None,
        *,
        first_line: int = 1,
    ) -> list[ScoredTarget]:
        """Compute how probable given translations are.

        They are cut into pieces as any text is. A translation that a search found has here the
        search's log probability and score, unless it was spelled with other pieces.

        Args:
            lines: Plain text, a sentence each.
            targets: A translation of each.
            config: Length penalty, longest source and size of batches; as suits the model if not
                given.
            first_line: Number of the first line, for messages.

        Raises:
            DataError: A line or target has more tokens than the model can take, or there are more
                targets than lines, or fewer.
        """
        chunk = Chunk(first_line=first_line, lines=list(lines), paired_lines=targets)
        config = self._checked(config)
        [(_, scored)] = score_lines(self._engine, self._vocabulary, [chunk], config)
        return scored

    def _checked(self, config: SearchConfig | None) -> SearchConfig:
        config = config or self._default_search
        if problems := list(config.problems()):
            raise UsageError("; ".join(problems))
        return config
