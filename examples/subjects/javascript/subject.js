/* Five components in JavaScript as a subject, with no packages:
 *
 *     transformer-spec check --command "node examples/subjects/javascript/subject.js"
 *
 * With `--mistake` at the end of the command, its causal mask is aligned to the first key instead of the last.
 *
 * It reads a request from each line of its input and writes a reply; docs/en/check/process-subjects.md says what they hold.
 */
"use strict";

const readline = require("node:readline");

const mistaken = process.argv.includes("--mistake");

// ---------------------------------------------------------------------------------------------------------- components

/** Turn n scores, `stride` apart, into weights. A row of nothing but -Infinity becomes zeros. */
function softmaxRow(data, start, n, stride = 1) {
  let largest = -Infinity;
  for (let i = 0; i < n; i++) {
    const score = data[start + i * stride];
    if (score > largest) largest = score;
  }
  if (largest === -Infinity) largest = 0;
  let total = 0;
  for (let i = 0; i < n; i++) total += data[start + i * stride] = Math.exp(data[start + i * stride] - largest);
  for (let i = 0; i < n && total !== 0; i++) data[start + i * stride] /= total;
}

function softmax(given) {
  const { shape, data } = given.floats("scores", "*batch");
  const wanted = given.number("axis", -1);
  if (!(wanted >= -shape.length && wanted < shape.length)) {
    throw new Error(`axis must be one of the ${shape.length} axes of scores, got ${wanted}`);
  }
  const axis = wanted < 0 ? wanted + shape.length : wanted;
  const n = shape[axis];
  const stride = product(shape.slice(axis + 1));
  for (let block = 0; n && block < data.length; block += n * stride) {
    for (let i = 0; i < stride; i++) softmaxRow(data, block + i, n, stride);
  }
  return { shape, data };
}

function layer_norm(given) {
  const { shape, data } = given.floats("x", "*batch d_model");
  const gamma = given.optional("gamma", "d_model");
  const beta = given.optional("beta", "d_model");
  const eps = given.number("eps", 1e-5);
  const variant = given.choice("variant", ["standard", "std_plus_eps", "unbiased_std_plus_eps"]);
  const n = shape.at(-1);
  const divisor = variant === "unbiased_std_plus_eps" ? n - 1 : n;
  if (!(eps >= 0)) throw new Error(`eps must not be negative, got ${eps}`);
  if (divisor === 0) throw new Error("unbiased_std_plus_eps needs a d_model of at least 2");
  for (let start = 0; start < data.length; start += n) {
    const row = data.subarray(start, start + n);
    const mean = row.reduce((sum, v) => sum + v, 0) / n;
    const variance = row.reduce((sum, v) => sum + (v - mean) ** 2, 0) / divisor;
    const deviation = variant === "standard" ? Math.sqrt(variance + eps) : Math.sqrt(variance) + eps;
    row.forEach((v, i) => {
      row[i] = ((v - mean) / deviation) * (gamma ? gamma.data[i] : 1) + (beta ? beta.data[i] : 0);
    });
  }
  return { shape, data };
}

/** The error function, which Math lacks: 2/sqrt(pi) e^(-x^2) (x + 2x^3/3 + 4x^5/15 + ...); nothing in it cancels. */
function erf(x) {
  if (Math.abs(x) > 6) return Math.sign(x); // to the last bit
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-18 * Math.abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

function gelu(given) {
  const { shape, data } = given.floats("x", "*batch");
  const form = given.choice("approximate", ["none", "tanh"]);
  const bent = {
    none: (v) => erf(v / Math.SQRT2),
    tanh: (v) => Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3)),
  }[form];
  return { shape, data: data.map((v) => (v / 2) * (1 + bent(v))) };
}

/**
 * Give each query the mean of the values that it may see. What is hidden is never looked at: it may be NaN.
 *
 * A matrix is {data, start, stride, n, width}: a head is some columns of a wider one.
 */
function attend(out, q, k, v, { mask, bias, causal, scale }) {
  const weights = new Float64Array(k.n);
  for (let i = 0; i < q.n; i++) {
    const last = mistaken ? i : i + k.n - q.n;
    const sees = (j) => (!mask || mask.data[mask.start + i * k.n + j]) && (!causal || j <= last);
    for (let j = 0; j < k.n; j++) {
      weights[j] = -Infinity;
      if (!sees(j)) continue;
      weights[j] = bias ? bias.data[bias.start + i * k.n + j] : 0;
      for (let c = 0; c < q.width; c++) {
        weights[j] += scale * q.data[q.start + i * q.stride + c] * k.data[k.start + j * k.stride + c];
      }
    }
    softmaxRow(weights, 0, k.n);
    for (let c = 0; c < v.width; c++) {
      let mean = 0;
      for (let j = 0; j < k.n; j++) if (sees(j)) mean += weights[j] * v.data[v.start + j * v.stride + c];
      out.data[out.start + i * out.stride + c] = mean;
    }
  }
}

