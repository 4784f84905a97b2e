"""Documents, whose paragraphs are translated sentence by sentence."""
