"""Constituency trees: read from brackets, normalized, and linearized for a model.

The sentence "Anna sleeps ." and its tree, in brackets and linearized:

    (S (NP-SBJ (NNP Anna)) (VP (VBZ sleeps)) (. .))
    (S (NP XX )NP (VP XX )VP XX )S
"""
