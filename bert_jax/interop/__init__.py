"""Parameters of other projects, in and out."""
