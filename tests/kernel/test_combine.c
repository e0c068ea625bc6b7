/* test_combine.c -- combining against a definition one element at a time, on every instruction set,
 * with odd counts, odd addresses and bytes around every buffer that must not change. */
#include "harness.h"

#include <math.h>
#include "base/mem.h"
#include "kernel/combine_impl.h"
#include "kernel/cpu/isa.h"

enum { MOST = 9, GUARD = 64, ROOM = 4200 * 8 };

static const ls_dtype types[] = {LS_F32, LS_BF16, LS_F16, LS_F64, LS_I32, LS_I64, LS_U8, LS_I8};

typedef struct buffers {
    char *base[MOST]; /* ROOM bytes and guards each */
    char *was[MOST];
    char *want;
    uint64_t seed;
} buffers;

static uint64_t next(buffers *b)
{
    b->seed = b->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return b->seed >> 33;
}

static void buffers_init(buffers *b)
{
    *b = (buffers){.seed = 1};
    for (int i = 0; i < MOST; i++) {
        b->base[i] = ls_mem_alloc(ROOM + 2 * GUARD);
        b->was[i] = ls_mem_alloc(ROOM + 2 * GUARD);
        LS_CHECK(b->base[i] && b->was[i]);
    }
    b->want = ls_mem_alloc(ROOM);
    LS_CHECK(b->want);
}

static void buffers_release(buffers *b)
{
    for (int i = 0; i < MOST; i++) {
        ls_mem_free(b->base[i]);
        ls_mem_free(b->was[i]);
    }
    ls_mem_free(b->want);
}

/* --- the definition -----------------------------------------------------------------------------
 */

static bool is_float(ls_dtype type)
{
    return type == LS_F32 || type == LS_BF16 || type == LS_F16 || type == LS_F64;
}

static double get_float(ls_dtype type, const char *p)
{
    uint16_t h;
    uint32_t u;
    float f;
    double d;

    switch (type) {
    case LS_F64:
        memcpy(&d, p, 8);
        return d;
    case LS_F32:
        memcpy(&f, p, 4);
        return (double)f;
    case LS_BF16:
        memcpy(&h, p, 2);
        u = (uint32_t)h << 16;
        memcpy(&f, &u, 4);
        return (double)f;
    default:
        memcpy(&h, p, 2);
        d = h & 0x3ff;
        if ((h >> 10 & 31) == 31)
            d = (double)(d != 0 ? NAN : INFINITY);
        else
            d = (h >> 10 & 31) ? ldexp(1024 + d, (h >> 10 & 31) - 25) : ldexp(d, -24);
        return h & 0x8000 ? -d : d;
    }
}

/* x, which is a float, with `digits` binary digits and a smallest unit, to nearest even. */
static double round_to(double x, int digits, int smallest, double largest)
{
    int exponent;

    if (x == 0 || !isfinite(x))
        return x;
    frexp(x, &exponent);
    exponent = exponent - digits > smallest ? exponent - digits : smallest;
    x = ldexp(nearbyint(ldexp(x, -exponent)), exponent);
    return fabs(x) > largest ? copysign((double)INFINITY, x) : x;
}

static void put_float(ls_dtype type, char *p, double x)
{
    if (type == LS_F64) {
        uint64_t nan = UINT64_C(0x7ff8000000000000);
        memcpy(p, isnan(x) ? (const void *)&nan : (const void *)&x, 8);
        return;
    }
    if (type == LS_F32) {
        uint32_t nan = 0x7fc00000;
        float f = (float)x;
        memcpy(p, isnan(x) ? (const void *)&nan : (const void *)&f, 4);
        return;
    }
    uint16_t h = type == LS_BF16 ? 0x7fc0 : 0x7e00;
    if (!isnan(x) && type == LS_BF16) {
        float f = (float)round_to(x, 8, -133, 0x1.fep127);
        uint32_t u;
        memcpy(&u, &f, 4);
        h = (uint16_t)(u >> 16);
    } else if (!isnan(x)) {
        double a = fabs(round_to(x, 11, -24, 65504));
        int e;
        if (isinf(a)) {
            h = 0x7c00;
        } else if (a < 0x1p-14) {
            h = (uint16_t)ldexp(a, 24);
        } else {
            frexp(a, &e);
            h = (uint16_t)(ldexp(a, 11 - e) - 1024 + (double)((e + 14) * 1024));
        }
        h = (uint16_t)(h | (signbit(x) ? 0x8000 : 0));
    }
    memcpy(p, &h, 2);
}

static double combine_float(ls_dtype type, ls_combine_op op, double a, double b)
{
    if (op == LS_COMBINE_SUM)
        return type == LS_F64 ? a + b : (double)((float)a + (float)b);
    if (isnan(a) || isnan(b))
        return (double)NAN;
    if (a == b)
        return signbit(a) == (op == LS_COMBINE_MIN) ? a : b;
    return (a > b) == (op == LS_COMBINE_MAX) ? a : b;
}

