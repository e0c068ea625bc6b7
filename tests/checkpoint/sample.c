/* sample.c -- see sample.h. */
#include "sample.h"

#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "harness.h"

void sample_add(sample *s, const char *name, const char *kind, const char *group, ls_dtype type,
                int ndim, const int64_t *shape)
{
    ls_ckpt_tensor *t = &s->tensors[s->n++];
    int64_t bytes = ls_dtype_bytes(type);

    LS_CHECK(s->n <= SAMPLE_MOST);
    *t = (ls_ckpt_tensor){.name = name, .kind = kind, .group = group, .type = type, .ndim = ndim};
    for (int i = 0; i < ndim; i++) {
        t->shape[i] = shape[i];
        bytes *= shape[i];
    }
    t->bytes = bytes ? ls_mem_alloc((size_t)bytes) : NULL;
    LS_CHECK(t->bytes || !bytes);
    s->bytes += bytes;
}

static void add3(sample *s, const char *name, const char *group, int ndim, const int64_t *shape)
{
    sample_add(s, name, "param", group, LS_F32, ndim, shape);
    sample_add(s, name, "adam.m", group, LS_F32, ndim, shape);
    sample_add(s, name, "adam.v", group, LS_F32, ndim, shape);
}

void sample_make(sample *s)
{
    *s = (sample){.n = 0};
    add3(s, "wte.weight", "wte", 2, (const int64_t[]){65, 33});
    add3(s, "h.0.attn.weight", "h.0", 2, (const int64_t[]){33, 99});
    add3(s, "h.0.ln.bias", "h.0", 1, (const int64_t[]){33});
    sample_add(s, "h.1.attn.weight", "param", "h.1", LS_F32, 2,
               (const int64_t[]){700, 513}); /* several blocks */
    sample_add(s, "h.1.attn.weight", "adam.m", "h.1", LS_F32, 1, (const int64_t[]){70});
    sample_add(s, "h.1.attn.weight", "adam.v", "h.1", LS_F32, 1, (const int64_t[]){70});
    add3(s, "h.1.ln.bias", "h.1", 1, (const int64_t[]){33});
    sample_add(s, "frozen.weight", "param", "frozen", LS_BF16, 3, (const int64_t[]){3, 5, 7});
    sample_add(s, "scalar", "param", "odd", LS_F64, 0, NULL);
    sample_add(s, "rank4", "param", "odd", LS_F16, 4, (const int64_t[]){2, 3, 1, 5});
    sample_add(s, "empty", "param", "odd", LS_F32, 2, (const int64_t[]){0, 4});
    sample_add(s, "empty3", "param", NULL, LS_I32, 3, (const int64_t[]){4, 0, 2});
    sample_add(s, "counts", "state", "odd", LS_I64, 1, (const int64_t[]){3});
    sample_add(s, "flags", "state", "odd", LS_U8, 1, (const int64_t[]){13});
}

void sample_make_tiny(sample *s)
{
    *s = (sample){.n = 0};
    sample_add(s, "a", "param", "g", LS_F32, 2, (const int64_t[]){3, 5});
    sample_add(s, "b", "param", "g", LS_F32, 1, (const int64_t[]){7});
    sample_add(s, "a", "adam.m", "g", LS_F32, 2, (const int64_t[]){3, 5});
}

void sample_release(sample *s)
{
    for (int i = 0; i < s->n; i++)
        ls_mem_free(s->tensors[i].bytes);
    *s = (sample){.n = 0};
}

static int64_t bytes_of(const ls_ckpt_tensor *t)
{
    int64_t bytes = ls_dtype_bytes(t->type);

    for (int i = 0; i < t->ndim; i++)
        bytes *= t->shape[i];
    return bytes;
}

