// Runs the program in the editor with the NumPy reference, in Pyodide. Everything is loaded from beside this file.
const base = new URL("./live/", import.meta.url);
const find = (id) => document.getElementById(id);
const words = JSON.parse(find("live").dataset.words);
const say = (text) => (find("live-status").textContent = text);
const print = (text) => (find("live-out").textContent += text + "\n");

function restore() {
  const script = find("live-" + find("live-choice").value);
  find("live-code").value = JSON.parse(script.textContent);
  find("live-out").textContent = "";
}

async function boot() {
  say(words.loading);
  const { loadPyodide } = await import(new URL("pyodide.mjs", base));
  const python = await loadPyodide({ indexURL: base.href, stdout: print, stderr: print });
  await python.loadPackage("numpy");
  const wheels = await (await fetch(new URL("wheels.json", base))).json();
  await python.loadPackage(wheels.map((name) => new URL(name, base).href));
  python.unpackArchive(await (await fetch(new URL("reference.zip", base))).arrayBuffer(), "zip");
  return python;
}

let python;
async function run() {
  const button = find("live-run");
  button.disabled = true;
  delete document.body.dataset.live;
  try {
    python ??= await boot();
    find("live-out").textContent = "";
    say(words.running);
    await new Promise((done) => setTimeout(done, 20)); // let the browser draw that before Python takes the thread
    await python.runPythonAsync(find("live-code").value, { globals: python.toPy({ __name__: "__main__" }) });
    say(python.runPython("import sys, numpy; f'Python {sys.version.split()[0]}, NumPy {numpy.__version__}'"));
    document.body.dataset.live = "ok";
  } catch (problem) {
    print(String(problem));
    say(words.error);
    document.body.dataset.live = "error";
  }
  button.disabled = false;
}

find("live-choice").addEventListener("change", restore);
find("live-restore").addEventListener("click", restore);
find("live-run").addEventListener("click", run);
find("live-code").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
});
restore();