function scaled_dot_product_attention(given) {
  const q = given.floats("q", "*batch q_seq d_k");
  const k = given.floats("k", "*batch k_seq d_k");
  const v = given.floats("v", "*batch k_seq d_v");
  const mask = given.optional("mask", "*#batch q_seq k_seq", "bool");
  const bias = given.optional("bias", "*#batch q_seq k_seq");
  const causal = given.truth("causal");
  const scale = given.number("scale", 1 / Math.sqrt(q.shape.at(-1)));
  const out = zeros([...q.shape.slice(0, -1), v.shape.at(-1)]);
  for (let b = 0; b < given.batchSize(); b++) {
    const options = { mask: given.ofBatch(mask, b), bias: given.ofBatch(bias, b), causal, scale };
    attend(matrix(out, b), matrix(q, b), matrix(k, b), matrix(v, b), options);
  }
  return out;
}

/** x w + bias, on the last axis of x. */
function affine(x, w, bias) {
  const [n, width] = w.shape;
  const y = zeros([...x.shape.slice(0, -1), width]);
  for (let place = 0; place < y.data.length; place++) {
    const column = place % width;
    const row = ((place - column) / width) * n;
    let sum = bias ? bias.data[column] : 0;
    for (let i = 0; i < n; i++) sum += x.data[row + i] * w.data[i * width + column];
    y.data[place] = sum;
  }
  return y;
}

function multi_head_attention(given) {
  const x = given.floats("x", "*batch q_seq d_model");
  const context = given.has("context") ? given.floats("context", "*batch k_seq d_model")
                                       : given.floats("x", "*batch k_seq d_model");
  const w_q = given.floats("w_q", "d_model heads_d_k");
  const w_k = given.floats("w_k", "d_model heads_d_k");
  const w_v = given.floats("w_v", "d_model heads_d_v");
  const w_o = given.optional("w_o", "heads_d_v d_model");
  const b_o = given.optional("b_o", "d_model");
  const q = affine(x, w_q, given.optional("b_q", "heads_d_k"));
  const k = affine(context, w_k, given.optional("b_k", "heads_d_k"));
  const v = affine(context, w_v, given.optional("b_v", "heads_d_v"));
  const mask = given.optional("mask", "*#batch q_seq k_seq", "bool");
  const n_heads = given.number("n_heads");
  if (!(n_heads >= 1) || w_q.shape[1] % n_heads || w_v.shape[1] % n_heads) {
    throw new Error(`n_heads must divide the widths ${w_q.shape[1]} and ${w_v.shape[1]}, got ${n_heads}`);
  }
  if (b_o && !w_o) throw new Error("b_o needs w_o");
  const causal = given.truth("causal");
  const scale = 1 / Math.sqrt(w_q.shape[1] / n_heads);
  const sideBySide = zeros([...q.shape.slice(0, -1), w_v.shape[1]]);
  for (let b = 0; b < given.batchSize(); b++) {
    const options = { mask: given.ofBatch(mask, b), causal, scale };
    for (let h = 0; h < n_heads; h++) {
      attend(...[sideBySide, q, k, v].map((array) => head(matrix(array, b), h, n_heads)), options);
    }
  }
  return w_o ? affine(sideBySide, w_o, b_o) : sideBySide;
}

const COMPONENTS = { softmax, layer_norm, gelu, scaled_dot_product_attention, multi_head_attention };

// -------------------------------------------------------------------------------------------------------------- arrays

function product(sizes) {
  return sizes.reduce((size, n) => size * n, 1);
}

function zeros(shape) {
  return { shape, data: new Float64Array(product(shape)) };
}

/** The matrix of one of the batch. */
function matrix({ shape, data }, batch) {
  const [n, width] = shape.slice(-2);
  return { data, start: batch * n * width, stride: width, n, width };
}

function head({ data, start, stride, n, width }, h, n_heads) {
  return { data, start: start + (h * width) / n_heads, stride, n, width: width / n_heads };
}

/** The arguments of one request; whoever takes one says what it must be, and what is not is refused. */
class Arguments {
  constructor(given) {
    this.given = given;
    this.taken = new Set();
    this.axes = {};
    this.batch = null;
    this.dtype = null; // that of all floating arrays
  }

