"""Text in, text out: batches of lines, translated by models on a device."""
