"""Translations with the terms of a glossary."""
