"""Translating and scoring text with trained models."""
