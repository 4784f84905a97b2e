"""Model folders: weights, settings, subword model and, in checkpoints, the training state.

    runs/NAME/checkpoints/step-00001000/{model.safetensors, config.json, bpe.model,
                                         training.safetensors}
    runs/NAME/averaged/{model.safetensors, config.json, bpe.model}

A folder appears under its name only when it is complete and on disk. Every file is verified before
it is used, and none of them can contain code.
"""
