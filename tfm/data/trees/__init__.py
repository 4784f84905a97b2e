"""Constituency trees: read from brackets, normalized, and written as symbols that a model learns.

The sentence "Anna sleeps ." and its tree, in brackets and as symbols:

    (S (NP-SBJ (NNP Anna)) (VP (VBZ sleeps)) (. .))
    (S (NP XX )NP (VP XX )VP XX )S
"""
