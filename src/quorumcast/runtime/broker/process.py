"""`python -m quorumcast.runtime.broker.process '{"manifest": …}'`: a broker as a child process.

Used by `quorumcast.testing.LocalCluster` and `quorumcast up`: the settings are one JSON object, so
nothing depends on the options of the command line. A `UsageError` ends with one sentence on
standard error and exit code 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from quorumcast.core.errors import UsageError
from quorumcast.runtime.broker.broker import BrokerSettings, serve_broker


def _to_path(kind: type, value: Any) -> Any:
    return Path(value) if kind is Path else value


def encode_settings(settings: BrokerSettings) -> str:
    """Settings as the one argument of the child."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decode_settings(text: str) -> BrokerSettings:
    """The settings in that argument."""
    return msgspec.json.decode(text, type=BrokerSettings, dec_hook=_to_path)


def main() -> None:
    """Run a broker until it is told to stop."""
    try:
        serve_broker(decode_settings(sys.argv[1]))
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