static unsigned char byte_at(const ls_ckpt_tensor *t, int index, int64_t at, uint32_t salt)
{
    uint32_t x = (uint32_t)at * 2654435761u ^ (uint32_t)index * 40503u;

    if (!t->group || strcmp(t->group, "frozen") != 0)
        x ^= salt * 2246822519u;
    x ^= x >> 15;
    x *= 2246822519u;
    return (unsigned char)(x >> 24);
}

void sample_fill(sample *s, uint32_t salt)
{
    for (int i = 0; i < s->n; i++) {
        unsigned char *p = s->tensors[i].bytes;
        for (int64_t k = 0; k < bytes_of(&s->tensors[i]); k++)
            p[k] = byte_at(&s->tensors[i], i, k, salt);
    }
}

void sample_wipe(sample *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->tensors[i].bytes)
            memset(s->tensors[i].bytes, 0xee, (size_t)bytes_of(&s->tensors[i]));
}

bool sample_is(const sample *s, uint32_t salt)
{
    for (int i = 0; i < s->n; i++) {
        const unsigned char *p = s->tensors[i].bytes;
        for (int64_t k = 0; k < bytes_of(&s->tensors[i]); k++)
            if (p[k] != byte_at(&s->tensors[i], i, k, salt))
                return false;
    }
    return true;
}

ls_ckpt_info sample_info(int64_t step)
{
    return (ls_ckpt_info){.step = step,
                          .cursor = step * 12,
                          .tokens = step * 12 * 64,
                          .seed = UINT64_MAX - 3,
                          .loss = 2.5,
                          .val_loss = (double)NAN,
                          .run_name = "sample \"run\"",
                          .mesh = "dp=1",
                          .config = "name: x\n# \xc3\xa9\ttab\n"};
}

ls_status sample_save(const char *dir, sample *s, int64_t step)
{
    ls_ckpt_store *store = NULL;
    ls_ckpt_info info = sample_info(step);
    ls_status st = ls_ckpt_open(&store, dir, true);

    if (st == LS_OK) {
        sample_fill(s, (uint32_t)step);
        st = ls_ckpt_save(store, &info, s->tensors, s->n, NULL);
    }
    ls_ckpt_close(store);
    return st;
}

/* nftw has no context argument; tests are single-threaded here. */
static file_list *listing;
static const char *listing_suffix;

static int list_file(const char *path, const struct stat *info, int flag, struct FTW *where)
{
    size_t n = strlen(path), m = strlen(listing_suffix);

    (void)info;
    (void)where;
    if (flag != FTW_F || n < m || strcmp(path + n - m, listing_suffix) != 0)
        return 0;
    LS_CHECK(listing->n < 64 && n < sizeof listing->path[0]);
    memcpy(listing->path[listing->n++], path, n + 1);
    return 0;
}

static int order_paths(const void *a, const void *b)
{
    return strcmp(a, b);
}

void file_list_make(file_list *list, const char *folder, const char *suffix)
{
    list->n = 0;
    listing = list;
    listing_suffix = suffix;
    nftw(folder, list_file, 16, FTW_PHYS);
    qsort(list->path, (size_t)list->n, sizeof list->path[0], order_paths);
}

int64_t file_size(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

void file_flip(const char *path, int64_t byte, int bit)
{
    unsigned char c;
    int fd = open(path, O_RDWR);

    LS_CHECK(fd >= 0);
    LS_CHECK_EQ(pread(fd, &c, 1, byte), 1);
    c ^= (unsigned char)(1 << bit);
    LS_CHECK_EQ(pwrite(fd, &c, 1, byte), 1);
    close(fd);
}

void file_cut(const char *path, int64_t bytes)
{
    LS_CHECK_EQ(truncate(path, bytes), 0);
}

static char last_line[1024];

static void catch (ls_log_level level, const char *line, void *context)
{
    (void)level;
    (void)context;
    snprintf(last_line, sizeof last_line, "%s", line);
}

void log_catch(void)
{
    ls_log_set_sink(catch, NULL, LS_LOG_WARN);
}

const char *log_last(void)
{
    return last_line;
}
