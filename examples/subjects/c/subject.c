/* Five components in C as a subject, with no library but the standard one:
 *
 *     gcc -O2 -o subject examples/subjects/c/subject.c -lm
 *     transformer-spec check --command ./subject
 *
 * With `--command "./subject --mistake"` its layer norm divides by n - 1, as the variance of a sample does.
 */
#include "json_lines.h"

static int mistaken;

/* Turn n scores, `stride` apart, into weights. A row of nothing but -inf becomes zeros. */
static void softmax_row(double *row, size_t n, size_t stride)
{
    double largest = -INFINITY, total = 0;
    for (size_t i = 0; i < n; i++)
        if (row[i * stride] > largest)
            largest = row[i * stride];
    if (largest == -INFINITY)
        largest = 0;
    for (size_t i = 0; i < n; i++)
        total += row[i * stride] = exp(row[i * stride] - largest);
    for (size_t i = 0; i < n && total != 0; i++)
        row[i * stride] /= total;
}

static Array *softmax(void)
{
    Array *scores = floats("scores", "*batch");
    double wanted = number("axis", -1);
    if (!(wanted >= -scores->rank && wanted < scores->rank))
        refuse("axis must be one of the %d axes of scores, got %g", scores->rank, wanted);
    int axis = (int)wanted + (wanted < 0 ? scores->rank : 0);
    size_t n = scores->shape[axis], stride = 1;
    for (int after = axis + 1; after < scores->rank; after++)
        stride *= scores->shape[after];
    for (size_t block = 0; n && block < scores->size; block += n * stride)
        for (size_t i = 0; i < stride; i++)
            softmax_row(scores->data + block + i, n, stride);
    return scores;
}

static Array *layer_norm(void)
{
    Array *x = floats("x", "*batch d_model");
    Array *gamma = floats_or_null("gamma", "d_model"), *beta = floats_or_null("beta", "d_model");
    double eps = number("eps", 1e-5);
    const char *variant = text("variant", "standard");
    int standard = !strcmp(variant, "standard"), unbiased = !strcmp(variant, "unbiased_std_plus_eps");
    size_t n = x->shape[x->rank - 1];
    if (!standard && !unbiased && strcmp(variant, "std_plus_eps"))
        refuse("variant must be standard, std_plus_eps or unbiased_std_plus_eps, got %s", variant);
    if (!(eps >= 0))
        refuse("eps must not be negative, got %g", eps);
    if (unbiased && n == 1)
        refuse("unbiased_std_plus_eps needs a d_model of at least 2");
    size_t divisor = unbiased || mistaken ? n - 1 : n;
    for (double *row = x->data; row < x->data + x->size; row += n) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < n; i++)
            sum += row[i];
        double mean = sum / n;
        for (size_t i = 0; i < n; i++)
            squares += (row[i] - mean) * (row[i] - mean);
        double variance = squares / divisor;
        double deviation = standard ? sqrt(variance + eps) : sqrt(variance) + eps;
        for (size_t i = 0; i < n; i++)
            row[i] = (row[i] - mean) / deviation * (gamma ? gamma->data[i] : 1) + (beta ? beta->data[i] : 0);
    }
    return x;
}

static Array *gelu(void)
{
    Array *x = floats("x", "*batch");
    const char *form = text("approximate", "none");
    int by_tanh = !strcmp(form, "tanh");
    if (!by_tanh && strcmp(form, "none"))
        refuse("approximate must be none or tanh, got %s", form);
    for (size_t i = 0; i < x->size; i++) {
        double v = x->data[i];
        double twice = 1 + (by_tanh ? tanh(sqrt(2 / acos(-1)) * (v + 0.044715 * v * v * v)) : erf(v / sqrt(2)));
        x->data[i] = v / 2 * twice;
    }
    return x;
}

/* The rows of a matrix, `stride` apart: a head is some columns of a wider one. */
typedef struct {
    double *data;
    size_t stride, n, width;
} Rows;

typedef struct {
    const double *mask, *bias; /* [q.n, k.n], or NULL */
    int causal;
    double scale;
} Options;

/* Say whether query i of q_seq may see key j of k_seq: both sequences end at the same token. */
static int sees(Options options, size_t i, size_t j, size_t q_seq, size_t k_seq)
{
    return (!options.mask || options.mask[i * k_seq + j]) && (!options.causal || j + q_seq <= i + k_seq);
}

