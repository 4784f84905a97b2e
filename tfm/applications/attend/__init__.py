"""tfm attend: a page and figures of attention weights."""
