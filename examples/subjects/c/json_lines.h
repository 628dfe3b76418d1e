/* Requests and replies in lines of JSON, for a subject in C: what a program needs besides its components. Include it
 * once, in the file with the components.
 *
 * A component asks for its arguments by name, says what they must be, and gives an array; what is not as it must be is
 * refused. All memory lasts until the reply is written.
 */
#define _POSIX_C_SOURCE 200809L

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_AXES = 16, DEEPEST = 100 };

typedef struct {
    const char *dtype;
    int rank;
    size_t shape[MOST_AXES], size;
    double *data; /* whatever the dtype is; a truth is 0 or 1 */
} Array;

typedef struct {
    const char *name;
    Array *(*run)(void);
} Component;

typedef struct Value {
    enum { NOTHING, TRUTH, NUMBER, TEXT, LIST, OBJECT } kind;
    double number;
    const char *text, *key;
    struct Value *first, *next; /* the first of a list or object; the next in that which this is in */
    size_t count;
    int taken;
} Value;

/* ---------------------------------------------------------------------------------- what lasts as long as a request */

typedef struct Block {
    struct Block *next;
    max_align_t memory[];
} Block;

static struct {
    Block *blocks;
    const char *at; /* where the parser stands */
    double id;
    Value *arguments;
    const char *dtype; /* of all floating arrays */
    struct {
        const char *name;
        size_t length, size;
    } axes[2 * MOST_AXES];
    int n_axes, batch_rank; /* -1: not known yet */
    size_t batch[MOST_AXES];
    jmp_buf given_up;
    const char *reply; /* "error" or "unsupported", */
    char why[500];     /* and why */
} request;

/* Give memory, filled with zeros. */
static void *take(size_t size)
{
    Block *block = calloc(1, sizeof *block + size);
    if (!block) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    block->next = request.blocks;
    request.blocks = block;
    return block->memory;
}

static void begin_request(const char *line)
{
    while (request.blocks) {
        Block *next = request.blocks->next;
        free(request.blocks);
        request.blocks = next;
    }
    request.at = line;
    request.id = 0;
    request.arguments = NULL;
    request.dtype = NULL;
    request.n_axes = 0;
    request.batch_rank = -1;
}

static _Noreturn void give_up(const char *reply, const char *format, va_list parts)
{
    vsnprintf(request.why, sizeof request.why, format, parts);
    request.reply = reply;
    longjmp(request.given_up, 1);
}

/* Answer that the input is bad. */
static _Noreturn void refuse(const char *format, ...)
{
    va_list parts;
    va_start(parts, format);
    give_up("error", format, parts);
}

/* Answer that this is not offered. */
static _Noreturn void unsupported(const char *format, ...)
{
    va_list parts;
    va_start(parts, format);
    give_up("unsupported", format, parts);
}

/* -------------------------------------------------------------------------------------------------------- JSON, read */

static void skip_space(void)
{
    while (*request.at && strchr(" \t\r\n", *request.at))
        request.at++;
}

static void expect(char wanted)
{
    skip_space();
    if (*request.at != wanted)
        refuse("no JSON: '%c' is missing at %.20s", wanted, request.at);
    request.at++;
}

static const char *parse_text(void)
{
    static const char names[] = "nrtbf\"\\/", meant[] = "\n\r\t\b\f\"\\/";
    expect('"');
    const char *close = request.at;
    while (*close && *close != '"')
        close += *close == '\\' && close[1] ? 2 : 1;
    char *text = take(close - request.at + 1), *end = text;
    for (; *request.at && *request.at != '"'; request.at++)
        if (*request.at == '\\') {
            const char *escape = *++request.at ? strchr(names, *request.at) : NULL;
            if (!escape)
                refuse("a text with \\u, which this program does not read");
            *end++ = meant[escape - names];
        } else
            *end++ = *request.at;
    expect('"');
    return text;
}

static int parse_word(Value *value, const char *word, int kind, double number)
{
    if (strncmp(request.at, word, strlen(word)))
        return 0;
    request.at += strlen(word);
    value->kind = kind;
    value->number = number;
    return 1;
}

static Value *parse(int depth)
{
    Value *value = take(sizeof *value), **end = &value->first;
    if (depth > DEEPEST)
        refuse("JSON that is more than %d deep", DEEPEST);
    skip_space();
    if (parse_word(value, "null", NOTHING, 0) || parse_word(value, "true", TRUTH, 1) ||
        parse_word(value, "false", TRUTH, 0))
        return value;
    if (*request.at == '"') {
        value->kind = TEXT;
        value->text = parse_text();
    } else if (*request.at == '[' || *request.at == '{') {
        value->kind = *request.at == '[' ? LIST : OBJECT;
        char close = *request.at++ == '[' ? ']' : '}';
        for (skip_space(); *request.at != close; skip_space()) {
            if (value->count++)
                expect(',');
            const char *key = value->kind == OBJECT ? (skip_space(), parse_text()) : NULL;
            if (key)
                expect(':');
            *end = parse(depth + 1);
            (*end)->key = key;
            end = &(*end)->next;
        }
        request.at++;
    } else {
        char *after;
        value->kind = NUMBER;
        value->number = strtod(request.at, &after);
        if (after == request.at)
            refuse("no JSON: a value is missing at %.20s", request.at);
        request.at = after;
    }
    return value;
}

