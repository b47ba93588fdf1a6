"""Problems found in the input of a build."""

_MAX_LINES = 20


class Problems:
    """Parts of the input that were left out, and hints about how to read it.

    Attributes:
      count: Number of problems. Each cost a line, or the rest of a file.
      lines: Messages about the first problems; each names the file.
      hints: Possible mistakes in how the input is read. They cost nothing.
    """

    def __init__(self):
        self.count = 0
        self.lines: list[str] = []
        self.hints: list[str] = []

    def add(self, line: str) -> None:
        """Report a part of the input that is left out."""
        self.count += 1
        if len(self.lines) < _MAX_LINES:
            self.lines.append(line)

    def hint(self, line: str) -> None:
        """Report a possible mistake once."""
        if line not in self.hints:
            self.hints.append(line)
