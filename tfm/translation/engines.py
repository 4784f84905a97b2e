"""The choice of an engine: torch, or CTranslate2 for plain searches on a CPU."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tfm.config import InferenceConfig, SearchConfig
from tfm.errors import CheckpointError, UsageError
from tfm.folders.model_folder import ModelFolder
from tfm.reporting import say
from tfm.translation.chain import BatchEngine
from tfm.translation.ctranslate2_files import obstacles_of, package_problem

# The largest difference of log probabilities, in nats per token: more than rounding in fp32, and
# what int8 weights change in a trained model, but less than that of two models.
MAX_DIFFERENCES = {"fp32": 1e-2, "int8": 1.0}
# With a higher one, the best output may end long after others, when CTranslate2 has stopped.
MAX_LENGTH_PENALTY = 1.0
# For a wider model, a server takes torch, which computes a sentence with all cores. CTranslate2 has
# one thread by default: two wait for each other, and take up to 20 times as long on a busy machine.
MAX_WIDTH = 128


@dataclass(frozen=True)
class EngineChoice:
    """The engine that computes, and why."""

    engine: Literal["torch", "ctranslate2"]
    reason: str

    def __str__(self) -> str:
        if self.engine == "torch":
            return f"torch ({self.reason})"
        import ctranslate2

        return f"CTranslate2 {ctranslate2.__version__} ({self.reason})"


def choose_engine(
    folders: Sequence[ModelFolder],
    search: SearchConfig,
    inference: InferenceConfig,
    *,
    serves: bool = False,
) -> EngineChoice:
    """Choose an engine by what the models, the search and the device need.

    By default, it is torch, except for `tfm serve`.

    Raises:
        UsageError: CTranslate2 is asked for by name, but does not support all of it.
    """
    if inference.engine == "torch":
        return EngineChoice("torch", "asked for")
    if inference.engine == "auto" and not serves:
        return EngineChoice("torch", "the default")
    obstacles = _obstacles(folders, search, inference)
    if inference.engine == "ctranslate2":
        if obstacles:
            raise refusal(obstacles)
        return EngineChoice("ctranslate2", "asked for")
    if obstacles:
        return EngineChoice("torch", f"CTranslate2 does not support {', '.join(obstacles)}")
    if (reason := _reason_for_torch(folders[0], inference)) is not None:
        return EngineChoice("torch", reason)
    return EngineChoice("ctranslate2", "installed and verified")


def _reason_for_torch(folder: ModelFolder, inference: InferenceConfig) -> str | None:
    """Return why a server takes torch for what both engines support; None if it does not."""
    if (problem := package_problem()) is not None:
        return problem
    import ctranslate2

    if inference.device == "auto" and ctranslate2.get_cuda_device_count():
        return "there is a GPU"
    if inference.precision == "int8":
        return "in int8, translations would differ"
    if folder.info.run.model.d_model > MAX_WIDTH:
        return f"d_model is above {MAX_WIDTH}"
    return None


def _obstacles(
    folders: Sequence[ModelFolder], search: SearchConfig, inference: InferenceConfig
) -> list[str]:
    """Return all that CTranslate2 does not support, in the words of the settings."""
    is_one = len(folders) == 1
    obstacles = obstacles_of(folders[0].info.run.model) if is_one else ["an ensemble"]
    obstacles += search_obstacles(search)
    if inference.device not in ("auto", "cpu"):
        obstacles.append(f"device {inference.device}")
    if inference.precision not in ("auto", *MAX_DIFFERENCES):
        obstacles.append(f"precision {inference.precision}")
    if inference.kernels != "auto":
        obstacles.append(f"kernels {inference.kernels}")
    return obstacles


def search_obstacles(config: SearchConfig) -> list[str]:
    """Return the settings of a search that need torch."""
    is_needed = {
        f"search {config.search}": config.search != "beam",
        f"num_groups {config.num_groups}": config.num_groups > 1,
        f"length_penalty {config.length_penalty:g}": config.length_penalty > MAX_LENGTH_PENALTY,
        "no_repeat_ngram": config.no_repeat_ngram is not None,
        "ban": config.ban is not None,
    }
    return [name for name, needs_torch in is_needed.items() if needs_torch]


def refusal(obstacles: Sequence[str]) -> UsageError:
    """Return the error that names all that CTranslate2 does not support."""
    return UsageError(
        f"--engine ctranslate2 does not support {', '.join(obstacles)}: use --engine torch"
    )


def start_ctranslate2(
    folder: ModelFolder,
    inference: InferenceConfig,
    start_torch: Callable[[], BatchEngine],
    *,
    num_workers: int = 1,
) -> BatchEngine:
    """Start CTranslate2 with a model, and verify it with the record of the model.

    `start_torch` is called for the first batch that CTranslate2 does not support.

    Raises:
        UsageError: CTranslate2 is not installed.
        CheckpointError: It computes something else than torch.
    """
    if (problem := package_problem(is_fp32=inference.precision != "int8")) is not None:
        raise UsageError(problem)
    from tfm.translation.ctranslate2_engine import CTranslate2Engine

    engine = CTranslate2Engine(
        folder.hold(), inference, num_workers=num_workers, start_torch=start_torch
    )
    known = folder.info.known
    difference = math.inf if known is None else engine.difference(known)
    most = MAX_DIFFERENCES["int8" if inference.precision == "int8" else "fp32"]
    if not difference <= most:  # NaN is wrong, too
        raise CheckpointError(
            f"CTranslate2 differs from torch by {difference:.3g} nats per token for {folder}: "
            "use --engine torch"
        )
    return engine


def start_engine(
    folders: Sequence[ModelFolder],
    search: SearchConfig,
    inference: InferenceConfig,
    *,
    serves: bool = False,
) -> tuple[BatchEngine, EngineChoice]:
    """Choose an engine for a server or a library, and start it; return it and the choice.

    If the model's record shows that CTranslate2 is wrong, torch is taken unless the other is asked
    for. A library leaves the number of torch's threads to its user.
    """
    torch = partial(start_torch, folders, inference, owns_process=serves)
    choice = choose_engine(folders, search, inference, serves=serves)
    if choice.engine == "ctranslate2":
        try:
            return start_ctranslate2(folders[0], inference, torch), choice
        except CheckpointError as error:
            if inference.engine == "ctranslate2":
                raise
            say(f"warning: {error}")
            choice = EngineChoice("torch", "CTranslate2 computes something else")
    return torch(), choice


def start_torch(
    folders: Sequence[ModelFolder], inference: InferenceConfig, *, owns_process: bool = True
) -> BatchEngine:
    """Start torch in this process; its modules are imported here."""
    from tfm.translation.engine import Engine

    return Engine.start(folders, inference, owns_process=owns_process)


def arithmetic_of(choice: EngineChoice, inference: InferenceConfig) -> dict[str, str]:
    """Return all of engine and machine that decides results."""
    if choice.engine == "ctranslate2":
        import ctranslate2

        precision = "fp32" if inference.precision == "auto" else inference.precision
        return {"ctranslate2": ctranslate2.__version__, "precision": precision}
    import torch

    from tfm.backends.selection import chosen_arithmetic

    return {"torch": torch.__version__, **chosen_arithmetic(inference)}
