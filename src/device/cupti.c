/* cupti.c -- CUPTI's activity records by hand: buffers in, spans out.
 *
 *   begin ----- push 7, launch, launch, pop ----- (the caller waits) ----- collect
 *      |              |                                                       |
 *   both clocks    CUPTI gives both launches a number (correlation),       both clocks again,
 *   are read       and tells "7 is around number 41, 42"                    flush: records come
 *
 * A record of a kernel has its number, its times and its name; a record of kind EXTERNAL has a
 * number and the tag around it. They come in any order and in different buffers, so numbers are
 * kept in a hash table until everything is there. CUPTI makes the latter only for calls that it
 * records itself, hence the kinds DRIVER and RUNTIME, whose records are thrown away (cuBLASLt and
 * cuDNN launch through the driver, we through the runtime).
 *
 * CUPTI's callbacks have no context, so `listener` is the one global here, under `lock`, which also
 * guards what callbacks write. Times are CUPTI's until collected, then ours: see ls_cupti_align().
 * The library is never closed: it does not survive that while CUDA is in use. */
#include "device/cupti.h"

#include <dlfcn.h>
#include <pthread.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/time.h"
#include "device/cupti_impl.h"

#define LIBRARY "libcupti.so.13"
#define VARIABLE "LINESHAFT_CUPTI"

/* Records are those of CUDA 13; another major version may have changed them. */
enum { LEAST_VERSION = 130000, MOST_VERSION = 139999 };
enum { BUFFER_BYTES = 1 << 20, NUMBERS = 1 << 18, NAMES = 1024, CLOCK_READS = 5 };
enum { SLACK_NS = 100000 }; /* CUPTI's times may be off by this much */

typedef void (*requested)(uint8_t **buffer_out, size_t *bytes_out, size_t *most_records_out);
typedef void (*completed)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                          size_t used);

typedef struct number { /* a place of the hash table; tag 0: free */
    uint64_t tag;
    uint32_t correlation;
} number;

typedef struct name {
    const char *raw; /* CUPTI's, never looked through again: equal pointers are equal names */
    int text;
} name;

/* All functions return 0 when they worked. */
struct ls_cupti {
    void *library;
    int (*version)(uint32_t *version_out);
    int (*result_text)(int result, const char **text_out);
    int (*register_callbacks)(requested give, completed take);
    int (*enable)(int kind);
    int (*disable)(int kind);
    int (*flush)(uint32_t flag);
    int (*next)(uint8_t *buffer, size_t used, void **record);
    int (*timestamp)(uint64_t *ns_out);
    int (*lost)(void *context, uint32_t stream, size_t *count_out);
    int (*push)(int kind, uint64_t id);
    int (*pop)(int kind, uint64_t *id_out);
    char *(*demangle)(const char *name, char *buffer, size_t *bytes, int *status_out);

