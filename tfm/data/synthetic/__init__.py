"""A generated corpus, to learn and test with, without a download.

The English-German pairs show real difficulties of translation: compounds whose parts change places,
gender, case, number, adjective endings and verbs before their subject. Each English sentence has
exactly one translation, so that the fraction of exact matches is meaningful.
"""
