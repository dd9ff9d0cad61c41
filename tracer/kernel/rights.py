"""Rights by which the daemon sees what others run; without one it runs, and sees less."""

from __future__ import annotations

_OTHERS = "servers of other users: what they run, have open and have mapped"
_DAC_OVERRIDE = 1
SIGHT = {
    "CAP_DAC_READ_SEARCH": (2, _OTHERS),
    "CAP_FOWNER": (3, "how much of the weights is in the page cache"),
    "CAP_SYS_PTRACE": (19, _OTHERS),
}
"""Number of each, and what is not seen without it."""
ADVICE = (
    "give it: the unit as shipped has it in AmbientCapabilities and CapabilityBoundingSet "
    "(systemctl cat ttftd shows what changes that), a container needs --cap-add"
)


def blind(mask: int) -> dict[str, str]:
    """Those that a set of effective capabilities lacks, with what is not seen for it."""
    if mask >> _DAC_OVERRIDE & 1:
        mask |= 1 << SIGHT["CAP_DAC_READ_SEARCH"][0]
    return {name: unseen for name, (bit, unseen) in SIGHT.items() if not mask >> bit & 1}
