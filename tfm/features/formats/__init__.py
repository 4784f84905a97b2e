"""Formats: the text in HTML, XML and subtitles is translated, and the rest copied."""
