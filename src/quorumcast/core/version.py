"""The version of this program, for those below the package that say it."""

__version__ = "0.1.0"
