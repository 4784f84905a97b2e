"""The stages of tfm, one file per command."""
