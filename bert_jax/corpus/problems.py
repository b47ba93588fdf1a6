"""What a build has to say about its input."""


class Problems:
    """What was wrong with the input, and hints about how to read it.

    Attributes:
      count: Number of problems; each cost a line or the rest of a file.
      lines: The first of the problems, each in a line that names the file.
      hints: What may be a mistake, each kind once. Nothing was left out for it.
    """

    def __init__(self, limit: int = 20):
        self.count = 0
        self.lines: list[str] = []
        self.hints: list[str] = []
        self._limit = limit

    def add(self, line: str) -> None:
        """Note that something was left out."""
        self.count += 1
        if len(self.lines) < self._limit:
            self.lines.append(line)

    def hint(self, line: str) -> None:
        """Note what may be a mistake."""
        if line not in self.hints:
            self.hints.append(line)
