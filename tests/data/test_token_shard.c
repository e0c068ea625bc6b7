/* test_token_shard.c -- shards written and read back, damaged at every byte, interrupted at every
 * write. */
#include "data/corpus/token_shard.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "data/corpus/token_shard_impl.h"
#include "data/tokenizer/tokenizer_impl.h"
#include "base/fault.h"
#include "base/mem.h"
#include "harness.h"

/* A tokenizer of any size: only what the shard writer asks for. */
static ls_tokenizer fake(int32_t vocab)
{
    ls_tokenizer tok = {.kind = &ls_tokenizer_bytes, .vocab = vocab, .separator = vocab - 1};

    snprintf(tok.name, sizeof tok.name, "fake-%d", (int)vocab);
    tok.hash = ls_hash_bytes(tok.name, strlen(tok.name));
    return tok;
}

/* Documents of 3, 0, 1 and 5 tokens: ids 1, 2, 3 ... modulo vocab - 1. */
static ls_status write_small(const char *path, const ls_tokenizer *tok)
{
    static const int lengths[] = {3, 0, 1, 5};
    ls_token_shard_writer *w;
    int32_t id = 0;
    ls_status st = ls_token_shard_create(
        &w, &(ls_token_shard_args){.path = path, .tok = tok, .source = "test"});

    if (st != LS_OK)
        return st;
    for (size_t d = 0; d < LS_COUNT(lengths); d++) {
        ls_token_shard_begin_document(w);
        for (int i = 0; i < lengths[d]; i++) {
            id = (id + 1) % (tok->vocab - 1);
            st = ls_token_shard_append(w, &id, 1);
            if (st != LS_OK) {
                ls_token_shard_abandon(w);
                return st;
            }
        }
    }
    ls_token_shard_note_text(w, "abc", 3);
    return ls_token_shard_finish(w);
}

static int files_here(void)
{
    DIR *d = opendir(".");
    int n = 0;

    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void check_round_trip(int32_t vocab, int width)
{
    ls_tokenizer tok = fake(vocab);
    ls_token_shard shard;
    int32_t ids[11];

    LS_CHECK_OK(write_small("a.lst", &tok));
    LS_CHECK_EQ(files_here(), 1);
    LS_CHECK_OK(ls_token_shard_open(&shard, "a.lst"));
    LS_CHECK_EQ(shard.width, width);
    LS_CHECK_EQ(shard.vocab, vocab);
    LS_CHECK_EQ(shard.tokens, 11); /* 9 and two separators */
    LS_CHECK_EQ(shard.documents, 3);
    LS_CHECK_STR(shard.tokenizer, tok.name);
    LS_CHECK_STR(shard.source, "test");
    LS_CHECK(ls_hash_equal(shard.source_hash, ls_hash_bytes("abc", 3)));
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    LS_CHECK_OK(ls_token_shard_check_tokenizer(&shard, &tok));
    LS_CHECK_OK(ls_token_shard_read(&shard, 0, 11, ids));
    LS_CHECK_EQ(ids[0], 1);
    LS_CHECK_EQ(ids[3], vocab - 1); /* the separator */
    LS_CHECK_EQ(ids[4], 4 % (vocab - 1));
    LS_CHECK_EQ(ids[5], vocab - 1);
    LS_CHECK_EQ(ids[10], 9 % (vocab - 1));
    LS_CHECK_EQ(ls_token_shard_start(&shard, 0), 0);
    LS_CHECK_EQ(ls_token_shard_start(&shard, 1), 4);
    LS_CHECK_EQ(ls_token_shard_start(&shard, 2), 6);
    static const int holds[] = {0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2};
    for (int i = 0; i < 11; i++)
        LS_CHECK_EQ(ls_token_shard_document_at(&shard, i), holds[i]);
    ls_token_shard_close(&shard);
    ls_token_shard_close(&shard); /* closing twice is fine */
}

LS_TEST(shard_round_trips_in_every_width)
{
    check_round_trip(4, 1);
    check_round_trip(256, 1);
    check_round_trip(257, 2);
    check_round_trip(65536, 2);
    check_round_trip(65537, 4);
    check_round_trip(INT32_MAX, 4);
}

LS_TEST(large_shard_crosses_its_buffers)
{
    enum { DOCUMENTS = 20000, EACH = 199 };
    ls_tokenizer tok = fake(70000);
    ls_token_shard_writer *w;
    ls_token_shard shard;
    int32_t ids[EACH];

    LS_CHECK_OK(ls_token_shard_create(
        &w, &(ls_token_shard_args){.path = "b.lst", .tok = &tok, .source = ""}));
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int i = 0; i < EACH; i++)
            ids[i] = (d * 31 + i) % 69999;
        ls_token_shard_begin_document(w);
        LS_CHECK_OK(ls_token_shard_append(w, ids, EACH));
    }
    LS_CHECK_OK(ls_token_shard_finish(w));
    LS_CHECK_OK(ls_token_shard_open(&shard, "b.lst"));
    LS_CHECK_EQ(shard.documents, DOCUMENTS);
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    LS_CHECK_EQ(shard.tokens, (int64_t)DOCUMENTS * (EACH + 1) - 1);
    for (int d = 0; d < DOCUMENTS; d += 997) {
        LS_CHECK_EQ(ls_token_shard_start(&shard, d), (int64_t)d * (EACH + 1));
        LS_CHECK_OK(ls_token_shard_read(&shard, (int64_t)d * (EACH + 1), EACH, ids));
        LS_CHECK_EQ(ids[EACH - 1], (d * 31 + EACH - 1) % 69999);
    }
    ls_token_shard_close(&shard);
}

