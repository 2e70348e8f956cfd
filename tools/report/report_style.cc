#include "tools/report/report_style.h"

namespace pipeshard {

// f, b, i, w: forward, backward, its two halves; 0..3: chunks of a rank. r, u, o: recomputation, update,
// other. t, g: transfers, those in the background.
const char* const kPictureStyle =
    R"css(:root,.pic{--paper:#ffffff;--track:#f7f9fb;--rule:#dde3ea;--hatch:#d3dbe4;--ink:#16202b;--dim:#526070;
--f0:#4a93db;--f1:#3d86cd;--f2:#1968ac;--f3:#004f8d;--b0:#3ba07a;--b1:#2b936e;--b2:#077353;--b3:#01593f;
--i0:#bd79ae;--i1:#af6ca1;--i2:#8f4f82;--i3:#753769;--w0:#bf8333;--w1:#b27623;--w2:#8f5900;--w3:#6e4401;
--on0:#0a1420;--on1:#0a1420;--on2:#ffffff;--on3:#ffffff;--r:#8291a1;--u:#4b5866;--on-r:#0a1420;--on-u:#ffffff;--o:#8b9095;
--t:#c2512f;--g:#0f7f8c;--limit:#b3261e;--area:#bcd9f5;--edge:#1968ac;--measured:#8f4f82}
@media (prefers-color-scheme:dark){:root,.pic{--paper:#11161c;--track:#161d25;--rule:#2b3541;--hatch:#2f3a47;--ink:#e8edf2;--dim:#a2afbd;
--f0:#86c0fd;--f1:#5da6ef;--f2:#428cd2;--f3:#2571b5;--b0:#6ccea6;--b1:#51b38d;--b2:#329873;--b3:#007d5a;
--i0:#eda5dc;--i1:#d18bc2;--i2:#b571a6;--i3:#99578b;--w0:#efaf62;--w1:#d39547;--w2:#b77b2a;--w3:#936008;
--on0:#0a1420;--on1:#0a1420;--on2:#0a1420;--on3:#ffffff;--r:#94a4b4;--u:#616f7f;--on-r:#0a1420;--on-u:#ffffff;--o:#9da2a8;
--t:#f68063;--g:#56c4d2;--limit:#ff9a90;--area:#234566;--edge:#5da6ef;--measured:#d18bc2}}
.pic{font-variant-numeric:tabular-nums;display:block}
.pic text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
.pic .dim{font-size:11px;fill:var(--dim)}
.pic .head{font-weight:600}
.pic .paper{fill:var(--paper)}
.pic .track{fill:var(--track)}
.pic .idle{fill:url(#idle)}
.pic .hatch{stroke:var(--hatch);stroke-width:1.2}
.pic .grid{stroke:var(--rule);stroke-width:1}
.pic .end{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3}
.f0{fill:var(--f0)}.f1{fill:var(--f1)}.f2{fill:var(--f2)}.f3{fill:var(--f3)}
.b0{fill:var(--b0)}.b1{fill:var(--b1)}.b2{fill:var(--b2)}.b3{fill:var(--b3)}
.i0{fill:var(--i0)}.i1{fill:var(--i1)}.i2{fill:var(--i2)}.i3{fill:var(--i3)}
.w0{fill:var(--w0)}.w1{fill:var(--w1)}.w2{fill:var(--w2)}.w3{fill:var(--w3)}
.r{fill:var(--r)}.u{fill:var(--u)}.o{fill:var(--o)}.t{fill:var(--t)}.g{fill:var(--g)}
.pic text.n{font-size:10.5px;text-anchor:middle}
.pic text.n0{fill:var(--on0)}.pic text.n1{fill:var(--on1)}.pic text.n2{fill:var(--on2)}.pic text.n3{fill:var(--on3)}
.pic text.nr{fill:var(--on-r)}.pic text.nu{fill:var(--on-u)}
.pic .area{fill:var(--area)}
.pic .edge{fill:none;stroke:var(--edge);stroke-width:1.4}
.pic .measured{fill:none;stroke:var(--measured);stroke-width:1.6}
.pic .point{fill:var(--measured)}
.pic .limit{stroke:var(--limit);stroke-width:1.6;stroke-dasharray:6 4}
.pic .lost{stroke:var(--limit);stroke-width:1.6}
.pic .limit-text{font-size:11px;fill:var(--limit)}
.pic .box{fill:var(--track);stroke:var(--rule)}
.pic .seat{fill:var(--paper);stroke:var(--dim)}
.pic .free{fill:none;stroke:var(--dim);stroke-dasharray:3 3}
)css";

const char* const kPageStyle =
    R"css(:root{color-scheme:light dark;--panel:#f4f6f9;--line:#d6dde5;--control:#7d8b99;--link:#0b5cad;
--pass:#0f6b3c;--pass-paper:#e6f5ec;--fail:#a5201d;--fail-paper:#fdecec}
@media (prefers-color-scheme:dark){:root{--panel:#19212a;--line:#33404d;--control:#6f7e8d;--link:#7cb8f5;
--pass:#7fdca6;--pass-paper:#12301f;--fail:#ff9d97;--fail-paper:#3d1717}}
*{box-sizing:border-box}
html{scroll-padding-top:12px;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main,header,nav,footer{max-width:1180px;margin:0 auto;padding:0 28px}
header{padding-top:36px}
.brand{margin:0 0 6px;color:var(--dim);font-size:.8rem;letter-spacing:.08em;text-transform:uppercase}
h1{font-size:1.85rem;line-height:1.2;font-weight:650;letter-spacing:-.01em;margin:0 0 16px;overflow-wrap:anywhere}
h2{font-size:1.25rem;font-weight:650;margin:52px 0 6px}
h3{font-size:.95rem;margin:22px 0 6px;font-weight:650}
p{margin:8px 0;max-width:74ch}
section>p:first-of-type{color:var(--dim);margin-top:0}
a{color:var(--link);text-underline-offset:2px}
nav ul{display:flex;flex-wrap:wrap;gap:2px 20px;list-style:none;margin:24px 0 0;padding:10px 0;border-top:1px solid var(--line);border-bottom:1px solid var(--line)}
nav a{display:inline-block;padding:4px 0;text-decoration:none}
nav a:hover{text-decoration:underline}
code,pre{font:.86em/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{overflow-wrap:anywhere}
pre{margin:0;padding:12px 14px;white-space:pre}
.dim{color:var(--dim)}
.verdict{margin:0 0 18px;padding:12px 18px;border-left:4px solid var(--dim);background:var(--panel);border-radius:6px}
.verdict p{margin:2px 0}
.verdict b{font-size:1.08rem}
.pass{border-color:var(--pass);background:var(--pass-paper)}
.fail{border-color:var(--fail);background:var(--fail-paper)}
.pass b,td .ok{color:var(--pass)}
.fail b,td .bad{color:var(--fail)}
td .bad{font-weight:700}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(136px,1fr));gap:12px;margin:0 0 18px;padding:0;list-style:none}
.tiles li{padding:12px 13px 10px;background:var(--panel);border-radius:10px;min-width:0;color:var(--dim);font-size:.85rem;line-height:1.35}
.tiles b{display:block;color:var(--ink);font-size:1.18rem;font-weight:600;letter-spacing:-.01em;font-variant-numeric:tabular-nums;line-height:1.4;white-space:nowrap}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:12px 0;overscroll-behavior-x:contain}
:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:4px}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{padding:8px 14px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tbody tr:last-child td{border-bottom:0}
th{background:var(--panel);font-weight:600;white-space:nowrap}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td code{display:inline-block;min-width:12rem;max-width:26rem}
td code+code{border-top:1px dotted var(--line)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:12px 24px;margin:0}
.facts div{min-width:0}
.facts .wide{grid-column:span 2}
.facts dt{color:var(--dim);font-size:.85rem}
.facts dd{margin:0;font-weight:600;overflow-wrap:anywhere}
.bar{display:flex;width:130px;height:10px;margin:6px 0 2px;background:var(--track);border:1px solid var(--line);border-radius:5px;overflow:hidden}
.bar i{display:block;height:100%}
.bar .f{background:var(--f0)}.bar .b{background:var(--b0)}.bar .t{background:var(--t)}
.parts{display:grid;grid-template-columns:max-content 1fr max-content;gap:6px 14px;align-items:center;margin:12px 0;font-size:.9rem;font-variant-numeric:tabular-nums}
.parts .bar{width:100%;height:20px;margin:0;border-radius:4px}
.bar .i{background:var(--i0)}.bar .w{background:var(--w0)}.bar .r{background:var(--r)}.bar .u{background:var(--u)}.bar .o{background:var(--o)}
.ribbon{display:flex;gap:2px;margin:12px 0 4px;padding:0;list-style:none;height:38px}
.ribbon li{flex:1 1 0;min-width:3px;overflow:hidden;border-radius:4px;background:var(--area);font-size:.85rem;line-height:38px;text-align:center;white-space:nowrap;font-variant-numeric:tabular-nums}
.key{display:flex;flex-wrap:wrap;gap:6px 20px;list-style:none;margin:10px 0;padding:0;font-size:.9rem}
.key li{display:flex;align-items:center;gap:7px}
.key svg{flex:none}.key .idle,.key .track{stroke:var(--dim)}
.teach{margin:12px 0;padding:2px 18px 8px;background:var(--panel);border-radius:10px}
.teach dt{font-weight:650;margin-top:10px}
.teach dd{margin:0;max-width:74ch}
.nodes{display:flex;flex-wrap:wrap;gap:14px;margin:12px 0}
.node{border:1px solid var(--line);border-radius:10px;padding:10px 14px 14px;background:var(--panel)}
.node h3{margin:0 0 8px;font-size:.85rem;color:var(--dim);font-weight:600}
.node ul{display:flex;flex-wrap:wrap;gap:8px;max-width:444px;list-style:none;margin:0;padding:0}
.node li{min-width:105px;padding:7px 10px;border:1px solid var(--line);border-radius:7px;background:var(--paper);font-size:.82rem;line-height:1.35;color:var(--dim);font-variant-numeric:tabular-nums}
.node li b{display:block;color:var(--ink);font-size:.95rem;font-weight:600}
.node .idle{border-style:dashed;background:none}
.chart{display:flex;padding:8px 0;min-width:max-content}
.chart .names{position:sticky;left:0;background:var(--paper);flex:none}
details{margin:12px 0}
summary{cursor:pointer;padding:4px 0}
footer{margin-top:56px;padding-top:16px;padding-bottom:44px;color:var(--dim);font-size:.85rem;overflow-wrap:anywhere}
@media (max-width:640px){main,header,nav,footer{padding-left:16px;padding-right:16px}header{padding-top:22px}h1{font-size:1.4rem}h2{margin-top:40px}
.tiles{grid-template-columns:1fr 1fr;gap:8px}.tiles li{padding:9px 12px 8px}.tiles b{font-size:1.15rem}
.facts{grid-template-columns:1fr 1fr;gap:10px 16px}nav a{padding:8px 0}nav ul{padding:2px 0}
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.cards tr{display:block;padding:8px 14px;border-bottom:1px solid var(--line)}.cards tbody tr:last-child{border-bottom:0}
.cards td{display:flex;justify-content:space-between;gap:16px;padding:3px 0;border:0;text-align:right}
.cards td::before{content:attr(data-label);color:var(--dim);text-align:left;flex:none}
.cards td:first-child{font-weight:650}.cards td>span,.cards td code{min-width:0}
.parts{grid-template-columns:max-content 1fr}.parts .numbers{grid-column:1/-1;margin:-2px 0 6px}}
@media print{nav{display:none}.scroll{overflow:visible}section{break-inside:avoid-page}}
)css";

// Colours of specs: light paper with dark ink, so that the text is read in both schemes.
const char* const kShardingStyle =
    R"css(.spec{display:inline-block;padding:1px 9px;border-radius:9px;color:#0b1b2b;white-space:nowrap;font-variant-numeric:tabular-nums}
.c0{background:#a9d4f7}.c1{background:#bfe6b8}.c2{background:#f9d59b}.c3{background:#e3c4f2}.c4{background:#f6bcb8}.c5{background:#a8e4df}.c6{background:#e6e19a}.c7{background:#cdd3f5}
.whole{background:none;color:var(--dim);border:1px solid var(--line)}
.specs{display:flex;flex-wrap:wrap;gap:6px 14px;list-style:none;margin:8px 0;padding:0}
)css";

const std::vector<InkPair>& inkPairs() {
  static const std::vector<InkPair> pairs = {
      {"ink", "paper"},      {"dim", "paper"},      {"ink", "panel"},        {"dim", "panel"},
      {"link", "paper"},     {"ink", "track"},      {"pass", "pass-paper"},  {"fail", "fail-paper"},
      {"pass", "paper"},     {"fail", "paper"},     {"limit", "paper"},      {"limit", "track"},
      {"ink", "pass-paper"}, {"ink", "fail-paper"}, {"on0", "f0"},           {"on1", "f1"},
      {"on2", "f2"},         {"on3", "f3"},         {"on0", "b0"},           {"on1", "b1"},
      {"on2", "b2"},         {"on3", "b3"},         {"on0", "i0"},           {"on1", "i1"},
      {"on2", "i2"},         {"on3", "i3"},         {"on0", "w0"},           {"on1", "w1"},
      {"on2", "w2"},         {"on3", "w3"},         {"on-r", "r"},           {"on-u", "u"},
      {"f0", "track", 3},    {"f3", "track", 3},    {"b0", "track", 3},      {"b3", "track", 3},
      {"i0", "track", 3},    {"i3", "track", 3},    {"w0", "track", 3},      {"w3", "track", 3},
      {"r", "track", 3},     {"u", "track", 3},     {"o", "track", 3},       {"t", "track", 3},
      {"edge", "area", 3},   {"edge", "track", 3},  {"measured", "area", 3}, {"measured", "track", 3},
      {"link", "panel"},     {"ink", "area"},       {"g", "track", 3},
  };
  return pairs;
}

}  // namespace pipeshard
