"""What is reported about the input of a build."""


class Problems:
    """Parts of the input that were left out, and hints about how to read it.

    Attributes:
      count: Number of problems. Each cost a line, or the rest of a file.
      lines: The first problems, one line each, which names the file.
      hints: Possible mistakes in how the input is read. They cost nothing.
    """

    def __init__(self, limit: int = 20):
        self.count = 0
        self.lines: list[str] = []
        self.hints: list[str] = []
        self._limit = limit

    def add(self, line: str) -> None:
        """Report a part of the input that is left out."""
        self.count += 1
        if len(self.lines) < self._limit:
            self.lines.append(line)

    def hint(self, line: str) -> None:
        """Report a possible mistake; the same one counts once."""
        if line not in self.hints:
            self.hints.append(line)
