/* test_ucx_frames.c -- what the UCX transport does with frames that no honest peer sends.
 *
 * Frames are handed to the function that UCX calls when one arrives. The addresses of the other
 * ranks are those of this process, so that nobody else is needed. */
#include "harness.h"
#include "comm/transport/ucx_here.h"

#if LS_UCX_HEADERS
#include "base/hash.h"
#include "base/mem.h"
#include "base/time.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, PLENTY = 4096 };

static ls_ucx *open_alone(void)
{
    ls_ucx_args args = {.rank = 0, .ranks = RANKS, .generation = 5, .key = 77};
    static char address[RANKS][LS_UCX_ADDRESS_BYTES];
    ls_ucx_peer peers[RANKS];
    const void *bytes;
    ls_err_record why;
    ls_transport *c;
    size_t len;

    setenv("UCX_TLS", "tcp", 1);
    setenv("UCX_MEM_EVENTS", "no", 1);
    if (!ucx_is_here(&why))
        ls_test_skip("%s", why.text);
    LS_CHECK_OK(ls_ucx_open(&args, &c));
    ls_ucx_address(c, &bytes, &len);
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t crc;

        memcpy(address[r], bytes, len);
        memcpy(address[r] + 16, &r, sizeof r); /* behind magic, crc and generation */
        crc = ls_hash_crc32c(0, address[r] + 8, len - 8);
        memcpy(address[r] + 4, &crc, sizeof crc);
        peers[r] = (ls_ucx_peer){address[r], len};
    }
    LS_CHECK_OK(ls_ucx_connect(c, peers));
    return (ls_ucx *)c;
}

static ls_ucx_frame good(int64_t bytes, int64_t offset, int64_t len, const void *data)
{
    return (ls_ucx_frame){
        .magic = UINT32_C(0x58434c31),
        .kind = LS_UCX_CHUNK,
        .from = 1,
        .crc = len >= 0 && len <= PLENTY ? ls_hash_crc32c(0, data, (size_t)len) : 0,
        .key = 77,
        .generation = 5,
        .tag = 9,
        .bytes = bytes,
        .offset = offset,
        .len = len,
    };
}

/* As UCX would, with bytes that are its own only until the call returns. */
static void arrives(ls_ucx *u, const ls_ucx_frame *frame, size_t header_len, const void *data,
                    size_t len)
{
    ucp_am_recv_param_t param = {0};
    char *header = malloc(sizeof *frame), *copy = malloc(len + 1);

    LS_CHECK(header && copy);
    memcpy(header, frame, sizeof *frame);
    memcpy(copy, data, len);
    pthread_mutex_lock(&u->lock);
    LS_CHECK_EQ(ls_ucx_on_chunk(u, header, header_len, copy, len, &param), UCS_OK);
    pthread_mutex_unlock(&u->lock);
    free(header);
    free(copy);
}

static ls_status look(ls_ucx *u)
{
    bool moved;

    return u->base.table->poll(&u->base, &moved);
}

static void finish(ls_ucx *u)
{
    u->base.table->close(&u->base);
}

static char data[PLENTY];

LS_TEST(ucx_frames_that_are_good_arrive)
{
    ls_ucx *u = open_alone();
    char in[100] = {0}, early[3] = {0};
    ls_message m = {.peer = 1, .tag = 9, .data = in, .bytes = sizeof in};
    ls_message e = {.peer = 1, .tag = 10, .data = early, .bytes = sizeof early};
    ls_ucx_frame f;

    memset(data, 3, sizeof data);
    f = good(sizeof in, 0, sizeof in, data);
    LS_CHECK_OK(u->base.table->receive(&u->base, &m));
    LS_CHECK_OK(look(u));
    LS_CHECK(!m.done);
    arrives(u, &f, sizeof f, data, sizeof in);
    LS_CHECK_OK(look(u));
    LS_CHECK(m.done && in[99] == 3);
    f = good(sizeof early, 0, sizeof early, data);
    f.tag = 10;
    arrives(u, &f, sizeof f, data, sizeof early); /* nobody asked for it yet */
    LS_CHECK_OK(u->base.table->receive(&u->base, &e));
    LS_CHECK_OK(look(u));
    LS_CHECK(e.done && early[2] == 3);
    finish(u);
}

static void check_refused(const ls_ucx_frame *frame, size_t len, int64_t expected, const char *part)
{
    ls_ucx *u = open_alone();
    static char in[PLENTY];
    ls_message m = {.peer = 1, .tag = 9, .data = in, .bytes = expected};

    LS_CHECK_OK(u->base.table->receive(&u->base, &m));
    arrives(u, frame, sizeof *frame, data, len);
    LS_CHECK_FAILS(look(u), LS_EDATA, part);
    LS_CHECK_FAILS(look(u), LS_EDATA, part);
    LS_CHECK(!m.done);
    finish(u);
}

LS_TEST(ucx_frames_with_absurd_lengths_are_refused)
{
    static const int64_t chunk = LS_UCX_CHUNK_BYTES;
    const int64_t cases[][3] = {
        /* bytes, offset, len; 64 bytes come */
        {-1, 0, 64},
        {64, -1, 64},
        {64, 0, -64},
        {64, 0, 65},
        {64, 0, 63},
        {63, 0, 64},
        {64, 1, 64},
        {1 << 20, 64, 64},
        {1 << 20, INT64_MAX, 64},
        {INT64_MAX, INT64_MAX - 63, 64},
        {INT64_MIN, 0, 64},
        {1 << 20, 4 * chunk, 64},
    };

    for (size_t i = 0; i < LS_COUNT(cases); i++) {
        ls_ucx_frame f = good(cases[i][0], cases[i][1], cases[i][2], data);
        check_refused(&f, 64, 64, "rank 1 sent a frame whose lengths cannot be");
    }
}