/* Give each query the mean of the values that it may see. What is hidden is never looked at: it may be NaN. */
static void attend(Rows out, Rows q, Rows k, Rows v, Options options)
{
    double *weights = take(k.n * sizeof *weights);
    for (size_t i = 0; i < q.n; i++) {
        for (size_t j = 0; j < k.n; j++) {
            weights[j] = -INFINITY;
            if (!sees(options, i, j, q.n, k.n))
                continue;
            weights[j] = options.bias ? options.bias[i * k.n + j] : 0;
            for (size_t c = 0; c < q.width; c++)
                weights[j] += options.scale * q.data[i * q.stride + c] * k.data[j * k.stride + c];
        }
        softmax_row(weights, k.n, 1);
        for (size_t c = 0; c < v.width; c++) {
            double mean = 0;
            for (size_t j = 0; j < k.n; j++)
                if (sees(options, i, j, q.n, k.n))
                    mean += weights[j] * v.data[j * v.stride + c];
            out.data[i * out.stride + c] = mean;
        }
    }
}

/* Give the rows of one matrix of the batch. */
static Rows rows_of(const Array *array, size_t batch)
{
    size_t n = axis_from_end(array, 2), width = axis_from_end(array, 1);
    return (Rows){array->data + batch * n * width, width, n, width};
}

static Array *scaled_dot_product_attention(void)
{
    Array *q = floats("q", "*batch q_seq d_k");
    Array *k = floats("k", "*batch k_seq d_k");
    Array *v = floats("v", "*batch k_seq d_v");
    Array *mask = truths_or_null("mask", "*#batch q_seq k_seq"), *bias = floats_or_null("bias", "*#batch q_seq k_seq");
    Options options = {.causal = truth("causal"), .scale = number("scale", 1 / sqrt(axis_from_end(q, 1)))};
    Array *out = new_array_like(q, axis_from_end(v, 1));
    for (size_t b = 0; b < batch_size(); b++) {
        options.mask = of_batch(mask, b);
        options.bias = of_batch(bias, b);
        attend(rows_of(out, b), rows_of(q, b), rows_of(k, b), rows_of(v, b), options);
    }
    return out;
}

/* x w + bias, on the last axis of x. */
static Array *affine(const Array *x, const Array *w, const Array *bias)
{
    size_t n = w->shape[0], width = w->shape[1];
    Array *y = new_array_like(x, width);
    for (size_t row = 0; row < x->size / n; row++)
        for (size_t j = 0; j < width; j++) {
            double sum = bias ? bias->data[j] : 0;
            for (size_t i = 0; i < n; i++)
                sum += x->data[row * n + i] * w->data[i * width + j];
            y->data[row * width + j] = sum;
        }
    return y;
}

static Rows head_of(Rows rows, size_t head, size_t n_heads)
{
    size_t width = rows.width / n_heads;
    return (Rows){rows.data + head * width, rows.stride, rows.n, width};
}

static Array *multi_head_attention(void)
{
    Array *x = floats("x", "*batch q_seq d_model");
    Array *context = floats_or_null("context", "*batch k_seq d_model");
    if (!context)
        context = floats("x", "*batch k_seq d_model");
    Array *w_q = floats("w_q", "d_model heads_d_k"), *b_q = floats_or_null("b_q", "heads_d_k");
    Array *w_k = floats("w_k", "d_model heads_d_k"), *b_k = floats_or_null("b_k", "heads_d_k");
    Array *w_v = floats("w_v", "d_model heads_d_v"), *b_v = floats_or_null("b_v", "heads_d_v");
    Array *w_o = floats_or_null("w_o", "heads_d_v d_model"), *b_o = floats_or_null("b_o", "d_model");
    Array *mask = truths_or_null("mask", "*#batch q_seq k_seq");
    double heads = number("n_heads", 0);
    if (!(heads >= 1) || fmod(w_q->shape[1], heads) || fmod(w_v->shape[1], heads))
        refuse("n_heads must divide the widths %zu and %zu, got %g", w_q->shape[1], w_v->shape[1], heads);
    if (b_o && !w_o)
        refuse("b_o needs w_o");
    size_t n_heads = (size_t)heads;
    Options options = {.causal = truth("causal"), .scale = 1 / sqrt(w_q->shape[1] / n_heads)};
    Array *q = affine(x, w_q, b_q), *k = affine(context, w_k, b_k), *v = affine(context, w_v, b_v);
    Array *side_by_side = new_array_like(q, w_v->shape[1]);
    for (size_t b = 0; b < batch_size(); b++)
        for (size_t h = 0; h < n_heads; h++) {
            options.mask = of_batch(mask, b);
            attend(head_of(rows_of(side_by_side, b), h, n_heads), head_of(rows_of(q, b), h, n_heads),
                   head_of(rows_of(k, b), h, n_heads), head_of(rows_of(v, b), h, n_heads), options);
        }
    return w_o ? affine(side_by_side, w_o, b_o) : side_by_side;
}

int main(int count, char **words)
{
    static const Component components[] = {
        {"softmax", softmax},
        {"layer_norm", layer_norm},
        {"gelu", gelu},
        {"scaled_dot_product_attention", scaled_dot_product_attention},
        {"multi_head_attention", multi_head_attention},
    };
    mistaken = count > 1 && !strcmp(words[1], "--mistake");
    return serve(components, sizeof components / sizeof *components);
}