/* Every truncation is refused at open, with the file's name. */
LS_TEST(shard_cut_at_every_byte_is_refused)
{
    ls_tokenizer tok = fake(256);
    ls_str bytes;
    ls_token_shard shard;

    ls_str_init(&bytes);
    LS_CHECK_OK(write_small("a.lst", &tok));
    LS_CHECK_OK(ls_file_read("a.lst", LS_MIB, &bytes));
    for (size_t n = 0; n < bytes.len; n++) {
        LS_CHECK_FAILS(ls_token_shard_view(&shard, bytes.p, n, "cut.lst"), LS_EDATA,
                       "\"cut.lst\" ");
        if (n % 97 == 0) { /* and some as files */
            LS_CHECK_OK(ls_file_write_atomic("cut.lst", bytes.p, n));
            LS_CHECK_FAILS(ls_token_shard_open(&shard, "cut.lst"), LS_EDATA, "\"cut.lst\" ");
        }
    }
    ls_str_append(&bytes, "x");
    LS_CHECK_FAILS(ls_token_shard_view(&shard, bytes.p, bytes.len, "long"), LS_EDATA,
                   "header says");
    ls_str_release(&bytes);
}

/* Every flipped bit is found by open or verify. */
LS_TEST(shard_damaged_at_every_bit_is_refused)
{
    ls_tokenizer tok = fake(256);
    ls_str bytes;
    ls_token_shard shard;

    ls_str_init(&bytes);
    LS_CHECK_OK(write_small("a.lst", &tok));
    LS_CHECK_OK(ls_file_read("a.lst", LS_MIB, &bytes));
    size_t tokens_end = LS_TOKEN_SHARD_HEADER + 11, starts_at = LS_TOKEN_SHARD_HEADER + 16;
    for (size_t bit = 0; bit < bytes.len * 8; bit++) {
        if (bit / 8 >= tokens_end && bit / 8 < starts_at)
            continue; /* padding means nothing */
        bytes.p[bit / 8] = (char)(bytes.p[bit / 8] ^ 1 << bit % 8);
        ls_status st = ls_token_shard_view(&shard, bytes.p, bytes.len, "flip");
        if (st == LS_OK) {
            st = ls_token_shard_verify(&shard);
            ls_token_shard_close(&shard);
        }
        if (st != LS_EDATA)
            ls_test_fail(__FILE__, __LINE__, "bit %zu was not noticed", bit);
        bytes.p[bit / 8] = (char)(bytes.p[bit / 8] ^ 1 << bit % 8);
    }
    ls_str_release(&bytes);
}

