/* test_probe.c -- "are you there?": which node answers which; and what follows from the answers. */
#include "harness.h"
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/mem.h"
#include "base/time.h"
#include "cluster/jobs.h"
#include "cluster/join/probe.h"
#include "cluster/member/witness.h"
#include "net/sock.h"

static const uint8_t secret[32] = "0123456789abcdef0123456789abcde";
static const uint8_t another[32] = "0123456789abcdef0123456789abcdE";

/* Until a question of one is settled; the other answers meanwhile. */
static bool settle(ls_probe *one, ls_probe *other, uint32_t *tag)
{
    int64_t soon = ls_test_soon();
    uint32_t none;
    bool reached, its;

    while (!ls_probe_next(one, ls_time_now_ns(), tag, &reached)) {
        LS_CHECK(ls_time_now_ns() < soon);
        if (other)
            LS_CHECK(!ls_probe_next(other, ls_time_now_ns(), &none, &its));
        (void)ls_sock_wait(ls_probe_fd(one), 1 /* POLLIN */, ls_time_now_ns() + LS_NS_PER_MS);
    }
    return reached;
}

LS_TEST(probe_reaches_a_node_that_listens)
{
    ls_probe *a = NULL, *b = NULL;
    int files = jobs_files();
    uint32_t tag = 0;

    LS_CHECK_OK(ls_probe_open(&a, "127.0.0.1", secret));
    LS_CHECK_OK(ls_probe_open(&b, "127.0.0.1", secret));
    LS_CHECK(ls_probe_port(a) != 0 && ls_probe_port(a) != ls_probe_port(b));
    for (uint32_t i = 7; i < 10; i++) {
        LS_CHECK_OK(ls_probe_ask(a, "127.0.0.1", ls_probe_port(b), i, ls_test_soon()));
        LS_CHECK(settle(a, b, &tag));
        LS_CHECK_EQ(tag, i);
    }
    LS_CHECK_OK(ls_probe_ask(b, "127.0.0.1", ls_probe_port(b), 3, ls_test_soon()));
    LS_CHECK(settle(b, NULL, &tag)); /* itself, too */
    ls_probe_close(a);
    ls_probe_close(b);
    LS_CHECK_EQ(jobs_files(), files);
}

LS_TEST(probe_reports_a_node_that_is_gone)
{
    ls_probe *a = NULL, *b = NULL, *c = NULL;
    uint32_t tag = 0;

    LS_CHECK_OK(ls_probe_open(&a, "127.0.0.1", secret));
    LS_CHECK_OK(ls_probe_open(&b, "127.0.0.1", secret));
    LS_CHECK_OK(ls_probe_open(&c, "127.0.0.1", another));
    LS_CHECK_OK(
        ls_probe_ask(a, "127.0.0.1", ls_probe_port(b), 1, ls_time_now_ns() + 20 * LS_NS_PER_MS));
    LS_CHECK(!settle(a, NULL, &tag)); /* it does not attend: it hangs */
    LS_CHECK_EQ(tag, 1);
    LS_CHECK_OK(
        ls_probe_ask(a, "127.0.0.1", ls_probe_port(c), 2, ls_time_now_ns() + 50 * LS_NS_PER_MS));
    LS_CHECK(!settle(a, c, &tag)); /* another secret: no answer */
    uint16_t port = ls_probe_port(c);
    ls_probe_close(c);
    LS_CHECK_OK(ls_probe_ask(a, "127.0.0.1", port, 3, ls_time_now_ns() + 20 * LS_NS_PER_MS));
    LS_CHECK(!settle(a, NULL, &tag)); /* nobody is there */
    LS_CHECK_EQ(tag, 3);
    for (int i = 0; i < LS_PROBE_OPEN; i++)
        LS_CHECK_OK(ls_probe_ask(a, "127.0.0.1", port, 9, ls_test_soon()));
    LS_CHECK_FAILS(ls_probe_ask(a, "127.0.0.1", port, 9, ls_test_soon()), LS_EBUSY,
                   "16 questions to other nodes are open");
    ls_probe_close(a);
    ls_probe_close(b);
    LS_CHECK_FAILS(ls_probe_open(&a, "192.0.2.1", secret), LS_EIO, "cannot open a socket at");
    for (uint64_t n = 1; n < 2; n++) {
        ls_mem_fail_nth(n);
        LS_CHECK_EQ(ls_probe_open(&a, "127.0.0.1", secret), LS_ENOMEM);
        ls_mem_fail_nth(0);
    }
    ls_probe_close(NULL);
}

/* Any byte of a question changed, and any other length: no answer. An answer sent again is worth
 * nothing. */
