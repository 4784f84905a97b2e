"""Model folders: weights, settings, subword model and, while training, the state to go on from.

    runs/NAME/checkpoints/step-00001000/{model.safetensors, config.json, bpe.model,
                                         training.safetensors}
    runs/NAME/averaged/{model.safetensors, config.json, bpe.model}

A folder appears under its name only when it is complete and on the disk. Every file is checked
before it is used; nothing in any of them can be code.
"""
