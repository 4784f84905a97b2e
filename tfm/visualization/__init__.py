"""Training reports and pictures of attention, as self-contained HTML pages."""
