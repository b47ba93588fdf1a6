"""What was wrong with the input of a build, and left out."""


class Problems:
    """What was wrong with the input: counted in full, spelled out up to a limit."""

    def __init__(self, limit: int = 20):
        self.count = 0
        self.lines: list[str] = []
        self._limit = limit

    def add(self, line: str) -> None:
        """Note one problem, in a line that names the file."""
        self.count += 1
        if len(self.lines) < self._limit:
            self.lines.append(line)