  take(name) {
    this.taken.add(name);
    return this.given[name] ?? null;
  }

  has(name) {
    return this.take(name) !== null;
  }

  /** Name an argument that nobody has taken: an option that this program does not know. */
  unknown() {
    return Object.keys(this.given).find((name) => !this.taken.has(name));
  }

  number(name, otherwise) {
    const value = this.take(name) ?? otherwise;
    const number = typeof value === "string" ? Number(value) : value; // "NaN", "Infinity" and "-Infinity", too
    if (typeof number !== "number") throw new Error(`${name} must be a number, got ${value}`);
    return number;
  }

  truth(name) {
    return this.take(name) === true;
  }

  choice(name, choices) {
    const value = this.take(name) ?? choices[0];
    if (!choices.includes(value)) throw new Error(`${name} must be one of ${choices.join(", ")}, got ${value}`);
    return value;
  }

  /** An array with these axes: names, and first *batch or, for what may be spread over the batch, *#batch. */
  floats(name, axes, kind = "float") {
    const array = this.take(name);
    if (!Array.isArray(array?.shape) || !Array.isArray(array.data) || !array.dtype.startsWith(kind)) {
      throw new Error(`${name} must be an array of kind ${kind}, got ${array?.dtype ?? array}`);
    }
    if (kind === "float") {
      this.dtype ??= array.dtype;
      if (array.dtype !== this.dtype) throw new Error(`${name} has dtype ${array.dtype}, and another ${this.dtype}`);
    }
    this.check(name, array.shape, axes.split(" "));
    return { shape: array.shape, data: Float64Array.from(array.data, Number) };
  }

  optional(name, axes, kind = "float") {
    return this.has(name) ? this.floats(name, axes, kind) : null;
  }

  check(name, shape, axes) {
    const fixed = axes.filter((axis) => !axis.startsWith("*"));
    const leading = shape.slice(0, shape.length - fixed.length);
    if (shape.length < fixed.length || (leading.length && fixed.length === axes.length)) {
      throw new Error(`${name} must have the axes ${axes.join(" ")}, got ${shape.length}`);
    }
    fixed.forEach((axis, place) => {
      const size = shape[leading.length + place];
      if (size === 0 && !axis.endsWith("seq")) throw new Error(`${name}: ${axis} must be at least 1`);
      this.axes[axis] ??= size;
      if (this.axes[axis] !== size) throw new Error(`${name}: ${axis} is ${size}, and ${this.axes[axis]} elsewhere`);
    });
    if (fixed.length === axes.length) return;
    this.batch ??= leading;
    const spread = axes[0] === "*#batch";
    const extra = this.batch.length - leading.length;
    const fits = leading.every((size, i) => size === this.batch[extra + i] || (spread && size === 1));
    if (extra < 0 || (extra > 0 && !spread) || !fits) {
      throw new Error(`${name} has the batch axes ${leading}, and another has ${this.batch}`);
    }
  }

  batchSize() {
    return product(this.batch);
  }

  /** The matrix for one of the batch of a mask or bias, which may be shared along some batch axes. */
  ofBatch(array, b) {
    if (!array) return null;
    let stride = product(array.shape.slice(-2));
    let start = 0;
    for (let axis = 1; axis <= array.shape.length - 2; axis++) {
      const size = array.shape.at(-2 - axis);
      const ofBatch = this.batch.at(-axis);
      start += ((b % ofBatch) % size) * stride;
      b = Math.floor(b / ofBatch);
      stride *= size;
    }
    return { data: array.data, start };
  }
}

// ------------------------------------------------------------------------------------------------------------ requests

const hello = { spec_version: "0.3.0", dtype: "float64", components: Object.keys(COMPONENTS) };

function answer({ call, arguments: given }) {
  if (call === "hello") return hello;
  if (!Object.hasOwn(COMPONENTS, call)) return { unsupported: `there is no ${call}` };
  const taken = new Arguments(given);
  try {
    const { shape, data } = COMPONENTS[call](taken);
    if (taken.unknown()) return { unsupported: `${call} has no option ${taken.unknown()}` };
    const spelt = Array.from(data, (v) => (Number.isFinite(v) ? v : String(v))); // JSON has no NaN
    return { result: { dtype: taken.dtype, shape, data: spelt } };
  } catch (problem) {
    return { error: problem.message };
  }
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const request = JSON.parse(line);
  process.stdout.write(`${JSON.stringify({ id: request.id, ...answer(request) })}\n`);
});
