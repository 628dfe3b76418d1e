// node prerender.mjs SITE: put KaTeX's HTML in the place of every formula; one that it cannot read fails the build.
import katex from "katex";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const unescape = (s) =>
  s.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&quot;/g, '"').replace(/&#39;/g, "'").replace(/&amp;/g, "&");
let formulas = 0;
const bad = [];

for (const file of readdirSync(process.argv[2], { recursive: true }).filter((f) => f.endsWith(".html"))) {
  const path = join(process.argv[2], file);
  const source = readFileSync(path, "utf8");
  const rendered = source.replace(/<(span|div) class="arithmatex">([\s\S]*?)<\/\1>/g, (all, tag, body) => {
    const found = unescape(body).match(/^\s*\\([(\[])([\s\S]*)\\[)\]]\s*$/);
    formulas++;
    try {
      const displayMode = found[1] === "[";
      const html = katex.renderToString(found[2], { displayMode, throwOnError: true, strict: "error", trust: false });
      // a wide formula scrolls, and the keyboard must be able to scroll it too
      return displayMode ? `<div class="math" tabindex="0">${html}</div>` : `<span class="math">${html}</span>`;
    } catch (problem) {
      bad.push(`${file}: ${problem.message}`);
      return all;
    }
  });
  if (rendered !== source) writeFileSync(path, rendered);
}
bad.forEach((line) => console.error(line));
console.log(`${formulas} formulas, ${bad.length} that cannot be read`);
process.exit(bad.length ? 1 : 0);
