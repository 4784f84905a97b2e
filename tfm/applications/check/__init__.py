"""tfm check: how a model translates text that is not as clean as its test set."""
