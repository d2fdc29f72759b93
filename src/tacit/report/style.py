"""The look of pages, and the script that sorts their tables."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5a6570;--line:#d5dbe1;--paper:#fff;--mark:#0072b2;
--good:#0b6b3a;--fair:#8a5a00;--bad:#b3261e;--box:#f4f6f8;
--c0:#0072b2;--c1:#b84a00;--c2:#007a58;--c3:#a8447f;--c4:#8a6d00;--c5:#1d2329}
@media (prefers-color-scheme:dark){:root{
--ink:#e6eaee;--soft:#a3adb8;--line:#3a434c;--paper:#14181c;--mark:#56b4e9;
--good:#5fd39a;--fair:#f0b84b;--bad:#ff8a80;--box:#1d2329;
--c0:#56b4e9;--c1:#f08b4b;--c2:#3fc79a;--c3:#e39ac6;--c4:#e6c34b;--c5:#e6eaee}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:64rem;margin:0 auto;padding:1.2rem}
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.15rem;margin-top:2.2rem}
p,li{max-width:46rem;overflow-wrap:anywhere}
figure{margin:1rem 0}figure img{max-width:100%;height:auto;background:#fff;border-radius:4px}
/* On a phone a figure scrolls: shrunk, its words could not be read. */
@media (max-width:40rem){figure img{max-width:none}}
summary{max-width:46rem;cursor:pointer}
figcaption,caption{color:var(--soft);font-size:.9rem;text-align:left}caption{padding:.3rem 0}
/* A shadow at the edge says that there is more to scroll to. */
.wide{overflow-x:auto;margin:1rem 0;background:
linear-gradient(to right,var(--paper) 40%,transparent) 0 0/2.5rem 100% no-repeat local,
linear-gradient(to left,var(--paper) 40%,transparent) 100% 0/2.5rem 100% no-repeat local,
linear-gradient(to right,var(--line),transparent) 0 0/.8rem 100% no-repeat scroll,
linear-gradient(to left,var(--line),transparent) 100% 0/.8rem 100% no-repeat scroll}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:left;white-space:nowrap}
td.number,td.beside{text-align:right}td.long{white-space:normal;min-width:16rem;overflow-wrap:anywhere}
@media (max-width:40rem){th,td{white-space:normal;padding:.25rem .35rem}td.long{min-width:11rem}}
.name,td.name{white-space:nowrap}
a{color:var(--mark)}
th button{font:inherit;text-align:left;font-weight:600;
color:inherit;background:none;border:0;padding:.2rem 0;cursor:pointer}
th button::after{content:" \\2195";color:var(--soft)}
th[aria-sort=ascending] button::after{content:" \\2191"}th[aria-sort=descending] button::after{content:" \\2193"}
.verdict{border-left:.4rem solid var(--tone);background:var(--box);padding:.6rem .9rem;margin:1rem 0;
max-width:48rem;border-radius:4px}
.verdict p{margin:.3rem 0}.verdict .word,td .word,li .word{color:var(--tone);font-weight:700}
.good{--tone:var(--good)}.fair{--tone:var(--fair)}.bad{--tone:var(--bad)}
dl{display:grid;grid-template-columns:minmax(8rem,16rem) 1fr;gap:.15rem 1.2rem;max-width:52rem}
dt{color:var(--soft)}dd{margin:0 0 .35rem;overflow-wrap:anywhere}
@media (max-width:40rem){dl{display:block}dd{margin-bottom:.7rem}}
.field{border-bottom:1px solid var(--soft);min-height:1.9em;padding:.1rem .2rem}
ul.marked{list-style:none;padding:0}ul.marked li{margin:.35rem 0}
pre{background:var(--box);padding:.7rem .9rem;font-size:.85rem;border-radius:4px;max-width:100%;
white-space:pre-wrap;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem 2rem}
.charts figure{margin:.5rem 0;max-width:30rem}
svg.chart{display:block;width:100%;height:auto}
/* The outline keeps grid lines from striking words through. */
svg.chart text{font:12px system-ui,sans-serif;fill:var(--ink);
paint-order:stroke;stroke:var(--paper);stroke-width:5px;stroke-linejoin:round}
svg.chart .grid{stroke:var(--line);fill:none}
svg.chart polyline{fill:none;stroke:currentColor;stroke-width:2}
svg.chart polygon{fill:currentColor;fill-opacity:.18}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
svg.chart .whisker{stroke:var(--c0);stroke-width:3;fill:none;stroke-linecap:round}svg.chart circle{fill:var(--c0)}
:focus-visible{outline:2px solid var(--mark);outline-offset:2px}
@page{margin:15mm}
@media print{:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--box:#fff;--mark:#000;
--good:#0b6b3a;--fair:#8a5a00;--bad:#b3261e;
--c0:#0072b2;--c1:#b84a00;--c2:#007a58;--c3:#a8447f;--c4:#8a6d00;--c5:#000}
body{font-size:10.5pt}main{max-width:none;padding:0}.wide{overflow:visible;background:none}
.verdict{border:1px solid var(--line);border-left:.4rem solid var(--tone)}
th,td{white-space:normal}th button::after{content:""!important}
figure,.verdict,tr,dd,li{break-inside:avoid}h2{break-after:avoid}}
"""

SCRIPT = """
// On paper nothing can be unfolded.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, row = heading.parentElement, table = heading.closest("table");
    const column = [...row.children].indexOf(heading);
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of row.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const cell = tr => tr.children[column], key = tr => cell(tr).dataset.key, blank = tr => !cell(tr).textContent;
    const compare = (a, b) => key(a) !== undefined && key(b) !== undefined ? key(a) - key(b)
      : (key(b) !== undefined) - (key(a) !== undefined) || cell(a).textContent.localeCompare(cell(b).textContent);
    const body = table.tBodies[0];
    // Blank cells stay last, whichever way.
    body.append(...[...body.rows].sort((a, b) => blank(a) - blank(b) || (down ? compare(b, a) : compare(a, b))));
  });
}
"""
