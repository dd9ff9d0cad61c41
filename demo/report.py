"""The demo's own tables: phases and verdicts by scenario. At most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from demo.checks import Case, Check
from tracer.derived import PHASES


def phases(cases: Sequence[Case]) -> Iterator[str]:
    """One line a scenario: where the milliseconds went. A phase that nobody had is left out."""
    used = [p for p in PHASES if p == "other" or any(c.answer["phases_ms"][p] for c in cases)]
    yield "time to first token and its phases, in ms"
    first = max(len(case.sent.scenario) for case in cases)
    widths = {phase: max(8, len(phase) + 1) for phase in used}
    yield f"{'':<{first}}{'ttft':>8}" + "".join(f"{phase:>{widths[phase]}}" for phase in used)
    for case in cases:
        phases = case.answer["phases_ms"]
        values = "".join(f"{_ms(phases[phase]):>{widths[phase]}}" for phase in used)
        yield f"{case.sent.scenario:<{first}}{_ms(case.answer['ttft_ms']):>8}{values}"


def _ms(value: float) -> str:
    if value == 0:
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def verdicts(cases: Sequence[Case]) -> Iterator[str]:
    """One line a scenario: slow or not, and why."""
    heads = f"{'slow':<6}{'grew first':<12}{'cause':<21}{'by the switch':<15}{'from disk':>9}"
    yield f"{'':<12}{heads}"
    for case in cases:
        spike = case.answer["spike"]
        read = case.answer["evidence"]["weights_bytes_from_disk"]
        fields = (
            f"{'yes' if spike['is_spike'] else 'no':<6}",
            f"{spike['first_expanded'] or '-':<12}",
            f"{spike['cause'] or '-':<21}",
            f"{_yes_no(spike['switch_is_cause']):<15}",
            f"{'?' if read is None else f'{read / 1e6:.1f} MB':>9}",
        )
        yield f"{case.sent.scenario:<12}{''.join(fields)}".rstrip()


def _yes_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[value]


def checked(found: Sequence[Check]) -> Iterator[str]:
    """One line a check, and one for each case where it does not hold."""
    for check in found:
        good = check.count - len(check.wrong)
        word = "FAILED" if check.wrong else "ok"
        yield f"  {word:<7}{check.name} ({good} of {check.count})"
        yield from (f"           {text}" for text in check.wrong)
