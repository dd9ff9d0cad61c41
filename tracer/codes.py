"""The one table of codes: phases, stages, causes, antecedents, reasons. Docs and tests read it.

`advice` is one sentence for the user; a code without advice never ends a verdict on its own.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tracer.derived import PHASES

What = Literal["phase", "stage", "cause", "why", "incomplete", "unreadable"]


class Code(msgspec.Struct, frozen=True):
    """`phase`: the phase it belongs to; `meaning`: one line."""

    code: str
    what: What
    phase: str | None
    meaning: str
    advice: str | None = None


#: Where several phases claim an instant, the first of these has it.
PRIORITY: tuple[str, ...] = (
    "load", "transfer", "init", "evict", "spawn", "prefill", "queue", "other",
)  # fmt: skip

_WARM = "Keep the model loaded: raise the keep-alive or idle time-out, or the number of models."
_ROOM = "Let both models stay loaded (raise the limit on models), or send both uses to one model."
_DISK = "Keep the weights on a faster disk, or leave enough free memory to keep them cached."
_SLOT = "Give the server more parallel slots, or spread requests that come at the same time."
_START = "Keep the runner alive between requests, so that starting it is not paid for each time."
_AWAKE = "Keep the device's driver ready (NVIDIA: persistence mode), or keep the runner alive."
_PROMPT = "Shorten the prompt, or keep its beginning unchanged so that the prompt cache is used."
_INIT = "Keep the model loaded; what it prepares after loading is paid again at each start."
_SHARED = "Another request was served in the same batch; fewer at a time make each one faster."


def _phase(code: str, meaning: str) -> Code:
    return Code(code, "phase", code, meaning)


def _stage(code: str, meaning: str, advice: str | None = None) -> Code:
    return Code(code, "stage", code.partition(".")[0], meaning, advice)


def _why(code: str, phase: str | None, meaning: str, advice: str | None = None) -> Code:
    return Code(code, "why", phase, meaning, advice)


def _gap(code: str, meaning: str) -> Code:
    return Code(code, "incomplete", None, meaning)


def _unreadable(code: str, meaning: str) -> Code:
    return Code(code, "unreadable", None, meaning)


PHASE_CODES = (
    _phase("queue", "the request waited"),
    _phase("evict", "the previous model was stopped and its memory given back"),
    _phase("spawn", "a runner was made ready to load"),
    _phase("load", "weights came in"),
    _phase("transfer", "weights went from host to device, not hidden behind load"),
    _phase("init", "weights were in place, the prompt was not started"),
    _phase("prefill", "from prompt start to the first token"),
    _phase("other", "unexplained before prompt start"),
)

# In each phase the finest or surest stage first: it wins an instant that two stages claim.
STAGE_CODES = (
    _stage("queue.socket", "bytes still arriving, or not yet read by the server",
           "The client or the network was slow to send, or the server slow to read."),
    _stage("queue.drain", "requests on another model had to end before the switch", _ROOM),
    _stage("queue.switch", "another model's start was in the way", _ROOM),
    _stage("queue.busy", "the runner was serving other requests", _SLOT),
    _stage("queue.front", "the front had the request and had not passed it on",
           "The front itself was slow; look at its load and its log for this time."),
    _stage("queue.rest", "waiting, not told apart", _SLOT),
    _stage("evict.stop", "the old runner was stopped",
           "Let both models stay loaded; the old runner is slow to stop."),
    _stage("evict.wait", "the old runner was gone, the new one not yet started", _ROOM),
    _stage("evict.rest", "eviction, not told apart", _ROOM),
    _stage("spawn.fit", "the runner looked at the weights to see what fits", _START),
    _stage("spawn.device", "devices were discovered and brought up", _AWAKE),
    _stage("spawn.exec", "the program was started and linked", _START),
    _stage("spawn.rest", "start of the runner, not told apart", _START),
    _stage("load.network", "weights came over the network",
           "Keep the weights on a local disk, or use a faster link to where they are."),
    _stage("load.disk", "weights came from the disk", _DISK),
    _stage("load.cache", "weights came from the page cache", _WARM),
    _stage("load.meta", "the file's header was parsed", _WARM),
    _stage("load.rest", "weights were copied or placed between reads", _WARM),
    _stage("transfer.h2d", "copies from host to device", _WARM),
    _stage("transfer.rest", "transfer, not told apart", _WARM),
    _stage("init.poll", "the runner was ready and the front had not noticed",
           "Have the front ask for readiness more often."),
    _stage("init.compile", "kernels or shaders were compiled",
           "Keep the compile cache on storage that survives a restart."),
    _stage("init.graph", "graphs were captured", _INIT),
    _stage("init.kv", "the key-value cache was allocated", _INIT),
    _stage("init.warmup", "a warm-up pass ran", _INIT),
    _stage("init.context", "the context was made", _INIT),
    _stage("init.rest", "context, buffers and warm-up, not told apart", _INIT),
    _stage("prefill.relay", "the first token was on its way through the front",
           "The front was slow to pass on the first token."),
    _stage("prefill.decode", "generation of a reply that is not streamed",
           "Ask for a streamed reply to see the first token sooner."),
    _stage("prefill.shared", "the prompt was worked on beside other requests", _SHARED),
    _stage("prefill.prompt", "the prompt was worked on", _PROMPT),
    _stage("prefill.tokenize", "the prompt was tokenised, nobody being ahead", _PROMPT),
    _stage("prefill.rest", "prefill, not told apart", _PROMPT),
    _stage("other.rest", "nothing that was seen explains this time"),
)  # fmt: skip

CAUSE_CODES = (
    Code("prefill.unexplained", "cause", "prefill",
         "the prompt took longer than its size explains, and nothing seen says why",
         "Look at what else used the processor, the device or the power budget at that time."),
    Code("prefill.contention", "cause", "prefill", "other processes used the processor",
         "Keep other heavy work off the machine, or give the server a higher CPU weight."),
    Code("prefill.throttled", "cause", "prefill",
         "a CPU quota, or the low clock of the device, held the server back",
         "Raise the CPU quota of the container or service, or use fewer threads; `power.clock` "
         "has what to do about a device."),
    Code("unknown", "cause", "other", "most of the excess is unexplained",
         "Run `ttft doctor` to see which probes are missing."),
)  # fmt: skip

WHY_CODES = (
    _why("evicted.pagecache", "load", "the weights had been dropped from the page cache",
         "Keep other reads from filling the page cache (run backups with direct I/O or a limit)."),
    _why("died.oom", "spawn", "the runner had been killed for lack of memory",
         "Raise the memory limit, or use a smaller model or context."),
    _why("died.signal", "spawn", "the runner had crashed",
         "Look at the server's log for the crash; the reload follows from it."),
    _why("died.killed_by_front", "load", "the front killed the runner before it was ready",
         "Raise the front's time-out for loading a model."),
    _why("idle.timeout", "load", "the model had been unloaded after idle time",
         "Raise the idle time-out (keep-alive) of the server."),
    _why("options.changed", "spawn", "the same weights were loaded again with other options",
         "Make all clients ask for the same options, such as the context size."),
    _why("load.readahead", "load", "weights were read page by page",
         "Turn on readahead for the device, or use a load mode that reads ahead."),
    _why("load.refault", "load", "weights were read more than once: they do not fit",
         "Raise the memory limit above the size of the model, or use a smaller one."),
    _why("load.spinup", "load", "the disk had been asleep",
         "Keep the disk from spinning down, or keep the weights on a disk that does not."),
    _why("cache.missing", "init", "the compile cache was empty",
         "Keep the compile cache directory on a volume that survives restarts."),
    _why("power.clock", "prefill", "the device ran at a low clock",
         "Keep the device's clock up: look at its temperature, power limit and power profile."),
)  # fmt: skip

INCOMPLETE_CODES = (
    _gap("records.lost", "records were lost while this request was watched"),
    _gap("began.late", "watching began after what this request waited for"),
    _gap("armed.late", "probes were attached while it was under way"),
    _gap("probes.missing", "what would tell what was loaded is missing on this host, or off"),
    _gap("engine.unseen", "the engine's own work does not show (no hop, no probe)"),
    _gap("hop.unseen", "the request from the front to its runner was not seen"),
    _gap("read.unseen", "when the server read the request was not seen"),
    _gap("weights.unseen", "a runner started and its weight files were not seen"),
    _gap("weights.guessed", "weight files were told by size alone"),
    _gap("end.unseen", "part of the exchange was not seen"),
    _gap("unreadable", "the exchange could not be read"),
    _gap("open", "the request was still under way"),
)

UNREADABLE_CODES = (
    _unreadable("tls", "the connection is encrypted"),
    _unreadable("compressed", "the reply is compressed"),
    _unreadable("http2", "the connection speaks HTTP/2"),
    _unreadable("not_http", "what was sent is not HTTP"),
    _unreadable("old_connection", "the connection is older than the daemon"),
    _unreadable("gap", "bytes of the connection were not seen"),
    _unreadable("unix_socket", "the server listens on a Unix socket"),
)

TABLE: tuple[Code, ...] = (
    *PHASE_CODES, *STAGE_CODES, *CAUSE_CODES, *WHY_CODES, *INCOMPLETE_CODES, *UNREADABLE_CODES,
)  # fmt: skip

STAGES: tuple[str, ...] = tuple(c.code for c in STAGE_CODES)
_MEANING = {(c.what, c.code): c for c in TABLE}
_RANK = {
    code.code: rank
    for rank, code in enumerate(
        sorted(STAGE_CODES, key=lambda c: PRIORITY.index(c.phase or "other"))
    )
}


def get(code: str, *whats: What) -> Code | None:
    """The entry of a code; `whats` in order of preference, all kinds if none is given."""
    for what in whats or ("stage", "cause", "why", "incomplete", "unreadable", "phase"):
        if (what, code) in _MEANING:
            return _MEANING[what, code]
    return None


def meaning(code: str, *whats: What) -> str:
    found = get(code, *whats)
    return found.meaning if found else code


def stage_of(name: str) -> str:
    """A stage of the table: what is not in it falls to its phase's rest, or to other."""
    if name in _RANK:
        return name
    phase = name.partition(".")[0]
    return f"{phase}.rest" if phase in PHASES else "other.rest"


def rank(stage: str) -> int:
    """Lower wins; stages of one phase are neighbours, phases in the order of `PRIORITY`."""
    return _RANK[stage]


def by_rank() -> tuple[str, ...]:
    return tuple(sorted(_RANK, key=_RANK.__getitem__))
