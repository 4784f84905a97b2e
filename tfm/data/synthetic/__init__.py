"""A parallel corpus that the package writes itself: numbers, dates, times, prices and things.

It needs no download and is learnt within minutes, yet it has real difficulties of translating
English to German: compounds whose parts change places, gender, case and number, the endings of
adjectives, and verbs that come before their subject. Each English sentence has exactly one
translation, so the share of exact matches means something.
"""

from tfm.data.synthetic.corpus import Split, generate_pairs

__all__ = ["Split", "generate_pairs"]
