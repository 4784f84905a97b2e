"""Attention weights as serve and attend show them."""