static Value *member(const Value *object, const char *key)
{
    for (Value *value = object->first; value; value = value->next)
        if (value->key && !strcmp(value->key, key))
            return value;
    return NULL;
}

static double as_number(const Value *value, const char *name)
{
    if (value->kind == TEXT && (!strcmp(value->text, "NaN") || strstr(value->text, "Infinity")))
        return strtod(value->text, NULL);
    if (value->kind != NUMBER && value->kind != TRUTH)
        refuse("%s holds what is no number", name);
    return value->number;
}

/* --------------------------------------------------------------------------------------------------------- arguments */

/* Give an argument, or NULL if it is absent or null. */
static Value *argument(const char *name)
{
    Value *value = member(request.arguments, name);
    if (value)
        value->taken = 1;
    return value && value->kind != NOTHING ? value : NULL;
}

static double number(const char *name, double otherwise)
{
    const Value *value = argument(name);
    return value ? as_number(value, name) : otherwise;
}

static int truth(const char *name)
{
    return number(name, 0) != 0;
}

static const char *text(const char *name, const char *otherwise)
{
    const Value *value = argument(name);
    if (value && value->kind != TEXT)
        refuse("%s must be a text", name);
    return value ? value->text : otherwise;
}

static Array *new_array(int rank, const size_t *shape)
{
    Array *array = take(sizeof *array);
    array->dtype = request.dtype;
    array->rank = rank;
    array->size = 1;
    for (int axis = 0; axis < rank; axis++)
        array->size *= array->shape[axis] = shape[axis];
    array->data = take(array->size * sizeof *array->data);
    return array;
}

/* Give a new array of this shape, but for the length of its last axis. */
static Array *new_array_like(const Array *other, size_t width)
{
    size_t shape[MOST_AXES];
    memcpy(shape, other->shape, sizeof shape);
    shape[other->rank - 1] = width;
    return new_array(other->rank, shape);
}

static size_t axis_from_end(const Array *array, int place)
{
    return array->shape[array->rank - place];
}

/* Hold an axis against the others of its name. Only a sequence may be empty. */
static void check_axis(const char *array, const char *name, size_t length, size_t size)
{
    if (!size && (length < 3 || strncmp(name + length - 3, "seq", 3)))
        refuse("%s: %.*s must be at least 1", array, (int)length, name);
    for (int i = 0; i < request.n_axes; i++)
        if (request.axes[i].length == length && !strncmp(request.axes[i].name, name, length)) {
            if (request.axes[i].size != size)
                refuse("%s: %.*s is %zu, and elsewhere %zu", array, (int)length, name, size, request.axes[i].size);
            return;
        }
    request.axes[request.n_axes].name = name;
    request.axes[request.n_axes].length = length;
    request.axes[request.n_axes++].size = size;
}

/* Hold a shape against `axes`: names, and first *batch, or *#batch for what may be spread over the batch. */
static void check_axes(const char *name, const Array *array, const char *axes)
{
    int leading = array->rank, spread = !strncmp(axes, "*#", 2), batched = *axes == '*';
    for (const char *end = axes + strlen(axes), *begin = end; begin > axes; end = begin - 1) {
        for (begin = end; begin > axes && begin[-1] != ' ';)
            begin--;
        if (*begin == '*')
            break;
        if (--leading < 0)
            refuse("%s must have the axes %s, got %d", name, axes, array->rank);
        check_axis(name, begin, end - begin, array->shape[leading]);
    }
    if (!batched) {
        if (leading)
            refuse("%s must have the axes %s, got %d", name, axes, array->rank);
        return;
    }
    if (request.batch_rank < 0) {
        request.batch_rank = leading;
        memcpy(request.batch, array->shape, leading * sizeof *request.batch);
    }
    if (leading > request.batch_rank || (leading < request.batch_rank && !spread))
        refuse("%s has %d batch axes, and another has %d", name, leading, request.batch_rank);
    for (int axis = 1; axis <= leading; axis++) {
        size_t size = array->shape[leading - axis], wanted = request.batch[request.batch_rank - axis];
        if (size != wanted && !(spread && size == 1))
            refuse("%s has a batch axis of %zu, and another has %zu", name, size, wanted);
    }
}

