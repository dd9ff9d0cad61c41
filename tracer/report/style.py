"""How the report looks: light and dark by the reader's choice, plain on paper."""

CSS = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5b6470; --line: #d9dde3;
  --back: #ffffff; --card: #f6f7f9; --bad: #b3261e; --track: #e6e9ee; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7e9ec; --soft: #a3acb8; --line: #343a42; --back: #14171a; --card: #1d2126;
    --bad: #ff8a80; --track: #2b3138; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1.02rem; margin: 0 0 .25rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
.soft, caption, footer { color: var(--soft); font-size: .88rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0; padding: 0; list-style: none; }
.tiles li, section.one { background: var(--card); border: 1px solid var(--line);
  border-radius: .6rem; padding: .8rem 1rem; }
.tiles b { display: block; font-size: 1.5rem; line-height: 1.3; overflow-wrap: anywhere; }
section.one { margin: 1rem 0; break-inside: avoid; }
.why { color: var(--bad); font-weight: 600; }
.advice::before { content: "\\2192\\00a0"; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .5rem 0; }
caption { text-align: left; padding: .2rem 0; }
th, td { text-align: left; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.w { white-space: nowrap; }
svg { display: block; width: 100%; height: auto; margin: .5rem 0; }
@media (max-width: 40rem) { .wide svg { min-width: 38rem; } }
svg text { fill: var(--ink); font: 12px system-ui, "DejaVu Sans", sans-serif; }
svg text.s { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .track { fill: var(--track); }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .4rem 0; padding: 0;
  list-style: none; font-size: .88rem; }
.dot { display: inline-block; width: .75rem; height: .75rem; border-radius: .2rem;
  margin-right: .4rem; vertical-align: -.08rem; }
.meter { display: inline-block; width: 6rem; height: .6rem; border-radius: .3rem;
  background: var(--track); overflow: hidden; margin-right: .5rem; }
.meter span { display: block; height: 100%; background: #3a9d4d; }
code { font-size: .92em; }
a { color: inherit; }
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --back: #fff; --card: #fff; --bad: #900;
    --track: #eee; }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  h2 { break-after: avoid; }
  tr { break-inside: avoid; }
  rect, .dot, .meter, .meter span { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
