"""The errors lrbi raises on purpose; ``lrbi.cli`` maps each family to an exit code."""


class LrbiError(Exception):
    """Anything lrbi refuses or fails at knowingly. Its text is a whole sentence for the user."""


class InputError(LrbiError, ValueError):
    """A value, a file or a combination of options that lrbi cannot work with."""


class CheckFailedError(LrbiError):
    """A result differs from its reference."""


class MissingToolError(LrbiError):
    """A library or program that is not installed; the text says how to get it."""
