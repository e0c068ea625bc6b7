/* test_parts.c -- one checkpoint by several writers: parts, reports, the commit, generations. */
#include "harness.h"
#include "sample.h"
#include <stdlib.h>
#include <unistd.h>
#include "base/file.h"
#include "base/time.h"

enum { WRITERS = 3, MOST = SAMPLE_MOST * LS_CKPT_PARTS };

/* Writer w of a sample: its third of every tensor's elements. */
static int parts_of(const sample *s, int w, ls_ckpt_part *parts)
{
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        ls_ckpt_tensor t = s->tensors[i];
        int64_t all = 1;
        for (int d = 0; d < t.ndim; d++)
            all *= t.shape[d];
        int64_t first = all * w / WRITERS, end = all * (w + 1) / WRITERS;
        if (all == 0 && w == 0) {
            parts[n] = (ls_ckpt_part){.of = t};
            memcpy(parts[n++].shape, t.shape, sizeof t.shape);
        }
        t.bytes = (char *)t.bytes + first * ls_dtype_bytes(t.type);
        n += ls_ckpt_cut(&t, first, end - first, parts + n);
    }
    return n;
}

/* Each writer through a store of its own, as a process of its own would have it. */
static void write_all(const sample *s, int64_t step, ls_str *texts)
{
    for (int w = 0; w < WRITERS; w++) {
        ls_ckpt_part parts[MOST];
        ls_ckpt_store *store;
        int n = parts_of(s, w, parts);
        ls_str_init(&texts[w]);
        LS_CHECK_OK(ls_ckpt_open(&store, "c", false));
        LS_CHECK_OK(ls_ckpt_write_parts(store, &(ls_ckpt_writing){.step = step, .writers = WRITERS},
                                        parts, n, &texts[w]));
        ls_ckpt_close(store);
    }
}

static ls_status commit(ls_ckpt_store *store, int64_t step, const ls_str *texts, int n,
                        ls_ckpt_saved *saved_out)
{
    ls_ckpt_info info = sample_info(step);
    ls_ckpt_report reports[WRITERS + 1];

    for (int i = 0; i < n; i++)
        reports[i] = (ls_ckpt_report){
            .text = texts[i].p, .len = texts[i].len, .writer = i, .seen_only = i >= WRITERS};
    return ls_ckpt_commit(store, &info, reports, n, ls_time_now_ns(), saved_out);
}

static void release(ls_str *texts, int n)
{
    for (int i = 0; i < n; i++)
        ls_str_release(&texts[i]);
}

LS_TEST(parts_cut_covers_every_element_once)
{
    static const int64_t shapes[][4] = {{7}, {3, 5}, {1, 4}, {4, 1}, {3, 2, 4}, {2, 3, 2, 2}};
    static const int ranks[] = {1, 2, 2, 2, 3, 4};
    float numbers[64];

    for (int i = 0; i < 64; i++)
        numbers[i] = (float)i;
    for (size_t c = 0; c < LS_COUNT(ranks); c++) {
        ls_ckpt_tensor t = {.name = "a", .kind = "param", .type = LS_F32, .ndim = ranks[c]};
        int64_t all = 1;
        for (int d = 0; d < ranks[c]; d++)
            all *= t.shape[d] = shapes[c][d];
        for (int64_t first = 0; first < all; first++)
            for (int64_t count = 1; first + count <= all; count++) {
                ls_ckpt_part parts[LS_CKPT_PARTS];
                int64_t at = first;
                t.bytes = numbers + first;
                int n = ls_ckpt_cut(&t, first, count, parts);
                LS_CHECK(n >= 1 && n <= 2 * ranks[c] - 1);
                for (int p = 0; p < n; p++) {
                    int64_t volume = 1, index = 0;
                    for (int d = 0; d < t.ndim; d++) {
                        LS_CHECK(parts[p].offset[d] + parts[p].shape[d] <= t.shape[d]);
                        volume *= parts[p].shape[d];
                        index = index * t.shape[d] + parts[p].offset[d];
                    }
                    LS_CHECK(index == at && parts[p].of.bytes == numbers + at);
                    at += volume;
                }
                LS_CHECK(at == first + count);
            }
    }
}