    bool recording;
    ls_cupti_moment begun;
    int64_t from; /* theirs: earlier records are not kept */
    ls_cupti_span *spans;
    uint32_t *correlations; /* of spans */
    int64_t n, room, dropped;
    number *numbers;
    int64_t n_numbers;
    name names[NAMES];
    char texts[NAMES][LS_CUPTI_NAME];
    int n_names, n_texts;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ls_cupti *listener;

/* --- times ---------------------------------------------------------------------------------- */

int64_t ls_cupti_align(ls_cupti_moment a, ls_cupti_moment b, int64_t theirs)
{
    int64_t length = b.theirs - a.theirs, drift = (b.ours - a.ours) - length;
    int64_t since = theirs - a.theirs;

    if (length <= 0)
        return a.ours + since;
    return a.ours + since + (int64_t)((double)drift * (double)since / (double)length);
}

/* Both clocks at one moment: the narrowest of a few pairs of our readings around theirs. */
static ls_cupti_moment now(const ls_cupti *c)
{
    ls_cupti_moment best = {0};
    int64_t width = INT64_MAX;

    for (int i = 0; i < CLOCK_READS; i++) {
        uint64_t theirs = 0;
        int64_t before = ls_time_now_ns();
        if (c->timestamp(&theirs) != 0)
            continue;
        int64_t after = ls_time_now_ns();
        if (after - before < width) {
            width = after - before;
            best = (ls_cupti_moment){before + width / 2, (int64_t)theirs};
        }
    }
    return best;
}

/* --- names ---------------------------------------------------------------------------------- */

static int add_text(ls_cupti *c, const char *text)
{
    for (int i = 0; i < c->n_texts; i++)
        if (strcmp(c->texts[i], text) == 0)
            return i;
    if (c->n_texts == NAMES)
        return NAMES - 1; /* more kernels than any run has: they share a name */
    snprintf(c->texts[c->n_texts], LS_CUPTI_NAME, "%s", text);
    return c->n_texts++;
}

static int name_of(ls_cupti *c, const char *raw)
{
    char text[LS_CUPTI_NAME] = "(no name)";

    for (int i = 0; i < c->n_names; i++)
        if (c->names[i].raw == raw)
            return c->names[i].text;
    if (raw) {
        int status = -1;
        char *full = c->demangle ? c->demangle(raw, NULL, NULL, &status) : NULL;
        if (full && status == 0)
            ls_cupti_shorten(full, text);
        else
            ls_cupti_unmangle(raw, text);
        free(full); /* the demangler's, not from ls_mem_alloc() */
    }
    int index = add_text(c, text);
    if (c->n_names < NAMES)
        c->names[c->n_names++] = (name){raw, index};
    return index;
}

static const char *copy_name(int how)
{
    static const char *const names[] = {
        [1] = "copy host to device", [2] = "copy device to host",    [8] = "copy on the device",
        [9] = "copy host to host",   [10] = "copy device to device",
    };

    return how >= 0 && how < (int)LS_COUNT(names) && names[how] ? names[how] : "copy";
}

/* --- records, under the lock ---------------------------------------------------------------- */

static void add_span(ls_cupti *c, ls_cupti_span span, uint32_t correlation)
{
    if (span.begin_ns < c->from && span.begin_ns != 0)
        return;
    if (c->n == c->room || span.begin_ns == 0 || span.end_ns < span.begin_ns) {
        c->dropped += c->from != INT64_MAX; /* no room, or times that CUPTI did not get */
        return;
    }
    c->correlations[c->n] = correlation;
    c->spans[c->n++] = span;
}

static void add_kernel(ls_cupti *c, const ls_cupti_kernel_record *r)
{
    add_span(c,
             (ls_cupti_span){.begin_ns = (int64_t)r->start,
                             .end_ns = (int64_t)r->end,
                             .kind = LS_CUPTI_KERNEL,
                             .name = name_of(c, r->name)},
             r->correlation);
}

static void add_copy(ls_cupti *c, const ls_cupti_copy_record *r)
{
    bool copy = r->kind == LS_CUPTI_KIND_COPY;
    int64_t times = copy && (r->how == 8 || r->how == 10) ? 2 : 1; /* read and written here */

    add_span(c,
             (ls_cupti_span){.begin_ns = (int64_t)r->start,
                             .end_ns = (int64_t)r->end,
                             .kind = copy ? LS_CUPTI_COPY : LS_CUPTI_SET,
                             .name = add_text(c, copy ? copy_name(r->how) : "set memory"),
                             .bytes = times * (int64_t)r->bytes},
             r->correlation);
}

static size_t place_of(uint32_t correlation)
{
    return (size_t)(correlation * 2654435761u) % NUMBERS;
}

/* Tags around a call come from the outside in: the last one counts. */
static void add_number(ls_cupti *c, const ls_cupti_external_record *r)
{
    size_t at = place_of(r->correlation);

    if (r->external_kind != LS_CUPTI_EXTERNAL_OURS || r->id == 0)
        return;
    while (c->numbers[at].tag && c->numbers[at].correlation != r->correlation)
        at = (at + 1) % NUMBERS;
    if (!c->numbers[at].tag && c->n_numbers >= NUMBERS / 4 * 3)
        return; /* its kernels will have no tag */
    c->n_numbers += !c->numbers[at].tag;
    c->numbers[at] = (number){r->id, r->correlation};
}

static uint64_t tag_of(const ls_cupti *c, uint32_t correlation)
{
    size_t at = place_of(correlation);

    while (c->numbers[at].tag && c->numbers[at].correlation != correlation)
        at = (at + 1) % NUMBERS;
    return c->numbers[at].tag;
}

static void add_record(ls_cupti *c, const void *record)
{
    uint32_t kind;

    memcpy(&kind, record, sizeof kind);
    if (kind == LS_CUPTI_KIND_KERNEL)
        add_kernel(c, record);
    else if (kind == LS_CUPTI_KIND_COPY || kind == LS_CUPTI_KIND_SET)
        add_copy(c, record);
    else if (kind == LS_CUPTI_KIND_EXTERNAL)
        add_number(c, record);
}

/* --- CUPTI's callbacks, from any thread ----------------------------------------------------- */

static void give_buffer(uint8_t **buffer_out, size_t *bytes_out, size_t *most_records_out)
{
    uint8_t *buffer = ls_mem_alloc(BUFFER_BYTES); /* aligned to 8 or more, as it must be */

    if (!buffer)
        ls_err_clear(); /* CUPTI counts what it loses */
    *buffer_out = buffer;
    *bytes_out = buffer ? BUFFER_BYTES : 0;
    *most_records_out = 0; /* as many as fit */
}

static void take_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t used)
{
    void *record = NULL;
    size_t lost = 0;

    (void)bytes;
    pthread_mutex_lock(&lock);
    ls_cupti *c = listener;
    while (c && used > 0 && c->next(buffer, used, &record) == 0)
        add_record(c, record);
    if (c && c->lost && c->lost(context, stream, &lost) == 0)
        c->dropped += (int64_t)lost;
    pthread_mutex_unlock(&lock);
    ls_mem_free(buffer);
}