/* A header whose checksum is right but whose numbers lie. */
static void check_lie(const ls_str *bytes, void (*lie)(ls_token_shard_header *h), const char *says)
{
    ls_token_shard shard;
    ls_token_shard_header h;
    char *copy = ls_mem_alloc(bytes->len);

    memcpy(copy, bytes->p, bytes->len);
    memcpy(&h, copy, sizeof h);
    lie(&h);
    h.crc = ls_hash_crc32c(0, &h, offsetof(ls_token_shard_header, crc));
    memcpy(copy, &h, sizeof h);
    ls_status st = ls_token_shard_view(&shard, copy, bytes->len, "lie");
    if (st == LS_OK) {
        st = ls_token_shard_verify(&shard);
        ls_token_shard_close(&shard);
    }
    LS_CHECK_FAILS(st, LS_EDATA, says);
    ls_mem_free(copy);
}

static void lie_tokens(ls_token_shard_header *h)
{
    h->tokens = UINT64_MAX / 2;
}
static void lie_overflow(ls_token_shard_header *h)
{
    h->width = 4;
    h->tokens = UINT64_C(1) << 62;
}
static void lie_documents(ls_token_shard_header *h)
{
    h->documents = UINT64_C(1) << 61;
    h->tokens = UINT64_C(1) << 61;
}
static void lie_no_documents(ls_token_shard_header *h)
{
    h->documents = 0;
}
static void lie_width(ls_token_shard_header *h)
{
    h->width = 3;
}
static void lie_vocab(ls_token_shard_header *h)
{
    h->vocab = 257;
}
static void lie_small_vocab(ls_token_shard_header *h)
{
    h->vocab = 9;
    h->separator = 0;
}
static void lie_separator(ls_token_shard_header *h)
{
    h->separator = -1;
}
static void lie_version(ls_token_shard_header *h)
{
    h->version = 3;
}
static void lie_name(ls_token_shard_header *h)
{
    memset(h->tokenizer, 'x', sizeof h->tokenizer);
}
static void lie_starts_at(ls_token_shard_header *h)
{
    h->starts_at = UINT64_MAX - 7;
}
static void lie_header_bytes(ls_token_shard_header *h)
{
    h->header_bytes = 8;
}

LS_TEST(hostile_headers_are_refused)
{
    ls_tokenizer tok = fake(256);
    ls_str bytes;

    ls_str_init(&bytes);
    LS_CHECK_OK(write_small("a.lst", &tok));
    LS_CHECK_OK(ls_file_read("a.lst", LS_MIB, &bytes));
    check_lie(&bytes, lie_tokens, "more tokens than any file");
    check_lie(&bytes, lie_overflow, "more tokens than any file");
    check_lie(&bytes, lie_documents, "more tokens than any file");
    check_lie(&bytes, lie_no_documents, "number of documents");
    check_lie(&bytes, lie_width, "1, 2 nor 4");
    check_lie(&bytes, lie_vocab, "vocabulary does not fit");
    check_lie(&bytes, lie_small_vocab, "its vocabulary ends at 8");
    check_lie(&bytes, lie_separator, "separator");
    check_lie(&bytes, lie_version, "shard format 3");
    check_lie(&bytes, lie_name, "does not end");
    check_lie(&bytes, lie_starts_at, "document index");
    check_lie(&bytes, lie_header_bytes, "impossible length");
    ls_str_release(&bytes);
}

/* More than 2^32 tokens, in a sparse file: a small shard's header with a larger count, two tokens
 * on both sides of the border, and the document index behind them. */
LS_TEST(shard_of_more_than_2_to_32_tokens_is_read)
{
    ls_tokenizer tok = fake(256);
    const uint64_t tokens = (UINT64_C(1) << 32) + 1000, border = UINT64_C(1) << 32;
    const uint64_t starts[1] = {0};
    ls_token_shard_header h;
    ls_token_shard shard;
    ls_str bytes;
    int32_t ids[3];

    ls_str_init(&bytes);
    LS_CHECK_OK(write_small("small.lst", &tok));
    LS_CHECK_OK(ls_file_read("small.lst", LS_MIB, &bytes));
    memcpy(&h, bytes.p, sizeof h);
    ls_str_release(&bytes);
    h.tokens = tokens;
    h.documents = 1;
    h.starts_at = ls_token_shard_starts_at(tokens, 1);
    h.crc = ls_hash_crc32c(0, &h, offsetof(ls_token_shard_header, crc));
    FILE *f = fopen("large.lst", "wb");
    LS_CHECK(f && fwrite(&h, sizeof h, 1, f) == 1);
    LS_CHECK(fseeko(f, (off_t)(LS_TOKEN_SHARD_HEADER + border - 1), SEEK_SET) == 0);
    LS_CHECK(fwrite("\7\11", 1, 2, f) == 2);
    LS_CHECK(fseeko(f, (off_t)h.starts_at, SEEK_SET) == 0);
    LS_CHECK(fwrite(starts, sizeof starts, 1, f) == 1 && fclose(f) == 0);

    LS_CHECK_OK(ls_token_shard_open(&shard, "large.lst"));
    LS_CHECK_EQ(shard.tokens, tokens);
    LS_CHECK_OK(ls_token_shard_read(&shard, (int64_t)border - 1, 3, ids));
    LS_CHECK_EQ(ids[0], 7);
    LS_CHECK_EQ(ids[1], 9);
    LS_CHECK_EQ(ids[2], 0);
    LS_CHECK_OK(ls_token_shard_read(&shard, (int64_t)tokens - 1, 1, ids));
    ls_token_shard_close(&shard);
}