LS_TEST(parts_of_several_writers_are_one_checkpoint)
{
    sample s;
    ls_ckpt_store *store, *alone;
    ls_ckpt_info whole = sample_info(1), back;
    ls_ckpt_saved saved;
    ls_ckpt *ckpt = NULL;
    ls_str texts[WRITERS];
    bool found;
    int damaged;

    sample_make(&s);
    sample_fill(&s, 1);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    write_all(&s, 1, texts);
    LS_CHECK(!ls_file_exists("c/step-0000000001.json"));
    LS_CHECK_OK(commit(store, 1, texts, WRITERS, &saved));
    LS_CHECK(saved.bytes_written > 0 && saved.objects_written > WRITERS);
    release(texts, WRITERS);
    LS_CHECK_OK(ls_ckpt_find(store, 1, &ckpt, NULL));
    LS_CHECK_OK(ls_ckpt_verify(ckpt, NULL, NULL, &damaged));
    LS_CHECK_EQ(damaged, 0);
    sample_wipe(&s);
    LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
    LS_CHECK(found && sample_is(&s, 1));
    /* the same weights have the same hash, however they were written */
    LS_CHECK_OK(ls_ckpt_open(&alone, "d", true));
    LS_CHECK_OK(ls_ckpt_save(alone, &whole, s.tensors, s.n, NULL));
    ls_ckpt_free(ckpt);
    ckpt = NULL;
    LS_CHECK_OK(ls_ckpt_find(alone, 1, &ckpt, NULL));
    LS_CHECK_STR(ls_ckpt_about(ckpt)->weights_hash, back.weights_hash);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(alone);
    /* what did not change is not written again, by any of them */
    sample_fill(&s, 2);
    write_all(&s, 2, texts);
    LS_CHECK_OK(commit(store, 2, texts, WRITERS, &saved));
    LS_CHECK(saved.objects_reused > 0 && saved.objects_written > 0);
    release(texts, WRITERS);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(parts_that_do_not_fit_together_are_not_committed)
{
    sample s;
    ls_ckpt_store *store;
    ls_ckpt_part parts[MOST];
    ls_str texts[WRITERS + 1], twice[WRITERS];
    file_list objects;

    sample_make(&s);
    LS_CHECK_OK(sample_save("c", &s, 1));
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    sample_fill(&s, 2);
    write_all(&s, 2, texts);
    LS_CHECK_FAILS(commit(store, 2, texts, WRITERS - 1, NULL), LS_EDATA,
                   "is not covered by its boxes");
    memcpy(twice, texts, sizeof twice);
    twice[1] = texts[0];
    LS_CHECK_FAILS(commit(store, 2, twice, WRITERS, NULL), LS_EDATA, "overlap");
    /* another rank hashed the first one's parts, and one bit differs */
    int n = parts_of(&s, 0, parts);
    ls_str_init(&texts[WRITERS]);
    LS_CHECK_OK(
        ls_ckpt_write_parts(NULL, &(ls_ckpt_writing){.step = 2}, parts, n, &texts[WRITERS]));
    *(unsigned char *)parts[n - 1].of.bytes ^= 1;
    ls_str other;
    ls_str_init(&other);
    LS_CHECK_OK(ls_ckpt_write_parts(NULL, &(ls_ckpt_writing){.step = 2}, parts, n, &other));
    ls_str good = texts[WRITERS];
    texts[WRITERS] = other;
    LS_CHECK_FAILS(commit(store, 2, texts, WRITERS + 1, NULL), LS_ENUMERIC, "replicas differ");
    texts[WRITERS] = good;
    ls_str_release(&other);
    /* an object that cannot be seen from here */
    file_list_make(&objects, "c/objects", ".safetensors");
    for (int i = 0; i < objects.n; i++)
        if (strstr(texts[1].p, strrchr(objects.path[i], '/') + 1) == NULL) {
            char hex[33] = "";
            memcpy(hex, strrchr(objects.path[i], '/') + 1, 32);
            if (!strstr(texts[1].p, hex))
                continue;
            LS_CHECK_OK(rename(objects.path[i], "away") == 0 ? LS_OK : LS_EIO);
            LS_CHECK_FAILS(commit(store, 2, texts, WRITERS + 1, NULL), LS_EDATA, "is missing");
            LS_CHECK(strstr(ls_err_last()->hint, "all of them share"));
            LS_CHECK_OK(rename("away", objects.path[i]) == 0 ? LS_OK : LS_EIO);
            break;
        }
    LS_CHECK(!ls_file_exists("c/step-0000000002.json"));
    LS_CHECK_OK(commit(store, 2, texts, WRITERS + 1, NULL));
    LS_CHECK(ls_file_exists("c/step-0000000002.json"));
    release(texts, WRITERS + 1);
    ls_ckpt_close(store);
    sample_release(&s);
}

LS_TEST(parts_reports_that_are_no_reports)
{
    ls_ckpt_store *store;
    static const char numbers[] = "{\"bytes_written\":1,\"bytes_reused\":0,\"objects_written\":1,"
                                  "\"objects_reused\":0,\"objects\":{},\"tensors\":7}";
    static const char *const bad[] = {"", "{}", "[]", "{\"bytes_written\": 1}", numbers};

    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    for (size_t i = 0; i < LS_COUNT(bad); i++) {
        ls_ckpt_info info = sample_info(1);
        ls_ckpt_report report = {.text = bad[i], .len = strlen(bad[i])};
        LS_CHECK_FAILS(ls_ckpt_commit(store, &info, &report, 1, 0, NULL), LS_EDATA, "");
    }
    ls_ckpt_close(store);
}

static ls_status refuse(void *context, const ls_ckpt_info *info)
{
    *(int64_t *)context = info->step;
    return ls_fail(LS_EBUSY, "the coordinator has generation 9");
}

LS_TEST(parts_an_older_generation_does_not_commit)
{
    sample s;
    ls_ckpt_store *old, *next;
    ls_ckpt_info info = sample_info(1);
    int64_t first, second, asked = -1;

    sample_make_tiny(&s);
    sample_fill(&s, 1);
    LS_CHECK_OK(ls_ckpt_open(&old, "c", true));
    LS_CHECK_OK(ls_ckpt_claim(old, &first));
    LS_CHECK_EQ(first, 1);
    info.generation = first;
    LS_CHECK_OK(ls_ckpt_save(old, &info, s.tensors, s.n, NULL));
    /* a newer group comes, where locks do not reach: over a store of its own */
    LS_CHECK_OK(ls_ckpt_open(&next, "c", false));
    LS_CHECK_OK(ls_ckpt_claim(next, &second));
    LS_CHECK_EQ(second, 2);
    info = sample_info(2);
    info.generation = first;
    sample_fill(&s, 2);
    LS_CHECK_FAILS(ls_ckpt_save(old, &info, s.tensors, s.n, NULL), LS_EBUSY, "generation 2 writes");
    LS_CHECK(!ls_file_exists("c/step-0000000002.json"));
    ls_ckpt_close(old);
    info.generation = second;
    ls_ckpt_set_token(next, refuse, &asked);
    LS_CHECK_FAILS(ls_ckpt_save(next, &info, s.tensors, s.n, NULL), LS_EBUSY, "");
    LS_CHECK(asked == 2 && strstr(ls_err_last()->text, "coordinator"));
    ls_ckpt_set_token(next, NULL, NULL);
    LS_CHECK_OK(ls_ckpt_save(next, &info, s.tensors, s.n, NULL));
    /* a copy of the store without the claim goes on from its manifests */
    LS_CHECK_EQ(unlink("c/generation"), 0);
    LS_CHECK_OK(ls_ckpt_claim(next, &first));
    LS_CHECK_EQ(first, 3);
    LS_CHECK_OK(ls_file_write_atomic("c/generation", "x\n", 2));
    LS_CHECK_FAILS(ls_ckpt_claim(next, &first), LS_EDATA, "");
    ls_ckpt_close(next);
    sample_release(&s);
}

/* Part r of n of every tensor, as parts that lie one after the other in memory. */
static int cut_for(const sample *s, int r, int n, char *memory, ls_ckpt_part *parts)
{
    int count = 0;

    for (int i = 0; i < s->n; i++) {
        ls_ckpt_tensor t = s->tensors[i];
        int64_t all = 1;
        for (int d = 0; d < t.ndim; d++)
            all *= t.shape[d];
        int64_t first = all * r / n, end = all * (r + 1) / n;
        t.bytes = memory ? memory : (char *)t.bytes + first * ls_dtype_bytes(t.type);
        if (end > first)
            count += ls_ckpt_cut(&t, first, end - first, parts + count);
        memory += memory ? (end - first) * ls_dtype_bytes(t.type) : 0;
    }
    return count;
}

/* Reader r of n: its parts are right, and little else was read. */
static int64_t read_part(const ls_ckpt *ckpt, const sample *s, int r, int n, char *memory)
{
    ls_ckpt_part parts[MOST];
    ls_ckpt_read read;
    int count = cut_for(s, r, n, memory, parts);
    int64_t own = 0;

    LS_CHECK_OK(ls_ckpt_load_parts(ckpt, parts, count, &read));
    for (int i = 0; i < s->n; i++) {
        int64_t all = ls_dtype_bytes(s->tensors[i].type);
        for (int d = 0; d < s->tensors[i].ndim; d++)
            all *= s->tensors[i].shape[d];
        int64_t width = ls_dtype_bytes(s->tensors[i].type), first = all / width * r / n * width;
        int64_t bytes = all / width * (r + 1) / n * width - first;
        LS_CHECK(memcmp(memory + own, (char *)s->tensors[i].bytes + first, (size_t)bytes) == 0);
        own += bytes;
    }
    /* of an object that is not wanted whole: its header's block, and at both ends the rest of one
     */
    int64_t most = own + read.objects_part * 3 * LS_MIB + read.objects_whole * 4096;
    if (read.bytes > most)
        ls_test_fail(__FILE__, __LINE__, "reader %d of %d: %lld bytes read for %lld", r, n,
                     (long long)read.bytes, (long long)own);
    return read.bytes;
}

LS_TEST(parts_of_four_writers_are_read_by_any_number)
{
    static const int readers[] = {1, 2, 3, 4, 8};
    enum { FOUR = 4 };
    sample s = {.n = 0};
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    ls_ckpt_report reports[FOUR];
    ls_ckpt_info info = sample_info(1);
    ls_str texts[FOUR];

    sample_add(&s, "w", "param", "w", LS_F32, 2, (const int64_t[]){2048, 1024});
    sample_add(&s, "w", "adam.m", "w", LS_F32, 2, (const int64_t[]){2048, 1024});
    sample_add(&s, "odd", "param", "odd", LS_F32, 2, (const int64_t[]){37, 1031});
    sample_fill(&s, 1);
    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    for (int w = 0; w < FOUR; w++) {
        ls_ckpt_part parts[MOST];
        ls_ckpt_store *other;
        int n = cut_for(&s, w, FOUR, NULL, parts);
        ls_str_init(&texts[w]);
        LS_CHECK_OK(ls_ckpt_open(&other, "c", false));
        LS_CHECK_OK(ls_ckpt_write_parts(other, &(ls_ckpt_writing){.step = 1, .writers = FOUR},
                                        parts, n, &texts[w]));
        ls_ckpt_close(other);
        reports[w] = (ls_ckpt_report){.text = texts[w].p, .len = texts[w].len, .writer = w};
    }
    LS_CHECK_OK(ls_ckpt_commit(store, &info, reports, FOUR, ls_test_soon(), NULL));
    LS_CHECK_OK(ls_ckpt_find(store, 1, &ckpt, NULL));
    char *memory = malloc((size_t)s.bytes);
    LS_CHECK(memory);
    for (size_t i = 0; i < LS_COUNT(readers); i++) {
        int64_t all = 0;
        for (int r = 0; r < readers[i]; r++)
            all += read_part(ckpt, &s, r, readers[i], memory);
        if (readers[i] <= 2 || readers[i] == 4) /* every object by one reader: nothing twice */
            LS_CHECK_EQ(all, ls_ckpt_about(ckpt)->total_bytes);
    }
    free(memory);
    for (int w = 0; w < FOUR; w++)
        ls_str_release(&texts[w]);
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
    sample_release(&s);
}

/* Objects of several chunks, more of them than are under way at once, by a thread that hashes
 * ahead: whole when they come back, by io_uring and by threads, and damage in the middle is named.
 */
LS_TEST(parts_of_many_large_objects)
{
    enum { LAYERS = 7 };
    static const char *const groups[LAYERS] = {"a", "b", "c", "d", "e", "f", "g"};
    file_list files;

    for (int way = 0; way < 2; way++) {
        const char *dir = way ? "threads" : "ring";
        sample s = {.n = 0};
        ls_ckpt_store *store;
        ls_ckpt_info info = sample_info(5), back;
        ls_ckpt_saved saved;
        bool found;
        if (way)
            LS_CHECK_EQ(setenv("LINESHAFT_DISK", "threads", 1), 0);
        for (int i = 0; i < LAYERS; i++) {
            sample_add(&s, groups[i], "param", groups[i], LS_F32, 2, (const int64_t[]){1100, 1031});
            sample_add(&s, groups[i], "adam.m", groups[i], LS_F32, 1, (const int64_t[]){13});
        }
        sample_fill(&s, 5);
        LS_CHECK_OK(ls_ckpt_open(&store, dir, true));
        LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &saved));
        LS_CHECK_EQ(saved.objects_written, 2 * LAYERS);
        sample_wipe(&s);
        LS_CHECK_OK(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found));
        LS_CHECK(found && sample_is(&s, 5));
        LS_CHECK_OK(ls_ckpt_save(store, &info, s.tensors, s.n, &saved));
        LS_CHECK_EQ(saved.objects_reused, 2 * LAYERS);
        file_list_make(&files, dir, ".safetensors");
        for (int i = 0; i < files.n; i++)
            if (file_size(files.path[i]) > 4 * LS_MIB) {
                file_flip(files.path[i], 3 * LS_MIB + 17, 4);
                LS_CHECK_FAILS(ls_ckpt_load_newest(store, s.tensors, s.n, &back, &found), LS_EDATA,
                               "is damaged in bytes 3145728 to 4194303");
                LS_CHECK(strstr(ls_err_last()->text, files.path[i]));
                break;
            }
        ls_ckpt_close(store);
        sample_release(&s);
    }
}

