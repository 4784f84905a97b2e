"""Backends: what is installed into a model from outside, to compute it faster on one device."""