LS_TEST(other_files_and_tokenizers_are_refused)
{
    ls_tokenizer one = fake(256), other = fake(300);
    ls_token_shard shard;

    LS_CHECK_FAILS(ls_token_shard_open(&shard, "none.lst"), LS_EIO, "none.lst");
    LS_CHECK_OK(ls_file_write_atomic("text.lst", "just some text", 14));
    LS_CHECK_FAILS(ls_token_shard_open(&shard, "text.lst"), LS_EDATA, "is not a token shard");
    LS_CHECK_OK(write_small("a.lst", &one));
    LS_CHECK_OK(ls_token_shard_open(&shard, "a.lst"));
    LS_CHECK_FAILS(ls_token_shard_check_tokenizer(&shard, &other), LS_EDATA, "fake-256");
    LS_CHECK(strstr(ls_err_last()->text, "fake-300"));
    LS_CHECK(strstr(ls_err_last()->hint, "data.tokenizer"));
    ls_token_shard_close(&shard);
}

/* A failing write or rename leaves the folder as it was, the old shard in place. */
static void check_fault(const char *plan, bool with_old)
{
    ls_tokenizer tok = fake(256);
    ls_token_shard shard;

    if (with_old)
        LS_CHECK_OK(write_small("a.lst", &tok));
    ls_fault_arm(plan);
    LS_CHECK_FAILS(write_small("a.lst", &tok), LS_EIO, "a.lst");
    ls_fault_arm(NULL);
    LS_CHECK_EQ(files_here(), with_old);
    if (with_old) {
        LS_CHECK_OK(ls_token_shard_open(&shard, "a.lst"));
        LS_CHECK_OK(ls_token_shard_verify(&shard));
        ls_token_shard_close(&shard);
    }
}

LS_TEST(full_disk_leaves_nothing)
{
    static const char *const plans[] = {"shard.write@1", "shard.rename@1", "file.write@1",
                                        "file.write@2",  "file.write@3",   "file.write@4",
                                        "file.write@5"};

    for (size_t i = 0; i < LS_COUNT(plans); i++)
        check_fault(plans[i], false);
    for (size_t i = 0; i < LS_COUNT(plans); i++)
        check_fault(plans[i], true);
}

/* The same on a file system that cannot make files without a name. */
LS_TEST(named_temporary_file_is_removed)
{
    ls_tokenizer tok = fake(256);
    ls_token_shard shard;

    ls_fault_arm("shard.unnamed@1,shard.unnamed@2");
    LS_CHECK_OK(write_small("a.lst", &tok));
    LS_CHECK_EQ(files_here(), 1);
    LS_CHECK_OK(ls_token_shard_open(&shard, "a.lst"));
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    ls_token_shard_close(&shard);
    check_fault("shard.unnamed@1,shard.unnamed@2,shard.write@1", true);
    check_fault("shard.unnamed@1,shard.unnamed@2,file.write@4", true);
    check_fault("shard.unnamed@1,shard.unnamed@2,shard.rename@1", true);
}