/* --- opening -------------------------------------------------------------------------------- */

typedef struct symbol {
    const char *name;
    size_t at; /* of the pointer in ls_cupti */
    bool needed;
} symbol;

#define AT(member) offsetof(struct ls_cupti, member)
static const symbol symbols[] = {
    {"cuptiGetVersion", AT(version), true},
    {"cuptiGetResultString", AT(result_text), false},
    {"cuptiActivityRegisterCallbacks", AT(register_callbacks), true},
    {"cuptiActivityEnable", AT(enable), true},
    {"cuptiActivityDisable", AT(disable), true},
    {"cuptiActivityFlushAll", AT(flush), true},
    {"cuptiActivityGetNextRecord", AT(next), true},
    {"cuptiGetTimestamp", AT(timestamp), true},
    {"cuptiActivityGetNumDroppedRecords", AT(lost), false},
    {"cuptiActivityPushExternalCorrelationId", AT(push), true},
    {"cuptiActivityPopExternalCorrelationId", AT(pop), true},
};

/* Where toolkits keep it, should the loader not know. */
static const char *const places[] = {LIBRARY, "/usr/local/cuda/extras/CUPTI/lib64/" LIBRARY,
                                     "/usr/local/cuda/lib64/" LIBRARY};

static bool open_library(ls_cupti *c, char why_out[160])
{
    const char *given = getenv(VARIABLE), *error = NULL;

    if (given && *given) {
        c->library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        error = c->library ? NULL : dlerror();
    } else {
        for (size_t i = 0; i < LS_COUNT(places) && !c->library; i++) {
            c->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
            const char *text = c->library ? NULL : dlerror();
            error = i == 0 || (text && !strstr(text, "No such file")) ? text : error;
        }
    }
    if (c->library)
        return true;
    if (error && !strstr(error, "No such file"))
        snprintf(why_out, 160, "%.159s", error);
    else
        snprintf(why_out, 160, "there is no \"%.110s\"", given && *given ? given : LIBRARY);
    return false;
}

static bool look_up(ls_cupti *c, char why_out[160])
{
    void *cpp;

    for (size_t i = 0; i < LS_COUNT(symbols); i++) {
        void *p = dlsym(c->library, symbols[i].name);
        if (!p && symbols[i].needed) {
            snprintf(why_out, 160, "CUPTI's library lacks %s", symbols[i].name);
            return false;
        }
        memcpy((char *)c + symbols[i].at, &p, sizeof p);
    }
    /* The CUDA libraries have loaded it; without it names are less complete. */
    cpp = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL);
    cpp = cpp ? dlsym(cpp, "__cxa_demangle") : NULL;
    memcpy(&c->demangle, &cpp, sizeof cpp);
    return true;
}

static bool refused(const ls_cupti *c, const char *what, int code, char why_out[160])
{
    const char *text = NULL;

    if (!c->result_text || c->result_text(code, &text) != 0 || !text)
        text = "no reason given";
    snprintf(why_out, 160, "CUPTI does not %s: %.80s (its code %d)", what, text, code);
    return false;
}

static void stop_kinds(const ls_cupti *c)
{
    static const int kinds[] = {LS_CUPTI_KIND_EXTERNAL, LS_CUPTI_KIND_RUNTIME,
                                LS_CUPTI_KIND_DRIVER,   LS_CUPTI_KIND_SET,
                                LS_CUPTI_KIND_COPY,     LS_CUPTI_KIND_KERNEL};

    for (size_t i = 0; i < LS_COUNT(kinds); i++)
        c->disable(kinds[i]);
}

/* Kernels are what it is for. Without copies, fills or tags there is less to show. */
static bool start_kinds(const ls_cupti *c, char why_out[160])
{
    int code = c->enable(LS_CUPTI_KIND_KERNEL);

    if (code != 0)
        return refused(c, "record kernels", code, why_out);
    c->enable(LS_CUPTI_KIND_COPY);
    c->enable(LS_CUPTI_KIND_SET);
    if (c->enable(LS_CUPTI_KIND_EXTERNAL) == 0) {
        c->enable(LS_CUPTI_KIND_DRIVER);
        c->enable(LS_CUPTI_KIND_RUNTIME);
    }
    return true;
}

