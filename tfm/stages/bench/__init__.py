"""tfm bench: how fast the stages are that take long, one module for each."""