LS_TEST(probe_answers_no_stranger)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    uint8_t asked[LS_PROBE_BYTES + 1] = {0}, got[LS_PROBE_BYTES + 1];
    ls_probe *a = NULL, *b = NULL;
    ls_sock_address here, to;
    char text[40];
    uint32_t tag;
    bool reached;

    LS_CHECK_OK(ls_probe_open(&a, "127.0.0.1", secret));
    LS_CHECK_OK(ls_probe_open(&b, "127.0.0.1", secret));
    LS_CHECK_OK(ls_sock_resolve("127.0.0.1:0", 0, &here));
    LS_CHECK_EQ(bind(fd, (struct sockaddr *)&here.storage, here.len), 0);
    LS_CHECK_OK(ls_sock_local(fd, &here));
    uint16_t port = (uint16_t)strtol(strrchr(here.text, ':') + 1, NULL, 10);
    snprintf(text, sizeof text, "127.0.0.1:%d", ls_probe_port(b));
    LS_CHECK_OK(ls_sock_resolve(text, 0, &to));
    LS_CHECK_OK(ls_probe_ask(a, "127.0.0.1", port, 1, ls_test_soon())); /* a question, taken down */
    LS_CHECK_OK(ls_sock_wait(fd, 1 /* POLLIN */, ls_test_soon()));
    LS_CHECK_EQ(recv(fd, asked, sizeof asked, 0), LS_PROBE_BYTES);
    for (int at = 0; at < LS_PROBE_BYTES; at++) {
        asked[at] ^= 1;
        LS_CHECK_EQ(sendto(fd, asked, LS_PROBE_BYTES, 0, (struct sockaddr *)&to.storage, to.len),
                    LS_PROBE_BYTES);
        asked[at] ^= 1;
        LS_CHECK(!ls_probe_next(b, ls_time_now_ns(), &tag, &reached));
    }
    for (size_t len = 0; len <= sizeof asked; len++)
        if (len != LS_PROBE_BYTES) {
            (void)!sendto(fd, asked, len, 0, (struct sockaddr *)&to.storage, to.len);
            LS_CHECK(!ls_probe_next(b, ls_time_now_ns(), &tag, &reached));
        }
    LS_CHECK_EQ(recv(fd, got, sizeof got, 0), -1); /* loopback: an answer would be here */
    (void)!sendto(fd, asked, LS_PROBE_BYTES, 0, (struct sockaddr *)&to.storage, to.len);
    int64_t soon = ls_test_soon();
    while (recv(fd, got, sizeof got, MSG_PEEK) < 0) { /* the true one is answered */
        LS_CHECK(!ls_probe_next(b, ls_time_now_ns(), &tag, &reached));
        LS_CHECK(ls_time_now_ns() < soon);
    }
    LS_CHECK_EQ(recv(fd, got, sizeof got, 0), LS_PROBE_BYTES);
    snprintf(text, sizeof text, "127.0.0.1:%d", ls_probe_port(a));
    LS_CHECK_OK(ls_sock_resolve(text, 0, &to));
    for (int i = 0; i < 2; i++)
        (void)!sendto(fd, got, LS_PROBE_BYTES, 0, (struct sockaddr *)&to.storage, to.len);
    LS_CHECK(settle(a, NULL, &tag));
    LS_CHECK(!ls_probe_next(a, ls_time_now_ns(), &tag, &reached)); /* once */
    ls_probe_close(a);
    ls_probe_close(b);
    close(fd);
}

LS_TEST(witnesses_give_a_reached_node_more_time)
{
    const int64_t s = LS_NS_PER_S, dead = 3 * s, suspect = s;
    ls_witness w = {.asked_ns = 0};
    char text[80];

    LS_CHECK_EQ(ls_witness_limit(&w, dead, suspect, 10 * s), dead);
    LS_CHECK_STR(ls_witness_text(&w, 10 * s, text, sizeof text), "");
    LS_CHECK(ls_witness_is_due(&w, suspect, 10 * s));
    ls_witness_asked(&w, 10 * s);
    LS_CHECK(!ls_witness_is_due(&w, suspect, 10 * s + s / 2));
    LS_CHECK(ls_witness_is_due(&w, suspect, 11 * s));
    ls_witness_says(&w, false, 11 * s);
    ls_witness_says(&w, false, 11 * s);
    LS_CHECK_EQ(ls_witness_limit(&w, dead, suspect, 11 * s), dead);
    LS_CHECK_STR(ls_witness_text(&w, 11 * s, text, sizeof text),
                 "; others, asked 2 times, do not reach it either");
    ls_witness_says(&w, true, 12 * s);
    LS_CHECK_EQ(ls_witness_limit(&w, dead, suspect, 13 * s), LS_WITNESS_PATIENCE * dead);
    LS_CHECK_EQ(ls_witness_limit(&w, dead, suspect, 16 * s), dead); /* that was long ago */
    LS_CHECK_STR(ls_witness_text(&w, 14 * s, text, sizeof text), "; others reached it 2.0 s ago");
    ls_witness_heard(&w); /* it speaks */
    LS_CHECK_EQ(ls_witness_limit(&w, dead, suspect, 13 * s), dead);
    ls_witness_says(&w, true, 14 * s); /* an answer that comes after that is about the past */
    LS_CHECK_EQ(w.yes, 0);
}