static bool start(ls_cupti *c, char why_out[160])
{
    uint32_t version = 0;
    int code;

    if (!open_library(c, why_out) || !look_up(c, why_out))
        return false;
    code = c->version(&version);
    if (code != 0)
        return refused(c, "tell its version", code, why_out);
    if (version < LEAST_VERSION || version > MOST_VERSION) {
        snprintf(why_out, 160, "CUPTI's version is %u, and only that of CUDA 13 is known", version);
        return false;
    }
    if (now(c).theirs == 0)
        return refused(c, "tell the time", 0, why_out);
    code = c->register_callbacks(give_buffer, take_buffer);
    if (code != 0)
        return refused(c, "take a listener", code, why_out);
    return true;
}

static void release(ls_cupti *c)
{
    ls_mem_free(c->spans);
    ls_mem_free(c->correlations);
    ls_mem_free(c->numbers);
    ls_mem_free(c);
}

const char *ls_cupti_open(ls_cupti **cupti_out, int64_t room, char why_out[160])
{
    ls_cupti *c = ls_mem_alloc(sizeof *c);

    if (c) {
        c->room = room;
        c->from = INT64_MAX;
        c->spans = ls_mem_array((size_t)room, sizeof *c->spans);
        c->correlations = ls_mem_array((size_t)room, sizeof *c->correlations);
        c->numbers = ls_mem_array(NUMBERS, sizeof *c->numbers);
    }
    if (!c || !c->spans || !c->correlations || !c->numbers) {
        ls_err_clear();
        snprintf(why_out, 160, "there is no memory for it");
        if (c)
            release(c);
        return why_out;
    }
    LS_BUG_IF(listener, "two listeners to CUPTI");
    bool ok = start(c, why_out);
    if (ok) {
        pthread_mutex_lock(&lock);
        listener = c;
        pthread_mutex_unlock(&lock);
        ok = start_kinds(c, why_out);
    }
    if (!ok) {
        pthread_mutex_lock(&lock);
        listener = NULL;
        pthread_mutex_unlock(&lock);
        release(c);
        return why_out;
    }
    c->recording = true;
    *cupti_out = c;
    return NULL;
}

void ls_cupti_stop(ls_cupti *cupti)
{
    ls_cupti *c = cupti;

    if (!c->recording)
        return;
    stop_kinds(c);
    c->flush(LS_CUPTI_FLUSH_FORCED); /* so that no buffer of ours stays with CUPTI */
    pthread_mutex_lock(&lock);
    listener = NULL;
    pthread_mutex_unlock(&lock);
    c->recording = false;
}

void ls_cupti_close(ls_cupti *cupti)
{
    if (!cupti)
        return;
    ls_cupti_stop(cupti);
    release(cupti);
}

/* --- recording ------------------------------------------------------------------------------ */

void ls_cupti_begin(ls_cupti *cupti)
{
    ls_cupti *c = cupti;
    ls_cupti_moment begun = now(c);

    pthread_mutex_lock(&lock);
    c->begun = begun;
    c->from = begun.theirs - SLACK_NS;
    c->n = 0;
    if (c->n_numbers > 0)
        memset(c->numbers, 0, NUMBERS * sizeof *c->numbers);
    c->n_numbers = 0;
    pthread_mutex_unlock(&lock);
}

void ls_cupti_push(ls_cupti *cupti, uint64_t tag)
{
    cupti->push(LS_CUPTI_EXTERNAL_OURS, tag);
}

void ls_cupti_pop(ls_cupti *cupti)
{
    uint64_t tag;

    cupti->pop(LS_CUPTI_EXTERNAL_OURS, &tag);
}

static int by_begin(const void *a, const void *b)
{
    const ls_cupti_span *x = a, *y = b;

    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns);
}

int64_t ls_cupti_collect(ls_cupti *cupti, const ls_cupti_span **spans_out)
{
    ls_cupti *c = cupti;

    c->flush(LS_CUPTI_FLUSH_FORCED);
    ls_cupti_moment ended = now(c);
    pthread_mutex_lock(&lock);
    c->from = INT64_MAX;
    for (int64_t i = 0; i < c->n; i++) {
        ls_cupti_span *s = &c->spans[i];
        s->tag = tag_of(c, c->correlations[i]);
        s->begin_ns = ls_cupti_align(c->begun, ended, s->begin_ns);
        s->end_ns = ls_cupti_align(c->begun, ended, s->end_ns);
    }
    qsort(c->spans, (size_t)c->n, sizeof *c->spans, by_begin);
    *spans_out = c->spans;
    int64_t n = c->n;
    pthread_mutex_unlock(&lock);
    return n;
}

int64_t ls_cupti_dropped(const ls_cupti *cupti)
{
    return cupti->dropped;
}

const char *ls_cupti_name(const ls_cupti *cupti, int index)
{
    return cupti->texts[index];
}
