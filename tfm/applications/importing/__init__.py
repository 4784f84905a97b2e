"""tfm import: a model of another program → an ordinary model folder."""