LS_TEST(kill_leaves_no_half_shard)
{
    static const char *const plans[] = {"shard.write@1=kill", "file.write@3=kill",
                                        "file.write@5=kill", "shard.rename@1=kill"};
    ls_tokenizer tok = fake(256);
    ls_token_shard shard;

    for (size_t i = 0; i < LS_COUNT(plans); i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            ls_fault_arm(plans[i]);
            write_small("a.lst", &tok);
            _exit(0);
        }
        LS_CHECK_EQ(waitpid(pid, &status, 0), pid);
        LS_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        LS_CHECK(!ls_file_exists("a.lst"));
    }
    LS_CHECK_OK(write_small("a.lst", &tok));
    LS_CHECK_OK(ls_token_shard_open(&shard, "a.lst"));
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    ls_token_shard_close(&shard);
}

LS_TEST(unwritable_places_are_named)
{
    ls_tokenizer tok = fake(256);

    LS_CHECK_FAILS(write_small("no/such/folder/a.lst", &tok), LS_EIO, "in \"no/such/folder\"");
}

LS_TEST(every_failing_allocation_of_a_shard_is_reported)
{
    ls_tokenizer tok = fake(256);
    ls_token_shard shard;
    uint64_t n = 1;

    for (;; n++) {
        ls_mem_fail_nth(n);
        ls_status st = write_small("a.lst", &tok);
        if (st == LS_OK)
            st = ls_token_shard_open(&shard, "a.lst");
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
    }
    LS_CHECK(n >= 5);
    ls_token_shard_close(&shard);
}

/* --- marked shards -----------------------------------------------------------------------------
 */

/* Two windows of 8: documents of 5, 3 and 8 tokens; every third token is a target. */
static ls_status write_marked(const char *path, const ls_tokenizer *tok)
{
    static const int lengths[] = {5, 3, 8};
    ls_token_shard_writer *w;
    int32_t id = 1;
    int at = 0;
    ls_status st = ls_token_shard_create(
        &w, &(ls_token_shard_args){.path = path, .tok = tok, .source = "chat", .window = 8});

    if (st != LS_OK)
        return st;
    for (int d = 0; d < 3 && st == LS_OK; d++) {
        ls_token_shard_begin_document(w);
        for (int i = 0; i < lengths[d] && st == LS_OK; i++, id++, at++)
            st = ls_token_shard_append_marked(w, &id, &(unsigned char){at % 3 == 0}, 1);
    }
    if (st == LS_OK)
        return ls_token_shard_finish(w);
    ls_token_shard_abandon(w);
    return st;
}

LS_TEST(marked_shard_round_trips)
{
    ls_tokenizer tok = fake(300);
    ls_token_shard shard;
    int32_t ids[16];

    LS_CHECK_OK(write_marked("m.lst", &tok));
    LS_CHECK_EQ(files_here(), 1);
    LS_CHECK_OK(ls_token_shard_open(&shard, "m.lst"));
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    LS_CHECK_EQ(shard.version, LS_TOKEN_SHARD_MARKED);
    LS_CHECK_EQ(shard.window, 8);
    LS_CHECK_EQ(shard.tokens, 16); /* no separators */
    LS_CHECK_EQ(shard.documents, 3);
    LS_CHECK_EQ(shard.marked, 6);
    LS_CHECK_OK(ls_token_shard_read(&shard, 0, 16, ids));
    for (int i = 0; i < 16; i++) {
        LS_CHECK_EQ(ids[i], i + 1);
        LS_CHECK_EQ(ls_token_shard_is_target(&shard, i), i % 3 == 0);
    }
    ls_token_shard_close(&shard);
    /* A plain shard is version 1, as before, and all of it is targets. */
    LS_CHECK_OK(write_small("a.lst", &tok));
    LS_CHECK_OK(ls_token_shard_open(&shard, "a.lst"));
    LS_CHECK_EQ(shard.version, LS_TOKEN_SHARD_VERSION);
    LS_CHECK_EQ(shard.marked, shard.tokens);
    LS_CHECK_EQ(shard.window, 0);
    LS_CHECK(ls_token_shard_is_target(&shard, 3));
    ls_token_shard_close(&shard);
}

