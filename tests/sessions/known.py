"""What is known to differ and is not mended yet. The aim is an empty list.

A fix takes its class out of `KNOWN`: from then on random rounds have its features, and its kept rounds must be equal.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A class of rounds that fail."""

    name: str
    features: tuple
    """What the generator leaves out meanwhile."""
    cases: tuple = ()
    """Kept rounds (files in `cases/`) that fail for this reason."""


KNOWN = [
    Known(
        "names of settings that the scan cannot read",
        ("quoted names", "comments", "names of three parts", "computed names", "backslashes", "prepared settings"),
        ("backslash-in-a-value", "computed-name", "execute-that-sets", "quoted-name", "name-with-blanks", "name-of-three-parts", "long-name"),
    ),
    Known("more names than a list holds", ("many names",), ("many-names-in-one-statement", "many-names-in-one-string")),
    Known("a custom setting of the startup packet", ("custom startup parameters",), ("custom-startup-parameter",)),
    Known(
        "the unnamed statement of another client",
        ("unnamed without parse",),
        ("unnamed-statement-of-another", "unnamed-statement-closed", "unnamed-statement-after-a-failed-parse"),
    ),
    Known(
        "names prepared by SQL and by protocol",
        ("mixed names", "pipelined rollback", "prepared in a body", "pg_prepared_statements"),
        ("describe-of-execute", "execute-close-parse", "name-prepared-twice-in-a-body", "rollback-and-a-name", "word-copy-in-a-string"),
    ),
    Known(
        "startup values after a reset",
        ("errors in a group", "resets in a body", "null settings"),
        ("discard-and-an-error", "reset-commit-and-an-error", "reset-in-a-body", "null-setting", "set-names"),
    ),
    Known("notices of a Parse", ("long identifiers",), ("notice-of-parse",)),
]

UNFOLLOWED = {"is_superuser", "search_path"}
"""Parameters whose reports are not compared yet: those of what the pooler replays are passed on. (PostgreSQL 18 reports search_path.)"""
