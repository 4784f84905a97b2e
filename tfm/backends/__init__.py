"""Backends: implementations of a model's layers, in plain torch or faster on a CPU."""
