"""The observer: what a node notices of its peers, from events and effects alone. n = 4, f = 1."""

from __future__ import annotations