LS_TEST(marks_cross_their_buffer)
{
    enum { WINDOW = 1000, TOKENS = 600 * WINDOW }; /* the buffer holds 262,144 */
    ls_tokenizer tok = fake(256);
    ls_token_shard_writer *w;
    ls_token_shard shard;
    int64_t marked = 0;

    LS_CHECK_OK(ls_token_shard_create(
        &w, &(ls_token_shard_args){.path = "m.lst", .tok = &tok, .source = "", .window = WINDOW}));
    for (uint32_t i = 0; i < TOKENS; i++) {
        unsigned char mark = i * 7919u % 11 < 4;
        if (i % WINDOW == 0)
            ls_token_shard_begin_document(w);
        LS_CHECK_OK(ls_token_shard_append_marked(w, &(int32_t){(int32_t)(i % 251)}, &mark, 1));
        marked += mark;
    }
    LS_CHECK_OK(ls_token_shard_finish(w));
    LS_CHECK_OK(ls_token_shard_open(&shard, "m.lst"));
    LS_CHECK_OK(ls_token_shard_verify(&shard));
    LS_CHECK_EQ(shard.marked, marked);
    for (uint32_t i = 0; i < TOKENS; i++)
        LS_CHECK_EQ(ls_token_shard_is_target(&shard, i), i * 7919u % 11 < 4);
    ls_token_shard_close(&shard);
}

LS_TEST(marked_shard_cut_or_damaged_is_refused)
{
    ls_tokenizer tok = fake(256);
    ls_str bytes;
    ls_token_shard shard;

    ls_str_init(&bytes);
    LS_CHECK_OK(write_marked("m.lst", &tok));
    LS_CHECK_OK(ls_file_read("m.lst", LS_MIB, &bytes));
    LS_CHECK_EQ(bytes.len, LS_TOKEN_SHARD_HEADER + 16 + 3 * 8 + 2);
    for (size_t n = 0; n < bytes.len; n++)
        LS_CHECK_FAILS(ls_token_shard_view(&shard, bytes.p, n, "cut"), LS_EDATA, "\"cut\" ");
    for (size_t bit = 0; bit < bytes.len * 8; bit++) {
        bytes.p[bit / 8] = (char)(bytes.p[bit / 8] ^ 1 << bit % 8);
        ls_status st = ls_token_shard_view(&shard, bytes.p, bytes.len, "flip");
        if (st == LS_OK) {
            st = ls_token_shard_verify(&shard);
            ls_token_shard_close(&shard);
        }
        if (st != LS_EDATA)
            ls_test_fail(__FILE__, __LINE__, "bit %zu was not noticed", bit);
        bytes.p[bit / 8] = (char)(bytes.p[bit / 8] ^ 1 << bit % 8);
    }
    ls_str_release(&bytes);
}

static void lie_window(ls_token_shard_header *h)
{
    h->window = 7;
}
static void lie_no_window(ls_token_shard_header *h)
{
    h->window = 0;
}
static void lie_small_window(ls_token_shard_header *h)
{
    h->window = 4;
}
static void lie_marked(ls_token_shard_header *h)
{
    h->marked = 5;
}
static void lie_too_marked(ls_token_shard_header *h)
{
    h->marked = 17;
}
static void lie_marks_at(ls_token_shard_header *h)
{
    h->marks_at++;
}
static void lie_unmarked(ls_token_shard_header *h)
{
    h->version = LS_TOKEN_SHARD_VERSION;
}

LS_TEST(hostile_headers_of_marked_shards_are_refused)
{
    ls_tokenizer tok = fake(256);
    ls_str bytes;

    ls_str_init(&bytes);
    LS_CHECK_OK(write_marked("m.lst", &tok));
    LS_CHECK_OK(ls_file_read("m.lst", LS_MIB, &bytes));
    check_lie(&bytes, lie_window, "marks or windows");
    check_lie(&bytes, lie_no_window, "marks or windows");
    check_lie(&bytes, lie_small_window, "lies in two windows");
    check_lie(&bytes, lie_marked, "do not match its tokens");
    check_lie(&bytes, lie_too_marked, "marks or windows");
    check_lie(&bytes, lie_marks_at, "marks or windows");
    check_lie(&bytes, lie_unmarked, "header says");
    ls_str_release(&bytes);
}

LS_TEST(every_failing_allocation_of_a_marked_writer_is_reported)
{
    ls_tokenizer tok = fake(256);
    uint64_t n = 1;

    for (;; n++) {
        ls_mem_fail_nth(n);
        ls_status st = write_marked("m.lst", &tok);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            break;
        LS_CHECK_EQ(st, LS_ENOMEM);
        LS_CHECK_EQ(files_here(), 0);
    }
    LS_CHECK(n > 1);
}
