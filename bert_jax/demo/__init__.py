"""The demo: from the documentation at hand to a fine-tuned classifier."""
