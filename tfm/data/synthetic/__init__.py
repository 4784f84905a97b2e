"""Text that the package writes itself, to learn from and to test with, without a download.

Pairs of numbers, dates, times, prices and things in English and German have real difficulties of
translating: compounds whose parts change places, gender, case and number, the endings of
adjectives, and verbs that come before their subject. Each English sentence has exactly one
translation, so the share of exact matches means something.

Trees have real difficulties of parsing: where phrases belong is told by words, by agreement or by
punctuation. Each sentence has exactly one tree.
"""
