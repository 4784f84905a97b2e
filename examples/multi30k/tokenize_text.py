"""Lowercase, normalize and tokenize standard input as Moses does, line by line.

Usage: python tokenize_text.py en < train.en
"""

import sys

from sacremoses import MosesPunctNormalizer, MosesTokenizer


def main() -> None:
    """Write tokenized lines in the language of the first argument."""
    language = sys.argv[1]
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    for line in sys.stdin:
        words = normalizer.normalize(line.strip().lower())
        print(tokenizer.tokenize(words, escape=False, return_str=True))


if __name__ == "__main__":
    main()
