"""tfm serve: models behind the LibreTranslate protocol."""
