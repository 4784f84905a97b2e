"""Generated corpora, to learn and test with, without a download.

The English-German pairs show real difficulties of translation: compounds whose parts change places,
gender, case, number, adjective endings and verbs before their subject. Each English sentence has
exactly one translation, so that the fraction of exact matches is meaningful.

The treebank shows real difficulties of parsing: words, agreement or punctuation determine where
phrases attach. Each sentence has exactly one tree.
"""