/* --- rows that do not lie side by side ----------------------------------------------------------
 */

enum { ROWS = 300, WIDE = 12, STRETCHES = 3, HALF = WIDE / STRETCHES / 2 };

/* Half h of each stretch of a tensor's columns. memory: rows of both halves' columns of that half,
 * one behind the other; pitched: as boxes in it, else each box has memory of its own. */
static int half_of(const ls_ckpt_tensor *whole, int h, float *memory, bool pitched,
                   ls_ckpt_part *parts)
{
    for (int k = 0; k < STRETCHES; k++) {
        parts[k] = (ls_ckpt_part){.of = *whole,
                                  .offset = {0, k * 2 * HALF + h * HALF},
                                  .shape = {ROWS, HALF},
                                  .pitch = pitched ? STRETCHES * HALF : 0};
        parts[k].of.bytes = memory + (pitched ? k * HALF : k * ROWS * HALF);
    }
    return STRETCHES;
}

/* Number of the element at this row and column of half h. */
static float number_at(int h, int row, int col)
{
    return (float)(row * WIDE + col / HALF * 2 * HALF + h * HALF + col % HALF);
}

LS_TEST(parts_with_a_pitch_are_the_same_objects)
{
    enum { OWN = ROWS * STRETCHES * HALF };
    static float pitched[2][OWN], packed[2][OWN], back[2][OWN + 2];
    ls_ckpt_tensor whole = {.name = "qkv",
                            .kind = "param",
                            .group = "h",
                            .type = LS_F32,
                            .ndim = 2,
                            .shape = {ROWS, WIDE}};
    ls_ckpt_info info = sample_info(1);
    ls_ckpt_part parts[STRETCHES];
    ls_ckpt_report reports[2];
    ls_ckpt_store *store;
    ls_ckpt *ckpt = NULL;
    ls_str texts[2], same;

    LS_CHECK_OK(ls_ckpt_open(&store, "c", true));
    for (int h = 0; h < 2; h++) {
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < STRETCHES * HALF; c++) {
                float x = number_at(h, r, c);
                pitched[h][r * STRETCHES * HALF + c] = x;
                packed[h][(c / HALF * ROWS + r) * HALF + c % HALF] = x;
            }
        ls_str_init(&texts[h]);
        ls_str_init(&same);
        int n = half_of(&whole, h, pitched[h], true, parts);
        LS_CHECK_OK(ls_ckpt_write_parts(store, &(ls_ckpt_writing){.step = 1, .writers = 2}, parts,
                                        n, &texts[h]));
        n = half_of(&whole, h, packed[h], false, parts);
        LS_CHECK_OK(ls_ckpt_write_parts(NULL, &(ls_ckpt_writing){.step = 1}, parts, n, &same));
        LS_CHECK_STR(strstr(texts[h].p, "\"tensors\""), strstr(same.p, "\"tensors\""));
        ls_str_release(&same);
        reports[h] = (ls_ckpt_report){.text = texts[h].p, .len = texts[h].len, .writer = h};
    }
    LS_CHECK_OK(ls_ckpt_commit(store, &info, reports, 2, ls_time_now_ns(), NULL));
    release(texts, 2);
    LS_CHECK_OK(ls_ckpt_find(store, 1, &ckpt, NULL));
    /* the whole, row by row */
    float *all = malloc(ROWS * WIDE * sizeof *all);
    LS_CHECK(all);
    whole.bytes = all;
    LS_CHECK_OK(ls_ckpt_load(ckpt, &whole, 1));
    for (int i = 0; i < ROWS * WIDE; i++)
        LS_CHECK(all[i] == (float)i);
    free(all);
    /* and back into rows with a pitch, nothing beside them */
    for (int h = 0; h < 2; h++) {
        back[h][0] = back[h][OWN + 1] = -1;
        LS_CHECK_OK(
            ls_ckpt_load_parts(ckpt, parts, half_of(&whole, h, back[h] + 1, true, parts), NULL));
        LS_CHECK(back[h][0] == -1 && back[h][OWN + 1] == -1);
        LS_CHECK(memcmp(back[h] + 1, pitched[h], sizeof pitched[h]) == 0);
    }
    ls_ckpt_free(ckpt);
    ls_ckpt_close(store);
}