LS_TEST(ucx_frames_that_were_damaged_are_refused)
{
    ls_ucx_frame f = good(64, 0, 64, data);

    f.crc ^= 1;
    check_refused(&f, 64, 64, "its checksum does not fit");
    f = good(64, 0, 64, data);
    check_refused(&f, 64, 100, "rank 1 sent 64 bytes where rank 0 expects 100");
}

LS_TEST(ucx_frames_that_come_twice_are_refused)
{
    enum { CHUNK = LS_UCX_CHUNK_BYTES };
    ls_ucx *u = open_alone();
    char *in = malloc(2 * CHUNK), *out = calloc(1, CHUNK);
    ls_message m = {.peer = 1, .tag = 9, .data = in, .bytes = 2 * CHUNK};
    ls_ucx_frame f;

    LS_CHECK(in && out);
    f = good(2 * CHUNK, CHUNK, CHUNK, out);
    f.crc = ls_hash_crc32c(0, out, CHUNK);
    LS_CHECK_OK(u->base.table->receive(&u->base, &m));
    arrives(u, &f, sizeof f, out, CHUNK);
    LS_CHECK_OK(look(u));
    arrives(u, &f, sizeof f, out, CHUNK); /* as many bytes as there should be */
    LS_CHECK_FAILS(look(u), LS_EDATA, "rank 1 sent a chunk twice");
    LS_CHECK(!m.done);
    finish(u);
    free(in);
    free(out);
}

LS_TEST(ucx_frames_of_strangers_are_dropped)
{
    ls_ucx *u = open_alone();
    char in[64] = {0};
    ls_message m = {.peer = 1, .tag = 9, .data = in, .bytes = 64};
    ls_ucx_frame f = good(64, 0, 64, data), bad;
    int64_t sent, received;

    LS_CHECK_OK(u->base.table->receive(&u->base, &m));
    bad = f, bad.magic++;
    arrives(u, &bad, sizeof bad, data, 64);
    bad = f, bad.generation--;
    arrives(u, &bad, sizeof bad, data, 64);
    bad = f, bad.key++;
    arrives(u, &bad, sizeof bad, data, 64);
    bad = f, bad.from = 0; /* ourselves */
    arrives(u, &bad, sizeof bad, data, 64);
    bad = f, bad.from = RANKS;
    arrives(u, &bad, sizeof bad, data, 64);
    bad = f, bad.from = UINT32_MAX;
    arrives(u, &bad, sizeof bad, data, 64);
    arrives(u, &f, sizeof f - 1, data, 64);
    arrives(u, &f, 0, data, 64);
    LS_CHECK_OK(look(u));
    LS_CHECK(!m.done);
    u->base.table->count(&u->base, 1, &sent, &received);
    LS_CHECK_EQ(received, 0);
    finish(u);
}

/* Whatever stands in a frame, nothing is written outside of the message (ASan looks on). */
LS_TEST_SECONDS(ucx_frames_of_any_content_do_no_harm, 60)
{
    static const int64_t numbers[] = {0,  1,   63,        64,        65,     128,
                                      -1, -64, INT64_MIN, INT64_MAX, 262144, 262208};
    ls_ucx *u = open_alone();
    char *in = malloc(64);
    uint64_t seed = 1;

    LS_CHECK(in);
    for (int i = 0; i < 20000; i++) {
        ls_message m = {.peer = 1, .tag = (uint64_t)i, .data = in, .bytes = 64};
        ls_ucx_frame f = good(64, 0, 64, data);
        bool moved, broke;

        seed = seed * UINT64_C(6364136223846793005) + 1;
        f.bytes = numbers[(seed >> 20) % LS_COUNT(numbers)];
        f.offset = numbers[(seed >> 30) % LS_COUNT(numbers)];
        f.len = numbers[(seed >> 40) % LS_COUNT(numbers)];
        f.kind = (seed >> 50) % 8 ? LS_UCX_CHUNK : (uint32_t)(seed >> 53) % 2;
        f.tag = (uint64_t)i;
        LS_CHECK_OK(u->base.table->receive(&u->base, &m));
        arrives(u, &f, sizeof f, data, (seed >> 60) % 2 ? 64 : 0);
        u->base.table->poll(&u->base, &moved);
        pthread_mutex_lock(&u->lock);
        broke = u->failed;
        if (broke) { /* anew, the short way */
            u->failed = false;
            memset(u->posted, 0, sizeof u->posted);
        }
        pthread_mutex_unlock(&u->lock);
        if (!broke && !m.done) {
            f = good(64, 0, 64, data);
            f.tag = (uint64_t)i;
            arrives(u, &f, sizeof f, data, 64);
            LS_CHECK_OK(look(u));
            LS_CHECK(m.done);
        }
    }
    finish(u);
    free(in);
}

LS_TEST(ucx_breaks_when_memory_fails)
{
    static char in[64];
    bool broke = false;

    for (uint64_t n = 1; n < 6; n++) {
        ls_ucx *u = open_alone();
        ls_message m = {.peer = 1, .tag = 9, .data = in, .bytes = 64};
        ls_ucx_frame f = good(64, 0, 64, data);
        ls_status st;

        f.tag = 8; /* to be kept */
        ls_mem_fail_nth(n);
        st = u->base.table->receive(&u->base, &m);
        arrives(u, &f, sizeof f, data, 64);
        ls_mem_fail_nth(0);
        if (st == LS_OK)
            st = look(u);
        LS_CHECK(st == LS_OK || st == LS_ENOMEM);
        broke = broke || st == LS_ENOMEM;
        finish(u);
    }
    LS_CHECK(broke);
}
#endif
