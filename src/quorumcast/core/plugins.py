"""Parts that other packages bring: found by name through entry points, loaded at first use.

A `Registry` stands for one kind of part. Built-in parts are listed by the module that defines the
registry; those of installed packages are entry points of its group. Nothing is searched or imported
until a name is asked for that is not built in, so commands that use no plug-in pay nothing. A
plug-in names the version of the contract that it was written for; another one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from quorumcast.core.errors import UsageError, did_you_mean

#: Names may become parts of file names, addresses and policies.
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry point names: one part, and the version of the contract that it keeps."""

    contract: int


P = TypeVar("P", bound=Plugin)


class Registry(Generic[P]):
    """The parts of one kind, built in and installed."""

    __slots__ = ("_built_in", "_contract", "_group", "_kind", "_loaded", "_type")

    def __init__(
        self,
        group: str,
        kind: str,
        type_: type[P],
        contract: int,
        built_in: Mapping[str, str],
    ) -> None:
        self._group = group
        #: What users call such a part.
        self._kind = kind
        self._type = type_
        #: The version of the contract that this version of Quorumcast keeps.
        self._contract = contract
        #: `module:attribute` by name; empty for a part that is not made by a plug-in.
        self._built_in = dict(built_in)
        self._loaded: dict[str, P] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._built_in or name in self._loaded or name in self._installed()

    def names(self) -> tuple[str, ...]:
        """Every name: built-in ones first, then those of installed packages."""
        return (*self._built_in, *sorted(self._installed()))

    def load(self, name: str) -> P:
        """The part with this name; raises `UsageError` if there is none that can be used."""
        found = self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = self._load(name)
        return found

    def unknown(self, name: str) -> UsageError:
        """The error for a name that is not there."""
        return UsageError(f"there is no {self._kind} {name!r}; {did_you_mean(name, self.names())}")

    def _installed(self) -> dict[str, list[str]]:
        """The values of the entry points by name, but for names of built-in parts."""
        # Slow to load, and its search walks every installed package.
        from importlib.metadata import entry_points

        found: dict[str, list[str]] = {}
        for entry in entry_points(group=self._group):
            # A package whose directory is listed twice on the path is found twice.
            if _NAME.fullmatch(entry.name) and entry.name not in self._built_in:
                values = found.setdefault(entry.name, [])
                values += [entry.value] if entry.value not in values else []
        return found

    def _load(self, name: str) -> P:
        values = [self._built_in[name]] if self._built_in.get(name) else None
        values = values or self._installed().get(name)
        if not values:
            raise self.unknown(name)
        if len(values) > 1:
            raise UsageError(
                f"{self._kind} {name!r} is in several installed packages "
                f"({', '.join(sorted(values))}); uninstall all but one"
            )
        found = self._import(name, values[0])
        if not isinstance(found, self._type):
            raise UsageError(
                f"{values[0]} is no {self._kind}: it must be a {self._type.__name__}, "
                f"not a {type(found).__name__}"
            )
        if found.contract != self._contract:
            raise UsageError(
                f"{self._kind} {name!r} keeps version {found.contract} of the contract, and this "
                f"version of Quorumcast version {self._contract}; install a package that fits"
            )
        return found

    def _import(self, name: str, value: str) -> object:
        from importlib import import_module

        module, _, attribute = value.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except Exception as error:  # code of others: anything may go wrong
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"{self._kind} {name!r} is installed as {value} and cannot be imported ({reason}); "
                "mend or uninstall that package"
            ) from error
