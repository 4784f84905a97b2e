"""Model folders: weights, settings, subword model and, while training, the state to go on from.

    runs/NAME/checkpoints/step-00001000/{model.safetensors, config.json, bpe.model,
                                         training.safetensors}
    runs/NAME/averaged/{model.safetensors, config.json, bpe.model}

A folder appears under its name only when it is complete and on the disk. Every file is checked
before it is used; nothing in any of them can be code.
"""

from tfm.storage.checkpoint.model_folder import (
    SCORES,
    DamagedCheckpointError,
    Metric,
    ModelInfo,
    average_weights,
    check_model,
    load_info,
    load_training_state,
    load_weights,
    save_checkpoint,
)
from tfm.storage.checkpoint.run_folder import (
    best_checkpoints,
    checkpoint_path,
    checkpoints,
    find_model,
    newest_run,
    newest_step,
    newest_whole_checkpoint,
    prune_checkpoints,
)

__all__ = [
    "SCORES",
    "DamagedCheckpointError",
    "Metric",
    "ModelInfo",
    "average_weights",
    "best_checkpoints",
    "check_model",
    "checkpoint_path",
    "checkpoints",
    "find_model",
    "load_info",
    "load_training_state",
    "load_weights",
    "newest_run",
    "newest_step",
    "newest_whole_checkpoint",
    "prune_checkpoints",
    "save_checkpoint",
]