static int64_t get_int(ls_dtype type, const char *p)
{
    int32_t x;
    int64_t y;

    if (type == LS_I8)
        return *(const signed char *)p;
    if (type == LS_U8)
        return *(const unsigned char *)p;
    memcpy(&x, p, 4);
    if (type == LS_I32)
        return x;
    memcpy(&y, p, 8);
    return y;
}

static int64_t combine_int(ls_combine_op op, int64_t a, int64_t b)
{
    if (op == LS_COMBINE_SUM)
        return (int64_t)((uint64_t)a + (uint64_t)b);
    return (a > b) == (op == LS_COMBINE_MAX) ? a : b;
}

static void define(const ls_combine *c, char *want, int64_t i)
{
    int64_t size = ls_dtype_bytes(c->type), at = i * size;

    if (c->sources == 1 && (c->scale == 1 || !is_float(c->type))) {
        memcpy(want + at, (const char *)c->from[0] + at, (size_t)size);
    } else if (is_float(c->type)) {
        double x = get_float(c->type, (const char *)c->from[0] + at);
        for (int s = 1; s < c->sources; s++)
            x = combine_float(c->type, c->op, x, get_float(c->type, (const char *)c->from[s] + at));
        if (c->scale != 1)
            x = c->type == LS_F64 ? x * c->scale : (double)((float)x * (float)c->scale);
        put_float(c->type, want + at, x);
    } else {
        int64_t x = get_int(c->type, (const char *)c->from[0] + at);
        for (int s = 1; s < c->sources; s++)
            x = combine_int(c->op, x, get_int(c->type, (const char *)c->from[s] + at));
        memcpy(want + at, &x, (size_t)size); /* little-endian machines, as everywhere */
    }
}

/* --- cases --------------------------------------------------------------------------------------
 */

/* Values of comparable size, and now and then any bits at all: NaN, infinity, -0, tiny. */
static void fill(buffers *b, ls_dtype type, char *p, int64_t count)
{
    int64_t size = ls_dtype_bytes(type);

    for (int64_t i = 0; i < count; i++, p += size) {
        uint64_t any = next(b) << 40 ^ next(b) << 20 ^ next(b);
        if (is_float(type) && any % 7 != 0)
            put_float(type, p, round_to(ldexp((double)next(b) - 0x1p30, -28), 8, -20, 1e4));
        else
            memcpy(p, &any, (size_t)size);
        if (is_float(type) && any % 91 == 0)
            put_float(type, p, any & 1024 ? (double)INFINITY : any & 2048 ? -0.0 : 0.0);
    }
}

static int64_t first_wrong(const char *got, const char *want, int64_t bytes)
{
    int64_t i = 0;

    if (memcmp(got, want, (size_t)bytes) == 0)
        return bytes;
    while (got[i] == want[i])
        i++;
    return i;
}

typedef struct shape {
    int64_t count;
    int sources, targets, place; /* place 0: own targets; 1: the first sources; 2: the last */
    int skew;                    /* bytes of misalignment, different for every buffer */
} shape;

typedef struct loops {
    const char *name;
    void (*run)(const ls_combine *combine, int64_t count);
} loops;

/* Those that this CPU can run; how many. */
static int usable(loops list_out[3])
{
    int n = 0;

    list_out[n++] = (loops){"generic", ls_combine_run_generic};
#if defined(__x86_64__)
    if (!ls_isa_lacks_avx2())
        list_out[n++] = (loops){"avx2", ls_combine_run_avx2};
    if (!ls_isa_lacks_avx512())
        list_out[n++] = (loops){"avx512", ls_combine_run_avx512};
#endif
    return n;
}

