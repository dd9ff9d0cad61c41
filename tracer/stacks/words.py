"""Names of functions as they are shown. Pure.

They were made by others, so are of any length and hold any characters.
"""

from __future__ import annotations

import re

NAME_MAX = 96
#: What compilers and versions add at the end.
_ADDED = re.compile(
    r"( \[clone [^\]]*\]|\.(constprop|isra|part|cold|lto_priv)(\.\d+)*|@@?[\w.]+|::h[0-9a-f]{16})+$"
)
_ANONYMOUS = "(anonymous namespace)"


def shown(name: str) -> str:
    """Without template arguments, parameters, return type and odd characters, cut at 96."""
    text = "".join(c if c.isprintable() else "?" for c in name[: 8 * NAME_MAX]).strip()
    text = _bare(_ADDED.sub("", text)) or text
    return text if len(text) <= NAME_MAX else text[: NAME_MAX - 1] + "…"


def _bare(text: str) -> str:
    kept: list[str] = []
    depth, at = 0, 0
    while at < len(text):
        here = text[at]
        after_operator = depth == 0 and _operator_at(text, at, kept)
        if text.startswith(_ANONYMOUS, at):
            if depth == 0:
                kept.append("(anonymous)")
            at += len(_ANONYMOUS)
            continue
        if after_operator:
            kept.append(after_operator)
            at += len(after_operator)
            continue
        if here == "<":
            depth += 1
        elif here == ">" and depth:
            depth -= 1
        elif here == "(" and depth == 0:
            break
        elif depth == 0:
            kept.append(here)
        at += 1
    bare = "".join(kept).strip()
    return bare if "operator" in bare else bare.rpartition(" ")[2]


def _operator_at(text: str, at: int, kept: list[str]) -> str:
    """The signs of an operator's name that begin here; empty where none do."""
    if text[at] not in "<>-(" or not "".join(kept[-9:]).rstrip().endswith("operator"):
        return ""
    for signs in ("()", "<=>", "<<=", ">>=", "->*", "<<", ">>", "->", "<=", ">=", "<", ">"):
        if text.startswith(signs, at):
            return signs
    return ""
