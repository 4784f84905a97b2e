"""Files, devices and what a person sees."""