static void run_case(buffers *b, ls_combine c, const shape *s)
{
    int64_t size = ls_dtype_bytes(c.type), bytes = s->count * size;
    const void *from[MOST];
    void *to[MOST];
    loops list[3];
    int n_loops = usable(list), first_target = s->place == 0 ? MOST - s->targets : 0;

    first_target = s->place == 2 ? s->sources - s->targets : first_target;
    for (int i = 0; i < MOST; i++) {
        memset(b->was[i], 0x5a, ROOM + 2 * GUARD);
        char *start = b->was[i] + GUARD + s->skew * (i + 1) % GUARD;
        if (i < s->sources)
            fill(b, c.type, start, s->count);
    }
    for (int l = 0; l < n_loops; l++) {
        for (int i = 0; i < MOST; i++)
            memcpy(b->base[i], b->was[i], ROOM + 2 * GUARD);
        for (int i = 0; i < s->sources; i++)
            from[i] = b->base[i] + GUARD + s->skew * (i + 1) % GUARD;
        for (int i = 0; i < s->targets; i++)
            to[i] = b->base[first_target + i] + GUARD + s->skew * (first_target + i + 1) % GUARD;
        c.from = from;
        c.to = to;
        c.sources = s->sources;
        c.targets = s->targets;
        if (l == 0)
            for (int64_t i = 0; i < s->count; i++)
                define(&c, b->want, i);
        list[l].run(&c, s->count);
        for (int i = 0; i < s->targets; i++) {
            int64_t bad = first_wrong(to[i], b->want, bytes) / size;
            if (bad < s->count)
                ls_test_fail(__FILE__, __LINE__,
                             "%s: type %d op %d, %lld elements, %d sources: target %d of %d has a "
                             "wrong element %lld",
                             list[l].name, (int)c.type, (int)c.op, (long long)s->count, s->sources,
                             i, s->targets, (long long)bad);
            char *base = b->base[first_target + i];
            memcpy(to[i], b->was[first_target + i] + ((char *)to[i] - base), (size_t)bytes);
        }
        for (int i = 0; i < MOST; i++) /* everything else is as it was */
            LS_CHECK(memcmp(b->base[i], b->was[i], ROOM + 2 * GUARD) == 0);
    }
}

static const int64_t counts[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 200, 513, 4097};

LS_TEST_SECONDS(combine_equals_definition_on_every_instruction_set, 60)
{
    buffers b;

    buffers_init(&b);
    for (size_t t = 0; t < LS_COUNT(types); t++)
        for (int op = LS_COMBINE_SUM; op <= LS_COMBINE_MIN; op++)
            for (size_t n = 0; n < LS_COUNT(counts); n++)
                for (int sources = 1; sources <= 6; sources += 1 + sources / 4) {
                    ls_combine c = {.type = types[t], .op = (ls_combine_op)op, .scale = 1};
                    shape s = {.count = counts[n], .sources = sources, .targets = 1};
                    run_case(&b, c, &s);
                    s.skew = 8 * (sources % 2) + (int)(n % 7);
                    s.targets = (int)(n % 3) + 1;
                    run_case(&b, c, &s);
                    c.scale = 1.0 / 3;
                    s.place = 1;
                    s.targets = (int)(n % (size_t)sources) + 1;
                    run_case(&b, c, &s);
                    s.place = 2;
                    run_case(&b, c, &s);
                }
    buffers_release(&b);
}

LS_TEST(combine_of_many_sources_into_many_targets)
{
    buffers b;

    buffers_init(&b);
    for (size_t t = 0; t < LS_COUNT(types); t++)
        for (int sources = 2; sources <= MOST; sources++)
            for (int targets = 1; targets <= sources; targets++) {
                ls_combine c = {.type = types[t], .op = LS_COMBINE_SUM, .scale = 1};
                shape s = {.count = 150, .sources = sources, .targets = targets, .place = 1};
                run_case(&b, c, &s);
            }
    buffers_release(&b);
}

/* Every 16-bit value, added to zero: conversion there and back. */
LS_TEST(combine_keeps_every_sixteen_bit_value)
{
    static uint16_t values[65536], zeros[65536], out[65536];
    const void *from[] = {values, zeros};
    void *to[] = {out};
    loops list[3];
    int n_loops = usable(list);

    for (int t = 0; t < 2; t++)
        for (int l = 0; l < n_loops; l++) {
            ls_combine c = {.type = t ? LS_F16 : LS_BF16,
                            .from = from,
                            .sources = 2,
                            .to = to,
                            .targets = 1,
                            .scale = 1};
            uint16_t inf = t ? 0x7c00 : 0x7f80, nan = t ? 0x7e00 : 0x7fc0;
            for (int i = 0; i < 65536; i++)
                values[i] = (uint16_t)i;
            list[l].run(&c, 65536);
            for (int i = 0; i < 65536; i++) {
                int want = (i & 0x7fff) > inf ? nan : i == 0x8000 ? 0 : i; /* -0 + 0 is 0 */
                LS_CHECK_EQ(out[i], want);
            }
        }
}

/* The sum of 16-bit numbers is rounded once: 1 + 2^-8 + 2^-8 is 1 in bf16 when rounded each time.
 */
LS_TEST(combine_rounds_sixteen_bits_once)
{
    uint16_t one = 0x3f80, small = 0x3b80, out = 0;
    const void *from[] = {&one, &small, &small};
    void *to[] = {&out};

    ls_combine_run(
        &(ls_combine){
            .type = LS_BF16, .from = from, .sources = 3, .to = to, .targets = 1, .scale = 1},
        1);
    LS_CHECK_EQ(out, 0x3f81);
}
