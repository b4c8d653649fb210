"""
The style sheet of the page.

Light and dark, narrow and wide, without scripts, fonts or other files.
"""

__all__ = ["STYLE"]

STYLE = """
:root{color-scheme:light dark;--paper:#fdfdfb;--card:#ffffff;--ink:#1b1f24;--muted:#59616b;--hair:#e4e5e1;
--base:#9aa1a8;--first:#3a78bd;--second:#174f94;--third:#0a2650;--quiet:#666e78;--limit:#b3541e;--good:#1a7f4b;--bad:#a8231c;
--bar:#d99a72}
@media (prefers-color-scheme:dark){:root{--paper:#13161a;--card:#1a1e24;--ink:#e9eaea;--muted:#a4acb6;--hair:#2b3139;
--base:#69717b;--first:#5f96cf;--second:#8fbdf0;--third:#d3e6ff;--quiet:#939ba5;--limit:#f0a070;--good:#63c692;--bad:#ff8f85;
--bar:#8a5030}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
-webkit-text-size-adjust:100%;overflow-wrap:break-word}
main{max-width:1160px;margin:0 auto;padding:40px 20px 64px}
.kind{margin:0;color:var(--muted);font-size:14px}
h1{margin:4px 0 8px;font-size:clamp(28px,5vw,42px);line-height:1.15;font-weight:650;letter-spacing:-.015em}
h2{margin:48px 0 4px;font-size:22px;font-weight:600;letter-spacing:-.01em}
h3,figure h2{margin:0;font-size:16px;font-weight:600;letter-spacing:normal}
.lead{margin:0;max-width:46em;color:var(--muted)}
.notes{margin:20px 0 0;padding:12px 16px;border-left:3px solid var(--limit);background:var(--card);list-style:none}
.notes li+li{margin-top:4px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:1px;margin:28px 0 0;
background:var(--card);border:1px solid var(--hair);border-radius:8px;overflow:hidden}
.tiles div{padding:12px 14px;box-shadow:1px 1px 0 0 var(--hair)}
.tiles dt{color:var(--muted);font-size:13px}
.tiles dd{margin:0;font-size:22px;font-weight:600;font-variant-numeric:tabular-nums;overflow-wrap:normal}
.tiles small{display:block;color:var(--muted);font-size:12px;font-weight:400}
.pictures{display:grid;grid-template-columns:minmax(0,1fr);gap:20px;margin-top:20px}
figure{margin:0;padding:16px;background:var(--card);border:1px solid var(--hair);border-radius:8px;min-width:0}
figcaption{margin-top:8px;color:var(--muted);font-size:14px}
svg{display:none;width:100%;height:auto;margin-top:10px;font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg.narrow{display:block}
details{margin-top:10px;font-size:14px}
summary{cursor:pointer;color:var(--second)}
summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--second);outline-offset:2px}
.scroll{overflow-x:auto;margin-top:8px}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:5px 12px 5px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--hair)}
th{color:var(--muted);font-weight:500}
th:first-child,td:first-child,.words{text-align:left}
td.words{white-space:normal;overflow-wrap:anywhere;min-width:min(22em,50vw)}
td.good{color:var(--good)}td.bad{color:var(--bad)}td.limit{color:var(--limit)}
.grid{stroke:var(--hair);stroke-width:1}.base{stroke:var(--base);stroke-width:1}
.mark,.axis{fill:var(--muted)}.mark{font-variant-numeric:tabular-nums}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.broad{stroke-width:7;opacity:.3}
.rule{stroke-width:1.25;stroke-dasharray:5 4}.rule.good{stroke-dasharray:none}
.name{font-weight:550;paint-order:stroke;stroke:var(--card);stroke-width:4px;stroke-linejoin:round}
.line.first,.rule.first{stroke:var(--first)}.line.second,.rule.second{stroke:var(--second)}
.line.third,.rule.third{stroke:var(--third)}.line.quiet,.rule.quiet{stroke:var(--quiet)}
.rule.limit,.line.limit{stroke:var(--limit)}.rule.good{stroke:var(--good)}.line.good{stroke:var(--good)}.line.bad,.rule.bad{stroke:var(--bad)}
.name.first,.dot.first{fill:var(--first)}.name.second,.dot.second{fill:var(--second)}.name.third,.dot.third{fill:var(--third)}
.name.quiet{fill:var(--quiet)}.name.limit,.dot.limit{fill:var(--limit)}.name.good,.dot.good{fill:var(--good)}
.name.bad,.dot.bad{fill:var(--bad)}
.dot.hollow{fill:var(--card);stroke-width:2}.hollow.first{stroke:var(--first)}.hollow.second{stroke:var(--second)}
.hollow.third{stroke:var(--third)}
a{color:var(--second)}
.item{margin-top:16px;padding:14px 16px;background:var(--card);border:1px solid var(--hair);border-radius:8px}
.item h3{overflow-wrap:anywhere}.item p{margin:6px 0 0;font-size:14px;overflow-wrap:anywhere}
.item:target{border-color:var(--second)}
.passed{color:var(--good)}.missed{color:var(--bad)}
pre{margin:8px 0 0;padding:8px 10px;max-height:12em;overflow:auto;white-space:pre-wrap;overflow-wrap:anywhere;
background:var(--paper);border:1px solid var(--hair);border-radius:6px;
font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,monospace}pre.asked{color:var(--muted)}
.bar.bad{fill:var(--bad)}.bar.limit{fill:var(--bar)}.bar.quiet{fill:var(--hair)}
footer{margin-top:48px;color:var(--muted);font-size:13px}
@media (max-width:559px){main{padding:24px 12px 48px}figure{padding:14px 10px}}
@media (min-width:560px){svg.narrow{display:none}svg.middle{display:block}}
@media (min-width:1000px){.pictures{grid-template-columns:repeat(2,minmax(0,1fr))}.full{grid-column:1/-1}
.full svg.middle{display:none}svg.wide{display:block}}
@media print{body{background:#fff}figure,.tiles{break-inside:avoid}}
""".strip()
