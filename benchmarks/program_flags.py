"""Flag parser and types of flags that the benchmarks share."""

import argparse


def make_parser(docstring):
    """Return a parser whose help begins with a docstring, and shows all defaults."""
    return argparse.ArgumentParser(description=docstring, formatter_class=_Formatter)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def _get_help_string(self, action):
        has_default = action.default and action.default != argparse.SUPPRESS
        return f"{action.help} (default: %(default)s)" if has_default else action.help


def positive(number):
    """Return the type of a positive number: `number` is int or float."""

    def read(text):
        if not (value := number(text)) > 0:
            raise argparse.ArgumentTypeError(f"{text} is not positive")
        return value

    read.__name__ = number.__name__  # for argparse's message
    return read


def names_of(known):
    """Return the type of a list of known names."""

    def read(text):
        given = [name for name in text.split(",") if name]
        if unknown := set(given) - set(known):
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
            )
        return given

    return read
