"""tfm export: model folder → a folder that CTranslate2 translates with."""