/* Give an array, or NULL if it is absent. `kind` is what the name of its dtype begins with. */
static Array *read_array(const char *name, const char *kind, const char *axes)
{
    const Value *value = argument(name);
    if (!value)
        return NULL;
    const Value *dtype = member(value, "dtype"), *shape = member(value, "shape"), *data = member(value, "data");
    if (!dtype || dtype->kind != TEXT || strncmp(dtype->text, kind, strlen(kind)))
        refuse("%s must be an array of kind %s, got %s", name, kind, dtype && dtype->text ? dtype->text : "none");
    if (!shape || !data || shape->kind != LIST || data->kind != LIST || shape->count > MOST_AXES)
        refuse("%s must have a shape of at most %d axes, and data", name, MOST_AXES);
    size_t sizes[MOST_AXES], size = 1, place = 0;
    for (const Value *axis = shape->first; axis; axis = axis->next)
        size *= sizes[place++] = (size_t)as_number(axis, name);
    if (size != data->count)
        refuse("%s has room for %zu numbers, and data holds %zu", name, size, data->count);
    Array *array = new_array((int)place, sizes);
    array->dtype = dtype->text;
    place = 0;
    for (const Value *item = data->first; item; item = item->next)
        array->data[place++] = as_number(item, name);
    check_axes(name, array, axes);
    return array;
}

static Array *truths_or_null(const char *name, const char *axes)
{
    return read_array(name, "bool", axes);
}

static Array *floats_or_null(const char *name, const char *axes)
{
    Array *array = read_array(name, "float", axes);
    if (array && request.dtype && strcmp(request.dtype, array->dtype))
        refuse("%s has dtype %s, and another has %s", name, array->dtype, request.dtype);
    if (array)
        request.dtype = array->dtype;
    return array;
}

static Array *floats(const char *name, const char *axes)
{
    Array *array = floats_or_null(name, axes);
    if (!array)
        refuse("%s is missing", name);
    return array;
}

static size_t batch_size(void)
{
    size_t size = 1;
    for (int axis = 0; axis < request.batch_rank; axis++)
        size *= request.batch[axis];
    return size;
}

/* Give the matrix for one of the batch of a mask or bias, which may be shared along some batch axes; or NULL. */
static const double *of_batch(const Array *array, size_t batch)
{
    if (!array)
        return NULL;
    size_t offset = 0, stride = axis_from_end(array, 1) * axis_from_end(array, 2);
    for (int axis = 1; axis <= array->rank - 2; axis++) {
        size_t size = axis_from_end(array, 2 + axis), whole = request.batch[request.batch_rank - axis];
        offset += batch % whole % size * stride;
        batch /= whole;
        stride *= size;
    }
    return array->data + offset;
}

/* ----------------------------------------------------------------------------------------------------------- replies */

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar((unsigned char)*text < ' ' ? ' ' : *text);
    putchar('"');
}

static void print_number(double value)
{
    if (isfinite(value))
        printf("%.17g", value);
    else
        fputs(isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"", stdout);
}

static void print_array(const Array *array)
{
    printf("{\"dtype\": \"%s\", \"shape\": [", array->dtype);
    for (int axis = 0; axis < array->rank; axis++)
        printf(axis ? ", %zu" : "%zu", array->shape[axis]);
    printf("], \"data\": [");
    for (size_t i = 0; i < array->size; i++) {
        if (i)
            fputs(", ", stdout);
        print_number(array->data[i]);
    }
    printf("]}");
}

static Array *answer(const char *call, const Component *components, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(components[i].name, call)) {
            Array *result = components[i].run();
            for (const Value *value = request.arguments->first; value; value = value->next)
                if (!value->taken && value->kind != NOTHING)
                    unsupported("%s has no option %s", call, value->key);
            return result;
        }
    unsupported("there is no %s", call);
}

static void print_hello(const Component *components, size_t count)
{
    printf("{\"id\": %.0f, \"spec_version\": \"0.3.0\", \"components\": [", request.id);
    for (size_t i = 0; i < count; i++)
        printf("%s\"%s\"", i ? ", " : "", components[i].name);
    printf("]}\n");
}

static void reply_to(const Value *whole, const Component *components, size_t count)
{
    const Value *id = member(whole, "id"), *call = member(whole, "call");
    request.id = id ? id->number : 0;
    request.arguments = member(whole, "arguments");
    if (call && call->kind == TEXT && !strcmp(call->text, "hello")) {
        print_hello(components, count);
        return;
    }
    if (!call || call->kind != TEXT || !request.arguments || request.arguments->kind != OBJECT)
        refuse("a request has a call and its arguments");
    const Array *result = answer(call->text, components, count);
    printf("{\"id\": %.0f, \"result\": ", request.id);
    print_array(result);
    printf("}\n");
}

/* Answer requests until there are no more. */
static int serve(const Component *components, size_t count)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        begin_request(line);
        if (!setjmp(request.given_up))
            reply_to(parse(0), components, count);
        else {
            printf("{\"id\": %.0f, \"%s\": ", request.id, request.reply);
            print_text(request.why);
            printf("}\n");
        }
        fflush(stdout);
    }
    free(line);
    return 0;
}
